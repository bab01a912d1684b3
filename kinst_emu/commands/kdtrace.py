"""The ``kdtrace`` command: dtrace(1)'s face on the emulated kernel."""

import argparse
import functools
import sys
from pathlib import Path

from dtrace.actions import Action, Stack
from dtrace.calls import Evaluation, Statement, check, parse
from dtrace.debug_data import debug_index
from dtrace.description import Description, create
from dtrace.description import parse as parse_description
from dtrace.prototypes import Prototypes
from dtrace.stack import DEFAULT_FRAMES, failure
from emu.appending import appending
from emu.call import DEFAULT_LIMIT, Caller, CallError
from emu.elf import Image
from emu.errors import KinstError
from emu.machine import Machine
from emu.progress import PROGRESS
from emu.qemu.machine import QemuMachine
from emu.unicorn.machine import UnicornMachine
from images import catalog
from images.boots import BootError, at_start, boot_to_prompt, booted
from kinst.breakpoints import DIRECT, PATHS, PER_PROBE, THREAD, Breakpoints
from kinst.code.verdict import Refuse
from kinst.probe_table import Probe, ProbeTable
from kinst.seam_breakpoints import SeamBreakpoints
from kinst.trap import CpuState
from kinst_emu import script
from kinst_emu.completion import complete, kernel_option
from kinst_emu.examples import show_examples
from kinst_emu.explain.explained import source_trees
from kinst_emu.shared_output import shared
from kinst_emu.terminal import check_writable, parse_count, parse_size, run_command
from kinst_emu.trace import Trace
from kinst_emu.trace_output import Json, Text, TraceOutput
from kinst_emu.trace_page.collected import Collected, Watched
from kinst_emu.trace_page.page import write

PROGRAM_OPTIONS = ("-s", "-x", "-i", "-F", "-C", "-w", "-Z", "-e", "-b", "-V", "-S")
PROGRAM_WORDS = ("--emit-elf", "--plot", "--replay")
OWN = ("dtrace:", "profile:", "profile-", "tick-", "BEGIN", "END", "ERROR")  # DTrace's own probes
BOOT = "boot"  # the workload that is no call
EXAMPLES = (
    "kdtrace -k teaching/amd64 -n kinst::strlen: -c 'strlen(\"hello\")'",
    "kdtrace -k kernel -n fbt::malloc: -c 'malloc(100, &M_TEMP, 2)'",
    "kdtrace -k kernel -n kinst::critical_enter:entry --stack -c 'malloc(100, &M_TEMP, 2)'",
    "kdtrace -k kernel --trap-path direct -n 'fbt::vfs_mountroot*:entry' -c boot",
    "kdtrace -k kernel -l -n 'fbt::uma_*:'",
)


def main() -> None:
    run_command("dtrace", _main)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kdtrace")
    show_examples(parser, "traces the instructions of a kernel that runs inside Python; with a D "
                  "program (-s FILE, or a predicate and actions after a description), and without "
                  "-k, it takes dtrace(1)'s options", EXAMPLES)
    add = parser.add_argument
    kernel_option(parser)
    for option, last, text in (
        ("-n", "name", "kinst::FUNCTION:OFFSET, kinst::FUNCTION: for every instruction, "
         "fbt::FUNCTION:entry or :return; parts may be shell patterns"),
        ("-f", "function", "all probes of [[PROVIDER:]MODULE:]FUNCTION"),
        ("-m", "module", "all probes of [PROVIDER:]MODULE"), ("-P", "provider", "of PROVIDER"),
    ):
        add(option, dest="descriptions", action="append", default=[], metavar=last.upper(),
            type=functools.partial(parse_description, last=last), help=text)
    add("-c", dest="call", metavar="WORKLOAD",
        help="what to run: a call, e.g. 'strlen(\"hello\")', or 'boot'")
    add("-d", dest="rewritten", action="store_true",
        help="print the program with inline functions rewritten to their copies")
    add("-l", dest="listing", action="store_true",
        help="list probes, do not run; all of fbt, if none are described")
    add("-o", dest="output", metavar="FILE", help="append what is printed to FILE")
    add("--json", action="store_true", help="print one JSON object per line")
    add("--report", type=Path, metavar="FILE",
        help="write a page of the whole trace: code with counts, a timeline, stacks")
    add("--sources", type=Path, metavar="DIR", action="append", default=[],
        help="a tree with the kernel's source, whose lines --report shows; may be repeated")
    add("--digest", action="store_true",
        help="print the SHA-256 of memory, registers, devices, clock and console at the end")
    add("-v", dest="verbose", action="store_true",
        help="with -l: also what is not probed, and why")
    add("-q", dest="quiet", action="store_true", help="print only what actions print")
    add("--stack", nargs="?", metavar="N", const=str(DEFAULT_FRAMES),
        help="print the stack at each firing, at most N frames (%(const)s), with inline functions "
        "and source lines")
    add("--machine", choices=("unicorn", "qemu"), default="unicorn",
        help="qemu: the booted kernel is carried to QEMU, whose CPU takes the exceptions (as "
        "--trap-path double)")
    add("--trap-path", choices=PATHS, default=PATHS[0],
        help="guest: through the kernel's own vectors; direct: at the breakpoint, faster; "
        "double: as guest, also for the second breakpoint, after the displaced instruction, on "
        "arm64 and riscv64")
    add("--trampolines", choices=(PER_PROBE, THREAD), default=PER_PROBE,
        help="one for each probe, or, as in FreeBSD, for each thread (amd64)")
    add("--unchecked", action="store_true",
        help="-c: pass the arguments as they are, whatever the function's type is, and show the "
        "plain result")
    add("--unsafe", action="store_true", help="probe excluded functions, too")
    add("--memory", default="512M", metavar="SIZE", help="guest RAM (%(default)s)")
    add("--limit", default=str(DEFAULT_LIMIT), metavar="N",
        help="instructions after which the workload is given up (%(default)s)")
    return parser


