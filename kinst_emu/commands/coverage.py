"""``kinst coverage``: count the kernel's source lines, functions and branches that runs execute."""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dtrace.debug.source_text import SourceText
from dtrace.flow.code import KernelCode
from dtrace.flow.coverage import Coverage, SourceCoverage
from dwarf.debug_file import debug_file
from emu.elf.image import Image
from emu.host.atomic_file import replacing
from emu.host.errors import KinstError
from emu.host.progress import PROGRESS
from images.boots import LIMIT
from images.catalog import described
from images.recordings import played
from kinst_emu.cli.sources import sources_option
from kinst_emu.report.coverage_page import page
from kinst_emu.report.lcov import executed_lines, lcov, new_lines
from kinst_emu.report.page_file import write_page
from kinst_emu.runs.counted import count, counter
from kinst_emu.runs.recorded_workload import is_recording, record_to_end, workload_options
from kinst_emu.terminal.terminal import check_writable, parse_count

EXAMPLES = (
    "kinst coverage -k kernel boot '$ ls /' -o boot.info",
    "kinst coverage -k kernel '$ ls /' --html coverage.html --sources /usr/src",
    "kinst coverage one.rec two.rec -o both.info",
    "kinst coverage -k kernel '$ cat /etc/motd' --against boot.info",
)
SHOWN = 40  # number of new lines that are printed


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst coverage``."""
    workload_options(parser, "required for a workload; default: that of the recordings")
    parser.add_argument("workloads", nargs="+", metavar="WORKLOAD",
                        help="recordings, or workloads as for kinst record; their counts are added "
                        "(required)")
    parser.add_argument("-o", dest="output", type=Path, metavar="FILE",
                        help="write the coverage in the format of lcov, e.g. for genhtml (default: "
                        "print a summary only)")
    parser.add_argument("--all", action="store_true",
                        help="include source files with no executed line (default: leave them "
                        "out)")
    parser.add_argument("--against", type=Path, metavar="FILE",
                        help="list the lines that these workloads execute and this coverage "
                        "file does not have (default: no list)")
    parser.add_argument("--html", type=Path, metavar="FILE",
                        help="write a page with the files, functions and lines (default: none)")
    sources_option(parser)
    parser.add_argument("--json", action="store_true",
                        help="print the summary as JSON (default: text)")


def run(arguments: argparse.Namespace) -> int:
    """Count what the workloads execute, write the coverage, and return 0."""
    text = SourceText(arguments.sources) if arguments.sources else None
    if arguments.output is not None:
        check_writable(arguments.output, "-o")
    if arguments.html is not None:
        check_writable(arguments.html, "--html")
    before = None if arguments.against is None else executed_lines(arguments.against)
    coverage, code = _counted(arguments)
    with PROGRESS.working("finding the source lines"):
        found = _sources(coverage, code, arguments.all)

    def place(name: str) -> str:
        file = None if text is None else text.file(name)
        return name if file is None else str(file)

    if arguments.output is not None:
        with PROGRESS.working(f"writing {arguments.output}"), replacing(arguments.output) as file:
            for row in lcov(found.files, place):
                file.write(f"{row}\n".encode("utf-8", "surrogateescape"))
    new = None if before is None else new_lines(found.files, place, before)
    if arguments.html is not None:
        _write_page(arguments, found, code, text, before)
    _show(arguments, found, new, text)
    return 0


def _write_page(arguments: argparse.Namespace, found: SourceCoverage, code: KernelCode,
                text: SourceText | None, before: set[tuple[str, int]] | None) -> None:
    """Write the page; its new lines are those that the earlier coverage file does not have."""
    about = f"Of {' and '.join(arguments.workloads)}. Kernel: {described(code.image)}."
    with PROGRESS.working(f"writing {arguments.html}"):
        content = page(found.files, text, about, None if before is None else new_lines(
            found.files, lambda name: name, before))
    write_page(arguments.html, content, "kinst")


def _counted(arguments: argparse.Namespace) -> tuple[Coverage, KernelCode]:
    limit = LIMIT if arguments.limit is None else parse_count(arguments.limit, "--limit")
    coverage: Coverage | None = None
    code: KernelCode | None = None
    with tempfile.TemporaryDirectory(prefix="kinst-coverage-") as directory:
        for number, workload in enumerate(arguments.workloads):
            path = Path(workload)
            if is_recording(workload) and arguments.set:
                raise KinstError(f"--set: {workload} is a recording already; see kinst replay "
                                 "--set")
            if not is_recording(workload):
                if arguments.kernel is None:
                    raise KinstError(f"{workload}: is not a recording; to run it, give a kernel "
                                     "with -k")
                path = Path(directory) / f"{number}.rec"
                record_to_end(arguments, workload, path)
            player = played(path, arguments.kernel, limit, arguments.module)
            if code is None or coverage is None:
                _check(player.machine.image)
                code = KernelCode(player.machine.image)
                coverage = counter(player, code)
            elif _code_of(player.machine.image) != _code_of(code.image):
                raise KinstError(f"{workload}: runs another kernel than {arguments.workloads[0]}; "
                                 "give workloads of one kernel")
            count(player, coverage, workload)
    assert coverage is not None and code is not None
    return coverage, code


def _code_of(image: Image) -> tuple[object, ...]:
    """Return what identifies the code of a kernel and its modules, whatever its disks are."""
    return (image.kernel_identity, *((module.address, module.file.digest)
                                     for module in image.modules))


def _check(image: Image) -> None:
    if debug_file(image.file) is None:
        raise KinstError(f"{image.path}: source lines need debug data; put the matching "
                         f"{image.path.name}.debug in its directory")


def _sources(coverage: Coverage, code: KernelCode, every: bool) -> SourceCoverage:
    found = SourceCoverage(coverage, code)
    executed = found.executed()
    files = {found.file_of(function) for function in executed} - {""}
    known = {function.address for function in executed}
    for function in executed:
        found.add(function, True)
    for function in code.image.symbols.functions():
        if function.address not in known and function.size and (
                found.file_of(function) in files or every):
            found.add(function, False)
    return found


def _show(arguments: argparse.Namespace, found: SourceCoverage,
          new: Sequence[tuple[str, int]] | None, text: SourceText | None) -> None:
    rows = found.files.values()
    summary = {
        "files": len(found.files),
        "lines": [sum(n > 0 for one in rows for n in one.lines.values()),
                  sum(len(one.lines) for one in rows)],
        "functions": [sum(n > 0 for one in rows for n in one.functions.values()),
                      sum(len(one.functions) for one in rows)],
        "branches": [sum((a > 0) + (b > 0) for one in rows for a, b in one.branches.values()),
                     2 * sum(len(one.branches) for one in rows)]}
    if arguments.json:
        print(json.dumps(summary | ({} if new is None else {"new": new})))
        return
    for what, counts in summary.items():
        if isinstance(counts, list):
            part = f" ({100 * counts[0] / counts[1]:.1f} %)" if counts[1] else ""
            print(f"{what:<10} {counts[0]} of {counts[1]} executed{part}")
        else:
            print(f"{what:<10} {counts}")
    if arguments.output is not None:
        print(f"wrote {arguments.output}; show it with: genhtml "
              f"--ignore-errors source --branch-coverage -o coverage {arguments.output}")
    if new is not None:
        print(f"{len(new)} lines were executed that {arguments.against} does not have"
              + (f"; the first {SHOWN}:" if len(new) > SHOWN else ":" if new else ""))
        for file, line in new[:SHOWN]:
            source = "" if text is None else text.line(f"{file}:{line}")
            print(f"  {file}:{line}" + (f"  {source}" if source else ""))
