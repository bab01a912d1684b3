"""``kinst report``: show the results of sweeps, or compare two of them."""

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from emu.arch.architectures import ARCHITECTURES
from emu.host.errors import KinstError
from emu.host.printable import printable
from emu.host.progress import PROGRESS
from kinst.verify.laboratory.comparing import Comparison, Place, compare, findings_of
from kinst.verify.laboratory.finding import Finding
from kinst.verify.laboratory.memory_map import CODE
from kinst.verify.sweep.store import Build, Store
from kinst_emu.terminal.terminal import parse_count

SHOWN = 20  # maximum number of encodings printed for each kind of change

EXAMPLES = (
    "kinst report results.db",
    "kinst report results.db --compare 1 2",
    "kinst report clang18.db clang19.db",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst report``."""
    parser.add_argument("file", type=Path, metavar="FILE", help="results file written by "
                        "--store (required)")
    parser.add_argument("other", type=Path, nargs="?", metavar="OTHER",
                        help="second results file: compare its last build with the last build in "
                        "FILE (default: list the builds in FILE)")
    parser.add_argument("--compare", nargs=2, metavar=("A", "B"),
                        help="compare builds A and B in FILE, by their numbers in the list of "
                        "builds (default: list the builds)")
    parser.add_argument("--json", action="store_true",
                        help="print the report as JSON (default: text)")


def run(arguments: argparse.Namespace) -> int:
    """Print the results of each build, or compare two builds; return 1 if the second is worse."""
    store = Store(arguments.file, must_exist=True)
    builds = store.builds()
    if not builds:
        raise KinstError(f"{arguments.file}: contains no sweep of a kernel yet")
    if arguments.other is not None:
        other = Store(arguments.other, must_exist=True)
        theirs = other.builds()
        if not theirs:
            raise KinstError(f"{arguments.other}: contains no sweep of a kernel yet")
        return _compared(arguments, (store, builds[-1]), (other, theirs[-1]))
    if arguments.compare:
        numbers = [parse_count(text, "--compare") for text in arguments.compare]
        by_number = {build.number: build for build in builds}
        for number in numbers:
            if number not in by_number:
                raise KinstError(f"--compare {number}: no such build; {arguments.file} has the "
                                 f"builds {', '.join(map(str, by_number))}")
        return _compared(arguments, *((store, by_number[number]) for number in numbers))
    return _listed(arguments, store, builds)


def _listed(arguments: argparse.Namespace, store: Store, builds: list[Build]) -> int:
    rows = []
    for build in builds:
        words, wrong, unproven = Counter[str](), 0, 0
        with PROGRESS.working(f"reading the results of {build.path}"):
            for _place, finding in findings_of(store, build):
                words[finding.word] += 1
                wrong += finding.wrong
                unproven += finding.unproven
        rows.append({**_row(build), "encodings": sum(words.values()), "wrong": wrong,
                     "unproven": unproven, "words": dict(words.most_common())})
    if arguments.json:
        print(json.dumps(rows))
        return 0
    for build, row in zip(builds, rows, strict=True):
        print(f"{build.number}: {_name(build)}")
        print(f"     {row['encodings']} encodings, {row['wrong']} wrong, {row['unproven']} "
              "unproven")
    return 0


def _row(build: Build) -> dict[str, Any]:
    return {"number": build.number, "kind": build.kind, "subject": build.subject,
            "architecture": build.architecture, "kernel": build.path, "identity": build.identity,
            "compiler": build.compiler}


def _name(build: Build) -> str:
    compiler = f", {build.compiler}" if build.compiler else ""
    return (f"{build.kind} of {printable(build.path)} ({build.architecture}, "
            f"{printable(build.identity, 12)}{printable(compiler)}); "
            f"judged: {printable(build.subject)}")


def _compared(arguments: argparse.Namespace, one: tuple[Store, Build], two: tuple[Store, Build]
              ) -> int:
    if (one[1].kind, one[1].architecture) != (two[1].kind, two[1].architecture):
        raise KinstError(f"the builds cannot be compared: one is from {one[1].kind} for "
                         f"{one[1].architecture}, the other from {two[1].kind} for "
                         f"{two[1].architecture}")
    with PROGRESS.working("comparing the builds"):
        comparison = compare(findings_of(*one), findings_of(*two))
    if arguments.json:
        print(json.dumps(_as_json(comparison, one[1], two[1])))
    else:
        _show(comparison, one[1], two[1])
    return 1 if comparison.broke or comparison.only_wrong[1] else 0


def _places(rows: list[Place]) -> list[dict[str, Any]]:
    return [{"place": place, "bytes": finding.code.hex(), "word": finding.word,
             "differences": finding.differences(), "source": finding.source}
            for place, finding in rows]


def _as_json(found: Comparison, one: Build, two: Build) -> dict[str, Any]:
    return {
        "builds": [_row(one), _row(two)], "words": [dict(words) for words in found.words],
        "wrong": list(found.wrong), "same": found.same, "fixed": _places(found.fixed),
        "broke": _places(found.broke), "only": list(found.only),
        "only_wrong": [_places(rows) for rows in found.only_wrong],
        "changed": [{"first": a, "second": b, "encodings": count}
                    for (a, b), count in found.changed.most_common()],
    }


def _show(found: Comparison, one: Build, two: Build) -> None:
    print(f"A {_name(one)}\nB {_name(two)}")
    print(f"{'A':>9} {'B':>9}")
    for word, _count in (found.words[0] + found.words[1]).most_common():
        print(f"{found.words[0][word]:>9} {found.words[1][word]:>9}  {printable(word)}")
    print(f"{found.wrong[0]:>9} {found.wrong[1]:>9}  wrong")
    print(f"{found.only[0]:>9} {found.only[1]:>9}  encodings that only this build has")
    print(f"encodings in both builds: {found.same} unchanged, {len(found.fixed)} fixed, "
          f"{len(found.broke)} broken")
    for (a, b), count in found.changed.most_common():
        print(f"{count:>9}  {printable(a)} in A, {printable(b)} in B")
    def text(finding: Finding) -> str:
        if one.kind == "xval":
            return finding.code.decode("utf-8", "replace")
        disassemble = ARCHITECTURES[one.architecture].disassemble
        return f"{finding.code.hex(' ')}  {disassemble(finding.code, CODE)}"

    printed = set[str]()  # source excerpts already printed
    for what, rows in (("fixed", found.fixed), ("broke", found.broke),
                       ("only in A, wrong", found.only_wrong[0]),
                       ("only in B, wrong", found.only_wrong[1])):
        for place, finding in rows[:SHOWN]:
            print(f"{what}: {printable(place)}: {printable(text(finding))}")
            for line in finding.source.splitlines() if finding.source not in printed else ():
                print(f"    {printable(line)}")
            printed.add(finding.source)
        if len(rows) > SHOWN:
            print(f"{what}: and {len(rows) - SHOWN} more (--json lists them)")
