"""What ``kinst relocate`` found: for people, for programs (JSON), for builds (JUnit)."""

import textwrap
from collections import Counter
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from emu.arch.architectures import ARCHITECTURES
from kinst.code.survey import Survey
from kinst.verify.laboratory.encodings import Report
from kinst.verify.laboratory.finding import Finding
from kinst.verify.laboratory.laboratory import MADE, ON_HOST
from kinst.verify.laboratory.memory_map import CODE
from kinst.verify.trial.execution import BY_MODULE
from kinst.verify.trial.states import CALM, JUMPS

MAX_KINDS = 20  # of mismatches, one of each, that are shown
MISMATCH = "mismatch"
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
        """The instructions of a verdict that were not executed or not shown, by name."""
        report = self.report
        return Counter(self.text(code).split()[0]
                       for code, word in (*report.unexecuted.items(), *report.unshown.items())
                       if word == verdict)

    def verdict(self, code: bytes) -> str:
        """What the relocator makes of an encoding."""
        return self.report.said.get(code) or self.report.words[code]

    def not_shown(self) -> list[dict[str, Any]]:
        """The encodings that pass without having been shown, for programs."""
        return [{"bytes": code.hex(), "place": self.places[code], "verdict": self.verdict(code),
                 "why": word} for code, word in self.report.unshown.items()]

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
    """Print a report: totals first, refusals by their reason, mismatches and a summary last."""
    report = result.report
    wrong = {m.code for m in report.mismatches}
    if result.survey is None and len(result.places) <= MAX_SHOWN:
        for code, place in result.places.items():
            verdict, word = result.verdict(code), report.words[code]
            print(f"{place}: {code.hex(' ')}  {result.text(code)}  {verdict}"
                  + f"  ({word})" * (word != verdict and code not in wrong))
    elif result.survey is not None:
        good, every = result.survey.probeable
        print(f"{sum(result.survey.verdicts.values())} instructions")
        for verdict, count in result.survey.verdicts.most_common():
            print(f"{count:>9}  {verdict}")
        share = 100 * good / every if every else 100.0
        print(f"{good} of {every} can be probed, without the excluded functions: {share:.3f} %")
    print(_summary(result))
    for verdict, count in report.verdicts.most_common():
        print(f"{count:>9}  {verdict}")
        _show_names(result.kinds(verdict))
    if report.judged:
        print("on the host's own CPU:")
        for how, count in report.judged.most_common():
            print(f"{count:>9}  {how}")
    if _counts_refusals(result):
        show_refusals(result)
    show_mismatches(result, _summary(result))


def _counts_refusals(result: Result) -> bool:
    """Whether there are too many encodings to show them one by one."""
    return result.survey is None and len(result.places) > MAX_SHOWN


def _summary(result: Result) -> str:
    report = result.report
    reasons = len(set(report.refused.values()))
    refused = (f", {len(report.refused)} refused ({reasons} reason{'s' * (reasons != 1)})"
               if _counts_refusals(result) and report.refused else "")
    return (f"{sum(report.verdicts.values())} distinct encodings, "
            f"{len(report.mismatches)} mismatches{refused}, {len(report.unshown)} not shown")


def _show_names(names: Counter[str]) -> None:
    if names:
        text = ", ".join(f"{n} {name}" for name, n in names.most_common())
        print(textwrap.fill(text, 96, initial_indent=" " * 11, subsequent_indent=" " * 11))


def show_refusals(result: Result) -> None:
    """What was refused, by reason."""
    refused = result.report.refused
    for reason, count in Counter(refused.values()).most_common():
        print(f"{count:>9}  refused: {reason}")
        _show_names(Counter(result.text(code).split()[0]
                            for code, why in refused.items() if why == reason))


def show_mismatches(result: Result, summary: str) -> None:
    """An example of each kind of mismatch, with a command that runs it again, and the summary."""
    kinds = result.mismatched()
    for (verdict, name), some in list(kinds.items())[:MAX_KINDS]:
        m = some[0]
        print(f"{result.places[m.code]}: {m.code.hex(' ')}  {result.text(m.code)}  "
              f"({m.verdict}, state {m.state})")
        for line in [*m.differences(), *m.source.splitlines()]:
            print(f"    {line}")
        print(f"    again: {result.again(m)}")
        if len(some) > 1:
            print(f"    and {len(some) - 1} more of {name}, {verdict} (--json lists them)")
    if len(kinds) > MAX_KINDS:
        print(f"{len(kinds) - MAX_KINDS} more kinds of instructions mismatch (--json lists them)")
    if kinds:
        print(summary)


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
        "not_shown": result.not_shown(),
    }
    if report.judged:
        found["host"] = dict(report.judged.most_common())
    if result.survey is None:
        found["refused"] = {code.hex(): reason for code, reason in report.refused.items()}
        wrong = {m.code for m in report.mismatches}
        found["encodings"] = [
            {"bytes": code.hex(), "place": place, "verdict": result.verdict(code),
             "result": MISMATCH if code in wrong else report.words[code]}
            for code, place in result.places.items()]
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
    unshown: dict[str, list[str]] = {}
    for code, word in result.report.unshown.items():
        place = result.places[code]
        unshown.setdefault(place.partition("+")[0], []).append(
            f"{place}: {code.hex(' ')}  {result.text(code)}  {word}")
    suite = ElementTree.Element(
        "testsuite", name=f"{what} {result.arch}", tests=str(len(cases)),
        failures=str(len(failures)), errors="0",
        skipped=str(len(unshown.keys() - failures.keys())),
    )
    group = f"{what.split()[-1]}.{result.arch}"
    for name, count in cases.items():
        case = ElementTree.SubElement(suite, "testcase", classname=group, name=name,
                                      assertions=str(count))
        if name in failures:
            failure = ElementTree.SubElement(case, "failure", message="not the same displaced")
            failure.text = "\n".join(failures[name])
        elif name in unshown:
            skipped = ElementTree.SubElement(case, "skipped", message="not shown")
            skipped.text = "\n".join(unshown[name])
    root = ElementTree.Element("testsuites")
    root.append(suite)
    return b'<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root)


def _states(one: Finding) -> int:
    """How many states a repetition needs; those that are made come by themselves."""
    state = one.state or 0
    if one.how == BY_MODULE:
        return 1 if state >= JUMPS else state % CALM + 1
    return 1 if state >= MADE else state + 1
