"""``kinst trial``: test the verdicts and the executed code of a kinst module such as FreeBSD's."""

import argparse
import json
import random
import shlex
import sys
from pathlib import Path

from emu.arch.architectures import ARCHITECTURES, arch_of
from emu.elf.image import Image
from emu.host.atomic_file import replacing
from emu.host.errors import KinstError
from images import catalog
from kinst.code.survey import survey
from kinst.relocation.trap import TRAPS
from kinst.relocation.verdict import Copy
from kinst.verify.laboratory.encodings import Report, made_by
from kinst.verify.laboratory.finding import Finding, to_kept
from kinst.verify.laboratory.foreign import RelocatorTask
from kinst.verify.laboratory.memory_map import CODE
from kinst.verify.laboratory.protocol import identity
from kinst.verify.sweep.store import Key
from kinst.verify.sweep.sweep import sweep
from kinst.verify.trial.architecture import TRIALS
from kinst.verify.trial.verdicts import Verdicts
from kinst_emu.cli.assembler import assemble
from kinst_emu.cli.completion import kernel_option
from kinst_emu.cli.encodings import read_encodings
from kinst_emu.cli.sweeps import Sweep, compiler_of, progress_bar, sweep_options
from kinst_emu.cli.trials import (
    PROVIDERS,
    ExecutionTask,
    Setting,
    VerdictsTask,
    functions_of,
    located,
    sites_of,
)
from kinst_emu.report.page_file import write_page
from kinst_emu.report.relocate_report import Result, junit
from kinst_emu.report.relocate_report import as_json as relocations_as_json
from kinst_emu.report.relocate_report import show as show_relocations
from kinst_emu.report.trial_page import page
from kinst_emu.report.trial_report import as_json, show
from kinst_emu.terminal.terminal import parse_count, parse_size

COPIES, MEMORY = 52_000, "512M"
CHUNK, FUNCTIONS = 300, 400  # numbers of encodings and of functions per work item
MAX_STATES = 999
LOCATED = 40  # maximum number of kinds of mistakes for which source lines are looked up