def _is_program(arguments: list[str]) -> bool:
    """Whether a command line has D programs, or no kernel: dtrace(1)'s own options then."""
    if not arguments or {"-h", "--help"} & set(arguments):
        return False
    kernel = any(a == "--kernel" or a.startswith(("-k", "--kernel=")) for a in arguments)
    return not kernel or any("{" in a or a[:2] in PROGRAM_OPTIONS or a.startswith(PROGRAM_WORDS)
                             or a.startswith(OWN) for a in arguments)


def _main() -> int:
    if _is_program(sys.argv[1:]):
        return script.trace(sys.argv[1:])
    parser = _parser()
    complete(parser)
    arguments = parser.parse_args()
    if not arguments.descriptions:
        if not arguments.listing:
            raise KinstError("no probes specified; give one, like: -n 'kinst::strlen:'")
        arguments.descriptions = [Description("")]
    limit = parse_count(arguments.limit, "--limit")
    frames = None if arguments.stack is None else parse_count(arguments.stack, "--stack")
    image = catalog.find(arguments.kernel, arguments.module)
    prototypes = None if arguments.unchecked else Prototypes(image)
    program = None if arguments.listing else _program(image, arguments.call, prototypes)
    memory = parse_size(arguments.memory)
    output: TraceOutput = (Json if arguments.json else Text)(arguments.quiet)
    if arguments.report is not None:
        if arguments.listing or arguments.machine == "qemu":
            raise KinstError("--report: is of a trace on our own machine: not with -l, nor with "
                             "--machine qemu")
        check_writable(arguments.report, "--report")
        source_trees(image, arguments.sources)
    elif arguments.sources:
        raise KinstError("--sources: is for --report")
    if arguments.output is not None:
        _append_to(arguments.output)
    if arguments.machine == "qemu" and not arguments.listing:
        return _on_qemu(arguments, image, program, memory, limit, frames, prototypes, output)
    if arguments.call == BOOT and not arguments.listing:
        machine = UnicornMachine(image, memory)
        machine.boot()
        at_start(machine)
    else:
        machine = booted(image, memory)
        machine.console.text.clear()
    breakpoints = Breakpoints(
        machine, path=arguments.trap_path, trampolines=arguments.trampolines,
        records=not arguments.quiet or arguments.report is not None,
    )
    collected = Collected(catalog.described(image), arguments.call or "",
                          tuple(arguments.sources))
    if arguments.report is not None:
        output = Watched(output, collected, frames is not None)
    trace = Trace(breakpoints, output, _actions(machine, frames))
    with PROGRESS.working("making the probes"):
        _make(breakpoints, arguments, output)
    if arguments.listing:
        _list(breakpoints, arguments.verbose, output)
        return 0
    try:
        return _trace(trace, program, arguments.call, limit, prototypes, arguments.digest)
    finally:
        if arguments.report is not None:
            write(arguments.report, collected, breakpoints)


def _actions(machine: Machine, frames: int | None) -> list[Action]:
    """What a firing is to do besides being listed."""
    return [] if frames is None else [Stack(machine, frames)]


def _append_to(name: str) -> None:
    """What is printed goes to the end of a file, as dtrace -o puts it."""
    try:
        sys.stdout = shared(appending(name, "backslashreplace"))
    except OSError as error:
        raise KinstError(f"-o {name}: cannot be written: {error.strerror}") from None


