"""``kinst relocate``: every instruction in place and displaced, from the same random states."""

import argparse
import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from dtrace.symbols import sized_functions
from emu.architectures import ARCHITECTURES, arch_of
from emu.elf import Image, Symbol
from emu.errors import KinstError
from emu.replacing import replacing
from images import catalog
from kinst.code.survey import survey
from kinst.laboratory.relocation import relocate
from kinst.trap import TRAPS
from kinst_emu.assembler import assemble
from kinst_emu.completion import kernel_option
from kinst_emu.relocate_report import Result, as_json, junit, show
from kinst_emu.terminal import parse_count

MAX_ENCODINGS = 4_000_000

EXAMPLES = (
    "kinst relocate -k kernel malloc",
    "kinst relocate -k kernel --jobs 2",
    "kinst relocate --arch amd64 --assemble 'call *8(%r12)'",
    "kinst relocate --arch arm64 --encodings instructions.txt",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    kernel_option(parser, required=False)
    parser.add_argument("function", nargs="*", metavar="FUNCTION", help="only these functions")
    parser.add_argument("--arch", choices=sorted(ARCHITECTURES),
                        help="for --encodings and --assemble")
    parser.add_argument("--encodings", metavar="FILE",
                        help="test these instead: one instruction a line, hexadecimal bytes in "
                        "memory order; - is standard input")
    parser.add_argument("--assemble", metavar="CODE",
                        help="test these instead: instructions in assembler, e.g. "
                        "'call *8(%%r12)' or 'call [r12 + 8]'; ';' separates them")
    parser.add_argument("--states", default="2", metavar="N", help="random states (%(default)s)")
    parser.add_argument("--seed", default="1", metavar="S", help="of the states (%(default)s)")
    parser.add_argument("--jobs", default="1", metavar="N", help="processes (%(default)s)")
    parser.add_argument("--judge", choices=["host"],
                        help="the host's own CPU executes them, too, in a process of its own "
                        "(amd64 on an x86-64 host)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--junit", type=Path, metavar="FILE",
                        help="write the report as JUnit XML, too")


def run(arguments: argparse.Namespace) -> int:
    states = parse_count(arguments.states, "--states")
    seed = parse_count(arguments.seed, "--seed")
    jobs = min(parse_count(arguments.jobs, "--jobs"), 64)
    if arguments.junit and not arguments.junit.parent.is_dir():
        raise KinstError(f"--junit {arguments.junit}: there is no such directory")
    surveyed = None
    option = "--assemble" if arguments.assemble is not None else "--encodings"
    if arguments.encodings is not None or arguments.assemble is not None:
        if None not in (arguments.encodings, arguments.assemble):
            raise KinstError("give --encodings or --assemble: not both")
        if not arguments.arch:
            raise KinstError(f"{option} needs --arch amd64, arm64 or riscv64")
        if arguments.kernel or arguments.function:
            raise KinstError(f"{option} tests no kernel: leave -k and FUNCTION away")
    if arguments.assemble is not None:
        arch = arguments.arch
        places = {code: text for text, code in assemble(arch, arguments.assemble)}
    elif arguments.encodings is not None:
        arch, places = arguments.arch, _read(arguments.encodings)
        if not places:
            raise KinstError(f"{arguments.encodings}: there is no instruction in it")
    elif arguments.kernel:
        image = catalog.find(arguments.kernel, arguments.module)
        arch = arch_of(image).name
        if arguments.arch and arguments.arch != arch:
            raise KinstError(f"--arch {arguments.arch}: {image.path} is for {arch}")
        surveyed = survey(ARCHITECTURES[arch], TRAPS[arch], image,
                          _functions(image, arguments.function))
        places = surveyed.places
    else:
        raise KinstError("give a kernel (-k IMAGE), or --arch and --encodings or --assemble")
    with _progress(len(places)) as progress:
        report = relocate(arch, list(places), seed, states, jobs, progress,
                          arguments.judge == "host")
    result = Result(arch, seed, places, report, surveyed)
    if arguments.json:
        print(json.dumps(as_json(result)))
    else:
        show(result)
    if arguments.junit:
        with replacing(arguments.junit) as file:
            file.write(junit(result))
    return 1 if report.mismatches else 0


def _functions(image: Image, names: list[str]) -> list[Symbol]:
    """Those of the names, or all."""
    if not names:
        return list(image.symbols.functions())
    return [symbol for name in names for symbol in sized_functions(image, name)]


def _read(name: str) -> dict[bytes, str]:
    try:
        if name == "-":
            lines = sys.stdin.buffer.read().decode("ascii", "replace").splitlines()
        else:
            with open(name, encoding="ascii", errors="replace") as file:
                lines = file.read().splitlines()
    except OSError as error:
        raise KinstError(f"{name}: cannot be read: {error.strerror}") from None
    found: dict[bytes, str] = {}
    for number, line in enumerate(lines, 1):
        text = re.sub(r"#.*|\s", "", line)
        if not text:
            continue
        if not re.fullmatch(r"([0-9a-fA-F]{2}){1,15}", text):
            raise KinstError(
                f"{name}:{number}: '{line[:40]}' is not an instruction of 1 to 15 hexadecimal bytes"
            )
        found.setdefault(bytes.fromhex(text), f"line {number}")
        if len(found) > MAX_ENCODINGS:
            raise KinstError(f"{name}: more than {MAX_ENCODINGS} encodings")
    return found


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("encodings", total=total)
        yield lambda done: bar.advance(task, done)