EXAMPLES = (
    "kinst trial -k kernel malloc free",
    "kinst trial -k kernel --all --jobs 2 --store results.db --html trial.html",
    "kinst trial -k kernel --module ./kinst.ko --random 5000 --seed 7",
    "kinst trial -k kernel --assemble 'call *8(%r12)'",
    "kinst trial --arch arm64 --encodings list.txt --relocator 'python examples/relocator.py'",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst trial``."""
    kernel_option(parser, optional="required, except with --relocator and --arch")
    parser.add_argument("--relocator", metavar="PROGRAM",
                        help="test this program instead of a module; the program reads "
                        "instructions and prints how to relocate them (docs/trial.md); with --arch "
                        "and either --encodings or --assemble, no kernel is needed (default: test "
                        "the module)")
    parser.add_argument("--arch", choices=sorted(ARCHITECTURES),
                        help="with --relocator: architecture of the instructions (default: the "
                        "kernel's)")
    parser.add_argument("function", nargs="*", metavar="FUNCTION",
                        help="functions to test (required without --all, --random, --encodings "
                        "or --assemble)")
    parser.add_argument("--all", action="store_true",
                        help="test every function of the kernel (default: off)")
    parser.add_argument("--random", metavar="N",
                        help="test the verdicts on N random functions and the execution of N "
                        "random encodings (default: test FUNCTION or --all)")
    parser.add_argument("--encodings", metavar="FILE",
                        help="execute the instructions in this file, one per line, as hexadecimal "
                        "bytes in memory order; - reads standard input (default: the instructions "
                        "of the chosen functions)")
    parser.add_argument("--assemble", metavar="CODE",
                        help="execute these assembly instructions, separated by ';' (default: the "
                        "instructions of the chosen functions)")
    parser.add_argument("--provider", choices=sorted(PROVIDERS), default="kinst",
                        help="module to test; kinst: kinst.ko; fbt: the entry and return probes of "
                        "fbt.ko (default: %(default)s)")
    parser.add_argument("--part", choices=["verdicts", "execution"],
                        help="test only the module's verdicts, or only its execution of "
                        "instructions when probes fire (default: both)")
    parser.add_argument("--copies", metavar="N",
                        help="with --all: number of encodings with the verdict 'copy' to execute, "
                        "chosen at random; 'all' executes every encoding, which takes longer "
                        f"(default: {COPIES})")
    parser.add_argument("--states", default="2", metavar="N",
                        help="number of random initial states (default: %(default)s)")
    parser.add_argument("--seed", default="1", metavar="S",
                        help="random seed for the initial states and the samples (default: "
                             "%(default)s)")
    parser.add_argument("--memory", metavar="SIZE",
                        help="guest RAM, in MiB or with a suffix K, M or G (default: "
                        f"{MEMORY})")
    sweep_options(parser)
    parser.add_argument("--json", action="store_true",
                        help="print the report as JSON (default: text)")
    parser.add_argument("--junit", type=Path, metavar="FILE",
                        help="also write the report to this file as JUnit XML (default: no file)")
    parser.add_argument("--html", type=Path, metavar="FILE",
                        help="also write the report to this file as an HTML page (default: no "
                        "file)")


def run(arguments: argparse.Namespace) -> int:
    """Test the module or program, print the report, and return the exit status."""
    states, seed = (parse_count(getattr(arguments, name), f"--{name}")
                    for name in ("states", "seed"))
    if states > MAX_STATES:
        raise KinstError(f"--states {states}: at most {MAX_STATES} states are allowed")
    chosen = [bool(arguments.function), arguments.all, arguments.random is not None,
              arguments.encodings is not None, arguments.assemble is not None]
    if sum(chosen) != 1:
        raise KinstError("choose exactly one of functions, --all, --random N, --encodings FILE and "
                         "--assemble CODE")
    if arguments.copies is not None:
        if not arguments.all or arguments.provider != "kinst" or arguments.part == "verdicts":
            raise KinstError("--copies: works only with --all and --provider kinst, and without "
                             "--part verdicts; leave out --copies")
        if arguments.copies != "all":
            parse_count(arguments.copies, "--copies")
    if arguments.random is not None:
        parse_count(arguments.random, "--random")
    if arguments.encodings not in (None, "-") and not Path(arguments.encodings).exists():
        raise KinstError(f"--encodings {arguments.encodings}: the file does not exist")
    if arguments.store is not None and arguments.part == "verdicts":
        raise KinstError("--store: keeps only the results of executions; leave out --part verdicts")
    for name in ("junit", "html"):
        path = getattr(arguments, name)
        if path and not path.parent.is_dir():
            raise KinstError(f"--{name} {path}: the directory does not exist")
    if arguments.relocator is not None:
        return _foreign(arguments, seed, states)
    if arguments.kernel is None:
        raise KinstError("give a kernel (-k IMAGE), or a program with --relocator and --arch")
    if arguments.arch is not None:
        raise KinstError("--arch: works only with --relocator; leave it out, since the kernel "
                         "determines the architecture")
    provider = arguments.provider
    image = catalog.find(arguments.kernel, arguments.module or [f"{provider}.ko"])
    setting = Setting(str(image.path.absolute()),
                      tuple(str(m.path.absolute()) for m in image.modules),
                      parse_size(arguments.memory or MEMORY), seed, states, provider,
                      image.identity)
    arch = arch_of(image).name
    given = arguments.encodings is not None or arguments.assemble is not None
    if given and arguments.part == "verdicts":
        raise KinstError("--part verdicts: give functions instead of --encodings or --assemble")
    with Sweep(arguments) as jobs:
        compared = None
        if arguments.part != "execution" and arguments.encodings is arguments.assemble is None:
            compared = _compared(setting, image, arguments, jobs)
        report, places = Report(), dict[bytes, str]()
        if arguments.part != "verdicts":
            if provider == "fbt" and arguments.encodings is arguments.assemble is None:
                functions = _drawn(seed, arguments.random, functions_of(image, arguments.function))
                places = sites_of(setting, functions)
            else:
                places = _places(image, arch, arguments)
            _executed(setting, image, arch, places, jobs, report, given)
    words = " ".join(f"--module {shlex.quote(module)}" for module in setting.modules)
    words += f" --provider {provider}" if provider != "kinst" else ""
    words += f" --memory {shlex.quote(arguments.memory)}" if arguments.memory else ""
    result = Result(arch, seed, places, report, None,
                    f"kinst trial -k {shlex.quote(setting.kernel)} {words}")
    if arguments.json:
        print(json.dumps(as_json(result, compared, image)))
    else:
        show(result, compared, image)
    if arguments.junit:
        with replacing(arguments.junit) as file:
            file.write(junit(result, "kinst trial"))
    if arguments.html:
        write_page(arguments.html, page(result, compared, image), "kinst")
    return report.status


def _foreign(arguments: argparse.Namespace, seed: int, states: int) -> int:
    """Test a relocator program by executing the code that it returns, in flat memory."""
    if arguments.provider != "kinst":
        raise KinstError("--provider: cannot be used with --relocator")
    for option in ("module", "part", "html", "memory"):
        if getattr(arguments, option):
            raise KinstError(f"--{option}: cannot be used with --relocator")
    image = None if arguments.kernel is None else catalog.find(arguments.kernel)
    if image is not None:
        arch = arch_of(image).name
        if arguments.arch not in (None, arch):
            raise KinstError(f"--arch {arguments.arch}: {image.path} is for {arch}; leave out "
                             "--arch")
        places = _places(image, arch, arguments)
    elif arguments.arch is None or arguments.encodings is arguments.assemble is None:
        raise KinstError("--relocator: needs a kernel (-k IMAGE), or --arch with --encodings or "
                         "--assemble")
    else:
        arch = arguments.arch
        places = given_encodings(arguments, arch)
    report, by_code = Report(), dict[bytes, Finding]()
    program = identity(arguments.relocator)
    key = Key("relocator", f"{program} by {made_by(arch)}", arch, seed,
              states)
    with Sweep(arguments) as jobs, progress_bar(len(places), "encodings") as progress:
        given = arguments.encodings is not None or arguments.assemble is not None
        if jobs.store is not None and image is not None and not given:
            jobs.store.begin(key, image.kernel_identity, str(image.path), compiler_of(image.path),
                             places)
        task = RelocatorTask(arguments.relocator, arch, seed, states, program)
        for findings in sweep(task, list(places), jobs.workers, jobs.store, key, CHUNK):
            by_code |= {one.code: one for one in findings}
            progress(len(findings))
    for code in places:
        report.add(by_code[code])
    result = Result(arch, seed, places, report, None, f"kinst trial --arch {arch} --relocator "
                    f"{shlex.quote(arguments.relocator)}")
    if arguments.json:
        print(json.dumps(relocations_as_json(result)))
    else:
        show_relocations(result)
    if arguments.junit:
        with replacing(arguments.junit) as file:
            file.write(junit(result, "kinst trial"))
    return report.status


def _drawn(seed: int, wanted: str | None, found: list) -> list:  # type: ignore[type-arg]
    if wanted is None:
        return found
    count = parse_count(wanted, "--random")
    return random.Random(seed).sample(found, min(count, len(found)))


def _compared(setting: Setting, image: Image, arguments: argparse.Namespace,
              jobs: Sweep) -> Verdicts:
    """Compare the module's verdicts on the chosen functions with the verdicts of kinst-emu."""
    functions = functions_of(image, arguments.function)
    functions = _drawn(setting.seed, arguments.random, functions)
    names = [(function.name, function.address) for function in functions]
    parts = [names[at : at + FUNCTIONS] for at in range(0, len(names), FUNCTIONS)]
    verdicts = Verdicts()
    with progress_bar(len(names), "functions") as progress:
        for done in jobs.workers.done(VerdictsTask(setting), parts):
            for one in done.results:
                verdicts.merge(one)
            progress(len(done.items))
    return verdicts


def given_encodings(arguments: argparse.Namespace, arch: str) -> dict[bytes, str]:
    """Return the encodings given with ``--assemble`` or ``--encodings``, each with its text."""
    if arguments.assemble is not None:
        return {code: text for text, code in assemble(arch, arguments.assemble)}
    encodings = read_encodings(arguments.encodings)
    if not encodings:
        raise KinstError(f"{arguments.encodings}: the file contains no instructions")
    return encodings


def _places(image: Image, arch: str, arguments: argparse.Namespace) -> dict[bytes, str]:
    """Return the encodings to execute, each with its place in the kernel or its source text."""
    if arguments.assemble is not None or arguments.encodings is not None:
        return given_encodings(arguments, arch)
    surveyed = survey(ARCHITECTURES[arch], TRAPS[arch], image,
                      functions_of(image, arguments.function))
    seed = parse_count(arguments.seed, "--seed")
    codes = sorted(surveyed.places)
    if arguments.random is not None:
        codes = _drawn(seed, arguments.random, codes)
    elif arguments.all and arguments.copies != "all":
        copies = [code for code in codes
                  if isinstance(TRAPS[arch].instructions.classify(code, CODE)[1], Copy)]
        count = COPIES if arguments.copies is None else parse_count(arguments.copies, "--copies")
        drawn = set(random.Random(seed).sample(copies, min(count, len(copies))))
        others = set(codes).difference(copies)
        codes = [code for code in codes if code in drawn or code in others]
    return {code: surveyed.places[code] for code in codes}


def _executed(setting: Setting, image: Image, arch: str, places: dict[bytes, str], jobs: Sweep,
              report: Report, given: bool) -> None:
    modules = ", ".join(f"{m.name} {m.file.build_id or m.file.digest[:32]}"
                        for m in reversed(image.modules))  # the tested module comes first
    judge = made_by(arch, "kinst.verify.trial", "emu.machine.call")
    key = Key("trial", f"{setting.provider}: {modules}; by {judge}", arch, setting.seed,
              setting.states)
    if jobs.store is not None and not given:
        jobs.store.begin(key, image.kernel_identity, setting.kernel, compiler_of(image.path),
                         places)
    by_code: dict[bytes, Finding] = {}
    with progress_bar(len(places), "encodings") as progress:
        for findings in sweep(ExecutionTask(setting), list(places), jobs.workers, jobs.store, key,
                              CHUNK, most=1):
            by_code |= {one.code: one for one in findings}
            progress(len(findings))
    for code in places:
        report.add(by_code[code])
    _locate(setting, arch, report)
    if jobs.store is not None:
        jobs.store.put(key, list(map(to_kept, report.mismatches)))


def _locate(setting: Setting, arch: str, report: Report) -> None:
    """Add to each mismatch the source lines of the module that decided on the instruction."""
    disassemble, seen = ARCHITECTURES[arch].disassemble, dict[tuple[str, str], str]()
    for number, mismatch in enumerate(report.mismatches):
        kind = mismatch.word, disassemble(mismatch.code, CODE).split()[0]
        if kind not in seen and len(seen) < LOCATED:
            if sys.stderr.isatty():
                print(f"looking for the source lines that decided on {kind[1]}", file=sys.stderr)
            seen[kind] = located(setting, mismatch, TRIALS[arch].nothing)
        report.mismatches[number] = mismatch.at(seen.get(kind, ""))
