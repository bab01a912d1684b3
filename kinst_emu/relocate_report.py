"""What ``kinst relocate`` found: for people, for programs (JSON), for builds (JUnit)."""

import textwrap
from collections import Counter
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from emu.architectures import ARCHITECTURES
from kinst.code.survey import Survey
from kinst.code.verdict import summary
from kinst.laboratory.finding import Finding
from kinst.laboratory.laboratory import ON_HOST
from kinst.laboratory.memory_map import CODE
from kinst.laboratory.relocation import Report
from kinst.trap import TRAPS
from kinst.trial.execution import BY_MODULE

MAX_KINDS = 20  # of mismatches, one of each, that are shown
MAX_SHOWN = 20  # encodings that are shown one by one


@dataclass(frozen=True)
class Result:
    """:param places: the encodings tested, and where each stands.
    :param survey: of the image's instructions; None when there was no image.
    :param command: that tests encodings again; empty: kinst relocate.
    """

    arch: str
    seed: int
    places: dict[bytes, str]
    report: Report
    survey: Survey | None
    command: str = ""

    def text(self, code: bytes) -> str:
        return ARCHITECTURES[self.arch].disassemble(code, CODE)

    def kinds(self, verdict: str) -> Counter[str]:
        """The instructions of a verdict that were not executed, by name."""
        return Counter(self.text(code).split()[0]
                       for code, word in self.report.unexecuted.items() if word == verdict)

    def mismatched(self) -> dict[tuple[str, str], list[Finding]]:
        """The mismatches by verdict and instruction, the most frequent first."""
        found: dict[tuple[str, str], list[Finding]] = {}
        for mismatch in self.report.mismatches:
            name = self.text(mismatch.code).split()[0]
            found.setdefault((mismatch.verdict, name), []).append(mismatch)
        return dict(sorted(found.items(), key=lambda kind: -len(kind[1])))

    def again(self, mismatch: Finding) -> str:
        """A command that runs just this one."""
        command = self.command or f"kinst relocate --arch {self.arch}"
        return (f"echo {mismatch.code.hex()} | {command} --encodings - "
                f"--seed {self.seed} --states {_states(mismatch)}"
                + " --judge host" * (mismatch.how == ON_HOST))


def show(result: Result) -> None:
    report = result.report
    kinds = result.mismatched()
    for (verdict, name), some in list(kinds.items())[:MAX_KINDS]:
        m = some[0]
        print(f"{result.places[m.code]}: {m.code.hex(' ')}  {result.text(m.code)}  "
              f"({m.verdict}, state {m.state})")
        for line in m.differences():
            print(f"    {line}")
        print(f"    again: {result.again(m)}")
        if len(some) > 1:
            print(f"    and {len(some) - 1} more of {name}, {verdict} (--json lists them)")
    if len(kinds) > MAX_KINDS:
        print(f"{len(kinds) - MAX_KINDS} more kinds of instructions mismatch (--json lists them)")
    if result.survey is None and len(result.places) <= MAX_SHOWN:
        for code, place in result.places.items():
            verdict = (report.refused.get(code)
                       or summary(TRAPS[result.arch].classify(code, CODE)[1]))
            print(f"{place}: {code.hex(' ')}  {result.text(code)}  {verdict}")
    elif result.survey is None:
        for code, reason in report.refused.items():
            print(f"{result.places[code]}: {code.hex(' ')}  {result.text(code)}  {reason}")
    else:
        good, every = result.survey.probeable
        print(f"{sum(result.survey.verdicts.values())} instructions")
        for verdict, count in result.survey.verdicts.most_common():
            print(f"{count:>9}  {verdict}")
        share = 100 * good / every if every else 100.0
        print(f"{good} of {every} can be probed, without the excluded functions: {share:.3f} %")
    total = sum(report.verdicts.values())
    print(f"{total} distinct encodings, {len(report.mismatches)} mismatches")
    for verdict, count in report.verdicts.most_common():
        print(f"{count:>9}  {verdict}")
        names = result.kinds(verdict)
        if names:
            text = ", ".join(f"{n} {name}" for name, n in names.most_common())
            print(textwrap.fill(text, 96, initial_indent=" " * 11, subsequent_indent=" " * 11))
    if report.judged:
        print("on the host's own CPU:")
        for how, count in report.judged.most_common():
            print(f"{count:>9}  {how}")


def as_json(result: Result) -> dict[str, Any]:
    report = result.report
    found: dict[str, Any] = {
        "architecture": result.arch, "seed": result.seed,
        "verdicts": dict(report.verdicts.most_common()),
        "not_executed": {verdict: dict(result.kinds(verdict).most_common())
                         for verdict in report.verdicts if verdict.startswith("not executed")},
        "mismatches": [
            {"bytes": m.code.hex(), "place": result.places[m.code], "verdict": m.verdict,
             "state": m.state, "differences": m.differences(), "again": result.again(m)}
            for m in report.mismatches
        ],
    }
    if report.judged:
        found["host"] = dict(report.judged.most_common())
    if result.survey is None:
        found["refused"] = {code.hex(): reason for code, reason in report.refused.items()}
    else:
        good, every = result.survey.probeable
        found["instructions"] = dict(result.survey.verdicts.most_common())
        found["probeable"] = {"instructions": good, "of": every}
    return found


def junit(result: Result, what: str = "kinst relocate") -> bytes:
    """A test case for each place's function (or line), with how many encodings it stands for."""
    cases = Counter(place.partition("+")[0] for place in result.places.values())
    failures: dict[str, list[str]] = {}
    for m in result.report.mismatches:
        place = result.places[m.code]
        lines = [f"{place}: {m.code.hex(' ')}  {result.text(m.code)}", *m.differences(),
                 f"again: {result.again(m)}"]
        failures.setdefault(place.partition("+")[0], []).append("\n".join(lines))
    suite = ElementTree.Element(
        "testsuite", name=f"{what} {result.arch}", tests=str(len(cases)),
        failures=str(len(failures)), errors="0", skipped="0",
    )
    group = f"{what.split()[-1]}.{result.arch}"
    for name, count in cases.items():
        case = ElementTree.SubElement(suite, "testcase", classname=group, name=name,
                                      assertions=str(count))
        if name in failures:
            failure = ElementTree.SubElement(case, "failure", message="not the same displaced")
            failure.text = "\n".join(failures[name])
    root = ElementTree.Element("testsuites")
    root.append(suite)
    return b'<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root)


def _states(one: Finding) -> int:
    """How many states a repetition needs; those with a number of their own come by themselves."""
    state = one.state or 0
    return (state % 1000 if one.how == BY_MODULE else state) + 1
