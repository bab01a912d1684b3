"""Reports of ``kinst relocate``: as text, as JSON, and as JUnit XML for builds."""

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

MAX_KINDS = 20  # maximum number of kinds of mismatches shown with an example
MISMATCH = "mismatch"
MAX_SHOWN = 20  # maximum number of encodings to list individually


@dataclass(frozen=True)
class Result:
    """Result of ``kinst relocate``.

    :param places: tested encodings, each with a place where it occurs.
    :param survey: verdicts on the image's instructions; None without an image.
    :param command: command that tests given encodings again; empty for ``kinst relocate``.
    """

    arch: str
    seed: int
    places: dict[bytes, str]
    report: Report
    survey: Survey | None
    command: str = ""

    def text(self, code: bytes) -> str:
        """Return the disassembly of an encoding."""
        return ARCHITECTURES[self.arch].disassemble(code, CODE)

    def kinds(self, verdict: str) -> Counter[str]:
        """Count the unexecuted and unproven instructions that have a given verdict, by mnemonic."""
        report = self.report
        return Counter(self.text(code).split()[0]
                       for code, word in (*report.unexecuted.items(), *report.unproven.items())
                       if word == verdict)

    def verdict(self, code: bytes) -> str:
        """Return the relocator's verdict on an encoding."""
        return self.report.said.get(code) or self.report.words[code]

    def unproven(self) -> list[dict[str, Any]]:
        """Return the unproven encodings as JSON objects."""
        return [{"bytes": code.hex(), "place": self.places[code], "verdict": self.verdict(code),
                 "why": word} for code, word in self.report.unproven.items()]

    def mismatched(self) -> dict[tuple[str, str], list[Finding]]:
        """Return the mismatches grouped by verdict and mnemonic, most frequent first."""
        by_kind: dict[tuple[str, str], list[Finding]] = {}
        for mismatch in self.report.mismatches:
            name = self.text(mismatch.code).split()[0]
            by_kind.setdefault((mismatch.verdict, name), []).append(mismatch)
        return dict(sorted(by_kind.items(), key=lambda kind: -len(kind[1])))

    def again(self, mismatch: Finding) -> str:
        """Return a command that reproduces one mismatch."""
        command = self.command or f"kinst relocate --arch {self.arch}"
        return (f"echo {mismatch.code.hex()} | {command} --encodings - "
                f"--seed {self.seed} --states {_states(mismatch)}"
                + " --judge host" * (mismatch.how == ON_HOST))


def show(result: Result) -> None:
    """Print a report: totals, refusals by reason, mismatches, and a summary."""
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
        print(f"{good} of {every} can be probed, not counting excluded functions: {share:.3f} %")
    print(_summary(result))
    for verdict, count in report.verdicts.most_common():
        print(f"{count:>9}  {verdict}")
        _show_names(result.kinds(verdict))
    if report.judged:
        print("on the host's CPU:")
        for how, count in report.judged.most_common():
            print(f"{count:>9}  {how}")
    if _counts_refusals(result):
        show_refusals(result)
    show_mismatches(result, _summary(result))


def _counts_refusals(result: Result) -> bool:
    """Return whether to count refusals, because there are too many encodings to list."""
    return result.survey is None and len(result.places) > MAX_SHOWN


def _summary(result: Result) -> str:
    report = result.report
    reasons = len(set(report.refused.values()))
    refused = (f", {len(report.refused)} refused ({reasons} reason{'s' * (reasons != 1)})"
               if _counts_refusals(result) and report.refused else "")
    return (f"{sum(report.verdicts.values())} distinct encodings, "
            f"{len(report.mismatches)} mismatches{refused}, {len(report.unproven)} unproven")


def _show_names(names: Counter[str]) -> None:
    if names:
        text = ", ".join(f"{n} {name}" for name, n in names.most_common())
        print(textwrap.fill(text, 96, initial_indent=" " * 11, subsequent_indent=" " * 11))


def show_refusals(result: Result) -> None:
    """Print the number of refused encodings for each reason."""
    refused = result.report.refused
    for reason, count in Counter(refused.values()).most_common():
        print(f"{count:>9}  refused: {reason.removeprefix('refuse: ')}")
        _show_names(Counter(result.text(code).split()[0]
                            for code, why in refused.items() if why == reason))