def _make(
    breakpoints: ProbeTable, arguments: argparse.Namespace, output: TraceOutput
) -> None:
    """Make the probes that were asked for, and say how many."""
    for wanted in arguments.descriptions:
        made = create(breakpoints, wanted, arguments.unsafe,
                      functools.partial(debug_index, breakpoints.image))
        count = len(made.numbers)
        for report in made.reports:
            print(f"dtrace: not probed: {report}", file=sys.stderr)
        if arguments.rewritten:
            output.rewritten(made.text)
        if not arguments.quiet and not arguments.listing:
            plural = "" if count == 1 else "s"
            print(f"dtrace: description '{wanted.text}' matched {count} probe{plural}",
                  file=sys.stderr)


def _on_qemu(
    arguments: argparse.Namespace, image: Image, program: list[Statement] | None, memory: int,
    limit: int, frames: int | None, prototypes: Prototypes | None, output: TraceOutput,
) -> int:
    """The same on QEMU: the breakpoints go through the kernel's own vectors there."""
    if program is None or arguments.trap_path == DIRECT or arguments.trampolines != PER_PROBE:
        raise KinstError("--machine qemu runs calls on a booted kernel, by the guest's trap path, "
                         "with a trampoline for each probe: not -c boot, --trap-path=direct, "
                         "--trampolines=thread")
    if arguments.digest:
        raise KinstError("--machine qemu: no --digest (its devices and its clock are its own)")
    if arguments.unsafe or limit != DEFAULT_LIMIT:
        raise KinstError("--machine qemu: no --unsafe (a probe on the breakpoints' own path would "
                         "never end there) and no --limit (QEMU does not count "
                         "instructions; a call is given up after a minute)")
    machine = booted(image, memory)
    with QemuMachine.carry(machine) as other:
        probes = SeamBreakpoints(other)
        _make(probes, arguments, output)
        actions = _actions(other, frames)

        def fire(probe: Probe, state: CpuState) -> None:
            output.firing(probe, lines=[line for a in actions for line in a.lines(state.get)])

        probes.fire = fire
        output.begin()
        failed = ""
        try:
            probes.enable()
            evaluation = Evaluation(Caller(other, limit), prototypes)
            value = evaluation.run(program)
            probes.disable()
        except CallError as error:
            failed = str(error)
            raise
        finally:
            for byte in bytes(other.console.text):
                output.byte(byte)
            output.end_line()
            if failed:
                output.failure(failed, ())
        output.result(other, arguments.call, evaluation.kind, value)
    return 0


def _program(
    image: Image, call: str | None, prototypes: Prototypes | None
) -> list[Statement] | None:
    """The calls of a workload; None: it is the boot."""
    if call is None:
        raise KinstError("nothing to run; give a call, like: -c 'strlen(\"hello\")', or -c boot")
    if call == BOOT:
        return None
    program = parse(call)
    check(image, program, prototypes)
    return program


def _list(breakpoints: Breakpoints, verbose: bool, output: TraceOutput) -> None:
    output.listing()
    for number in range(len(breakpoints.probes)):
        output.listed(number + 1, *breakpoints.names(number))
    if verbose:
        arch = breakpoints.machine.arch
        for function in breakpoints.functions:
            for i in breakpoints.instructions(function):
                if isinstance(i.verdict, Refuse):
                    output.left_out(f"{function.name}:{i.offset}",
                                    arch.disassemble(i.code, i.address), i.verdict.reason,
                                    function.module_name)
        for name, reason in breakpoints.left_out.items():
            output.left_out(name, "", reason)


def _trace(trace: Trace, program: list[Statement] | None, call: str, limit: int,
           prototypes: Prototypes | None, digest: bool) -> int:
    breakpoints, output = trace.breakpoints, trace.output
    machine = breakpoints.machine
    output.begin()
    for byte in bytes(machine.console.text):  # what was said before there were probes
        trace.byte(byte)
    breakpoints.dispatcher.sink = trace.rows
    machine.console.stream = trace.byte
    with PROGRESS.working("enabling the probes"):
        breakpoints.enable()
    evaluation, value, failed = None, 0, ""
    try:
        with PROGRESS.working("running, traced"), trace.streaming():
            if program is None:
                boot_to_prompt(machine, limit)
            else:
                evaluation = Evaluation(Caller(machine, limit), prototypes)
                value = evaluation.run(program)
    except (CallError, BootError) as error:
        failed = str(error)
        raise
    else:
        breakpoints.disable()
    finally:
        trace.rows()
        output.end_line()
        if failed:
            output.failure(failed, failure(machine))
    if evaluation is not None:
        output.result(machine, call, evaluation.kind, value)
    if digest:
        output.digest(machine.digest())
    return 0


if __name__ == "__main__":
    main()
