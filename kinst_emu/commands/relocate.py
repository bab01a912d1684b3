"""``kinst relocate``: test every displaced instruction against its execution in place."""

import argparse
import json
from pathlib import Path

from dtrace.debug.symbols import sized_functions
from emu.arch.architectures import ARCHITECTURES, arch_of
from emu.elf.image import Image
from emu.elf.program import ProgramFile
from emu.elf.symbols import Symbol
from emu.guests.registry import guest_of
from emu.host.atomic_file import replacing
from emu.host.errors import KinstError
from images import catalog
from kinst.code.survey import survey, survey_program
from kinst.relocation.trap import NO_TRAMPOLINES, TRAPS, trap_of
from kinst.verify.laboratory.encodings import key_of, relocate
from kinst_emu.cli.assembler import assemble
from kinst_emu.cli.completion import kernel_option
from kinst_emu.cli.encodings import read_encodings
from kinst_emu.cli.sweeps import Sweep, compiler_of, progress_bar, sweep_options
from kinst_emu.report.relocate_report import Result, as_json, junit, show
from kinst_emu.terminal.terminal import parse_count

EXAMPLES = (
    "kinst relocate -k kernel malloc",
    "kinst relocate -k kernel --jobs 2",
    "kinst relocate --program sh --jobs 2",
    "kinst relocate --arch amd64 --assemble 'call *8(%r12)'",
    "kinst relocate --arch arm64 --encodings instructions.txt",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst relocate``."""
    kernel_option(parser, optional="required, except with --program, --encodings or --assemble")
    parser.add_argument("function", nargs="*", metavar="FUNCTION",
                        help="functions to test (default: all functions of the kernel)")
    parser.add_argument("--program", type=Path, metavar="FILE",
                        help="test the code of this FreeBSD program or shared object (default: "
                        "test the kernel)")
    parser.add_argument("--arch", choices=sorted(ARCHITECTURES),
                        help="architecture of the instructions (required with --encodings and "
                        "--assemble)")
    parser.add_argument("--encodings", metavar="FILE",
                        help="test the instructions in this file, one per line, as hexadecimal "
                        "bytes in memory order; - reads standard input (default: test the kernel)")
    parser.add_argument("--assemble", metavar="CODE",
                        help="test these assembly instructions, separated by ';', e.g. "
                        "'call *8(%%r12)' or 'call [r12 + 8]' (default: test the kernel)")
    parser.add_argument("--states", default="2", metavar="N",
                        help="number of random initial states (default: %(default)s)")
    parser.add_argument("--seed", default="1", metavar="S",
                        help="random seed for the initial states (default: %(default)s)")
    sweep_options(parser)
    parser.add_argument("--judge", choices=["host"],
                        help="also execute the instructions on the host's own CPU, in a separate "
                        "process; needs an x86-64 host and amd64 code (default: only emulate)")
    parser.add_argument("--json", action="store_true",
                        help="print the report as JSON (default: text)")
    parser.add_argument("--junit", type=Path, metavar="FILE",
                        help="also write the report to this file as JUnit XML (default: no file)")


def run(arguments: argparse.Namespace) -> int:
    """Test the chosen instructions, print the report, and return the exit status."""
    states = parse_count(arguments.states, "--states")
    seed = parse_count(arguments.seed, "--seed")
    if arguments.junit and not arguments.junit.parent.is_dir():
        raise KinstError(f"--junit {arguments.junit}: the directory does not exist")
    surveyed = None
    identity = path = None
    if arguments.assemble is not None:
        arch = arguments.arch
        places = {code: text for text, code in assemble(arch, arguments.assemble)}
    elif arguments.encodings is not None:
        arch, places = arguments.arch, read_encodings(arguments.encodings)
        if not places:
            raise KinstError(f"{arguments.encodings}: the file contains no instructions")
    elif arguments.kernel:
        image = catalog.find(arguments.kernel, arguments.module)
        arch = arch_of(image).name
        if arguments.arch and arguments.arch != arch:
            raise KinstError(f"--arch {arguments.arch}: {image.path} is for {arch}; leave out "
                             "--arch")
        if trap_of(guest_of(image, arch), arch).kernel_effects:
            raise KinstError(f"{image.path}: no instruction can be relocated, because "
                             f"{NO_TRAMPOLINES}")
        surveyed = survey(ARCHITECTURES[arch], TRAPS[arch], image,
                          _functions(image, arguments.function))
        places, identity, path = surveyed.places, image.identity, image.path
    elif arguments.program is not None:
        program = ProgramFile(arguments.program, movable=True)
        arch, path = arch_of(program).name, program.path
        if arguments.arch and arguments.arch != arch:
            raise KinstError(f"--arch {arguments.arch}: {path} is for {arch}; leave out --arch")
        surveyed = survey_program(ARCHITECTURES[arch], TRAPS[arch], program)
        places, identity = surveyed.places, program.digest
    else:
        raise KinstError("give a kernel (-k IMAGE), a program (--program FILE), or --arch with "
                         "--encodings or --assemble")
    host = arguments.judge == "host"
    with Sweep(arguments) as jobs:
        if jobs.store is not None and identity is not None and path is not None:
            jobs.store.begin(key_of(arch, seed, states, host), identity, str(path),
                             compiler_of(path), places)
        with progress_bar(len(places), "encodings") as progress:
            report = relocate(arch, list(places), seed, states, jobs.workers, progress, host,
                              jobs.store)
    result = Result(arch, seed, places, report, surveyed)
    if arguments.json:
        print(json.dumps(as_json(result)))
    else:
        show(result)
    if arguments.junit:
        with replacing(arguments.junit) as file:
            file.write(junit(result))
    return report.status


def _functions(image: Image, names: list[str]) -> list[Symbol]:
    """Return the named functions, or all functions if no name is given."""
    if not names:
        return list(image.symbols.functions())
    return [symbol for name in names for symbol in sized_functions(image, name)]