def show_mismatches(result: Result, summary: str) -> None:
    """Print an example of each kind of mismatch, a command that reproduces it, and the summary."""
    kinds = result.mismatched()
    for (verdict, name), some in list(kinds.items())[:MAX_KINDS]:
        m = some[0]
        print(f"{result.places[m.code]}: {m.code.hex(' ')}  {result.text(m.code)}  "
              f"({m.verdict}, state {m.state})")
        for line in [*m.differences(), *m.source.splitlines()]:
            print(f"    {line}")
        print(f"    reproduce: {result.again(m)}")
        if len(some) > 1:
            print(f"    and {len(some) - 1} more of {name}, {verdict} (--json lists them)")
    if len(kinds) > MAX_KINDS:
        print(f"{len(kinds) - MAX_KINDS} more kinds of instructions mismatch (--json lists them)")
    if kinds:
        print(summary)


def as_json(result: Result) -> dict[str, Any]:
    """Return the report as a JSON object."""
    report = result.report
    report_json: dict[str, Any] = {
        "architecture": result.arch, "seed": result.seed,
        "verdicts": dict(report.verdicts.most_common()),
        "not_executed": {verdict: dict(result.kinds(verdict).most_common())
                         for verdict in report.verdicts if verdict.startswith("not executed")},
        "mismatches": [
            {"bytes": m.code.hex(), "place": result.places[m.code], "verdict": m.verdict,
             "state": m.state, "differences": m.differences(), "again": result.again(m)}
            for m in report.mismatches
        ],
        "unproven": result.unproven(),
    }
    if report.judged:
        report_json["host"] = dict(report.judged.most_common())
    if result.survey is None:
        report_json["refused"] = {code.hex(): reason for code, reason in report.refused.items()}
        wrong = {m.code for m in report.mismatches}
        report_json["encodings"] = [
            {"bytes": code.hex(), "place": place, "verdict": result.verdict(code),
             "result": MISMATCH if code in wrong else report.words[code]}
            for code, place in result.places.items()]
    else:
        good, every = result.survey.probeable
        report_json["instructions"] = dict(result.survey.verdicts.most_common())
        report_json["probeable"] = {"instructions": good, "of": every}
    return report_json


def junit(result: Result, what: str = "kinst relocate") -> bytes:
    """Return the report as JUnit XML, with a test case for each function or line of input.

    The ``assertions`` of a test case are the number of its encodings.
    """
    cases = Counter(place.partition("+")[0] for place in result.places.values())
    failures: dict[str, list[str]] = {}
    for m in result.report.mismatches:
        place = result.places[m.code]
        lines = [f"{place}: {m.code.hex(' ')}  {result.text(m.code)}", *m.differences(),
                 f"reproduce: {result.again(m)}"]
        failures.setdefault(place.partition("+")[0], []).append("\n".join(lines))
    unproven: dict[str, list[str]] = {}
    for code, word in result.report.unproven.items():
        place = result.places[code]
        unproven.setdefault(place.partition("+")[0], []).append(
            f"{place}: {code.hex(' ')}  {result.text(code)}  {word}")
    suite = ElementTree.Element(
        "testsuite", name=f"{what} {result.arch}", tests=str(len(cases)),
        failures=str(len(failures)), errors="0",
        skipped=str(len(unproven.keys() - failures.keys())),
    )
    group = f"{what.split()[-1]}.{result.arch}"
    for name, count in cases.items():
        case = ElementTree.SubElement(suite, "testcase", classname=group, name=name,
                                      assertions=str(count))
        if name in failures:
            failure = ElementTree.SubElement(case, "failure", message="differs when displaced")
            failure.text = "\n".join(failures[name])
        elif name in unproven:
            skipped = ElementTree.SubElement(case, "skipped", message="unproven")
            skipped.text = "\n".join(unproven[name])
    root = ElementTree.Element("testsuites")
    root.append(suite)
    return b'<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root)


def _states(one: Finding) -> int:
    """Return how many random states are needed to reproduce a mismatch.

    Constructed states are always tried, in addition to the random ones.
    """
    state = one.state or 0
    if one.how == BY_MODULE:
        return 1 if state >= JUMPS else state % CALM + 1
    return 1 if state >= MADE else state + 1
