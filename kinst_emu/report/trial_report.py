"""Reports of ``kinst trial``, as text and as JSON."""

import textwrap
from typing import Any

from emu.elf.image import Image
from kinst.verify.laboratory.finding import UNPROVEN
from kinst.verify.trial.verdicts import Verdicts
from kinst_emu.report.relocate_report import Result, show_mismatches, show_refusals

SHOWN = 3  # number of examples printed for each kind of difference


def modules_of(image: Image) -> str:
    """Return the kernel modules loaded with a kernel, with their build IDs."""
    return ", ".join(f"{m.name} ({m.file.build_id[:12] or 'no build ID'})" for m in image.modules)


def show(result: Result, compared: Verdicts | None, image: Image) -> None:
    """Print a report: verdicts, totals, refusals by reason, and mishandled encodings."""
    print(f"{image.path} with {modules_of(image)}")
    if compared is not None:
        _show_verdicts(result, compared)
    report = result.report
    total = sum(report.verdicts.values())
    if total:
        print(_summary(result))
        for verdict, count in report.verdicts.most_common():
            print(f"{count:>9}  {verdict}")
            names = ", ".join(f"{n} {name}" for name, n in result.kinds(verdict).most_common())
            if names and verdict.startswith(UNPROVEN):
                print(textwrap.fill(names, 96, initial_indent=" " * 11,
                                    subsequent_indent=" " * 11))
    for note in dict.fromkeys(report.noted.values()):
        count = sum(other_note == note for other_note in report.noted.values())
        print(f"{count:>9}  of these: {note}")
    if total and report.refused:
        show_refusals(result)
    show_mismatches(result, _summary(result))


def _summary(result: Result) -> str:
    report = result.report
    refused = f", {len(report.refused)} refused" if report.refused else ""
    return (f"{sum(report.verdicts.values())} distinct encodings executed through the module, "
            f"{len(report.mismatches)} mishandled{refused}, {len(report.unproven)} unproven")


def _show_verdicts(result: Result, compared: Verdicts) -> None:
    same = sum(compared.agreed.values())
    print(f"{compared.functions} functions, {compared.left_out} excluded by both; {same} "
          "instructions have the same verdict")
    for word, count in compared.agreed.most_common():
        print(f"{count:>9}  {word}")
    for number, count in compared.errors.most_common():
        print(f"{count:>9}  functions for which the module returned error {number}")
    for kind, count in compared.differences.most_common():
        print(f"{count:>9}  {kind}")
        for one in compared.examples[kind][:SHOWN]:
            text = f"  {result.text(one.code)}" if one.code else ""
            print(f"           {one.place}{text}  (module: {one.theirs}; kinst-emu: {one.ours})")


def as_json(result: Result, compared: Verdicts | None, image: Image) -> dict[str, Any]:
    """Return the report as a JSON object."""
    report = result.report
    report_json: dict[str, Any] = {
        "kernel": str(image.path), "architecture": result.arch, "seed": result.seed,
        "modules": [{"name": m.name, "build_id": m.file.build_id} for m in image.modules],
        "executed": dict(report.verdicts.most_common()),
        "notes": {code.hex(): note for code, note in report.noted.items()},
        "mishandled": [
            {"bytes": m.code.hex(), "place": result.places[m.code],
             "instruction": result.text(m.code), "verdict": m.verdict, "state": m.state,
             "differences": m.differences(), "source": m.source, "again": result.again(m)}
            for m in report.mismatches],
        "unproven": result.unproven(),
    }
    if compared is not None:
        report_json["verdicts"] = {
            "functions": compared.functions, "left_out": compared.left_out,
            "agreed": dict(compared.agreed.most_common()),
            "errors": {str(number): count for number, count in compared.errors.items()},
            "differences": [
                {"kind": kind, "count": count, "examples": [
                    {"place": e.place, "bytes": e.code.hex(), "module": e.theirs, "ours": e.ours}
                    for e in compared.examples[kind]]}
                for kind, count in compared.differences.most_common()],
        }
    return report_json
