"""The command line of kdtrace: dtrace(1)'s options, and those about a kernel."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from dtrace.d.language.options import OptionError, Options
from dtrace.stacks.stack import DEFAULT_FRAMES, MAX_FRAMES
from emu.host.errors import KinstError
from emu.machine.call import DEFAULT_LIMIT
from kinst.probes.breakpoints import PATHS, PER_PROBE, THREAD
from kinst.probes.breakpoints import Path as TrapPath
from kinst_emu.cli.boot_words import cpus_option
from kinst_emu.cli.completion import complete, kernel_option
from kinst_emu.cli.conflicts import SCHEDULED, refuse
from kinst_emu.cli.examples import show_examples
from kinst_emu.terminal.terminal import RAW, let_through, parse_count

# The part that is the last of a description, by the option's letter.
LAST = {"P": "provider", "m": "module", "f": "function"}
FLAGS = {"q": "quiet", "F": "flowindent", "w": "destructive", "C": "cpp", "Z": "zdefs"}
UNICORN, QEMU = "unicorn", "qemu"
BOOT, COMMAND = "boot", "$"  # workloads that are no call; the second, how one begins
EXAMPLES = (
    "kdtrace -k teaching/amd64 -n kinst::strlen: -c 'strlen(\"hello\")'",
    "kdtrace -k kernel -n fbt::malloc: -c 'malloc(100, &M_TEMP, 2)'",
    "kdtrace -k kernel -n 'fbt::malloc:entry { @[stack()] = count(); }' -c boot",
    "kdtrace -k kernel -n kinst::critical_enter:entry --stack -c 'malloc(100, &M_TEMP, 2)'",
    "kdtrace -k kernel --trap-path direct -n 'fbt::vfs_mountroot*:entry' -c boot",
    "kdtrace -k kernel -s script.d -c 'malloc(100, &M_TEMP, 2)'",
    "kdtrace -k kernel -l -n 'fbt::uma_*:'",
    "kdtrace -n 'BEGIN { trace(1 + 2); exit(0); }'",
)
USAGE = """Usage: kdtrace [-CdeFhlqSvVwZ] [-b bufsz] [-D name[=def]]
\t[-I path] [-o output] [-s script] [-U name]
\t[-x opt[=val]] [-X a|c|s|t]

\t[-P provider [[ predicate ] action ]]
\t[-m [ provider: ] module [[ predicate ] action ]]
\t[-f [[ provider: ] module: ] func [[ predicate ] action ]]
\t[-n [[[ provider: ] module: ] func: ] name [[ predicate ] action ]]
\t[-i probe-id [[ predicate ] action ]] [ args ... ]

\tpredicate -> '/' D-expression '/'
\t   action -> '{' D-statements '}'

\ta kernel: [-k kernel] [-c call | -c boot] [--replay recording] [--module file.ko]
\t[--stack[=frames]] [--machine unicorn|qemu] [--json] [--report file]

kdtrace --help says what each is
"""


FLAG = re.compile(r"-\d")


def last_part(letter: str) -> str:
    """The part of a description that its last word is, by the letter of its option."""
    return LAST.get(letter, "name")


class UsageError(Exception):
    """The command line is none."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


class _Program(argparse.Action):
    """-P, -m, -f, -n, -i and -s, in the order in which they were given."""

    def __call__(self, _parser: argparse.ArgumentParser, namespace: argparse.Namespace,
                 value: object, option: str | None = None) -> None:
        assert option is not None
        namespace.programs = [*namespace.programs, (option[1], str(value))]


class _Set(argparse.Action):
    """What sets an option of D's: (name, value, how it was written), in their order."""

    def __call__(self, _parser: argparse.ArgumentParser, namespace: argparse.Namespace,
                 value: object, option: str | None = None) -> None:
        assert option is not None
        letter = option[1]
        if letter == "x":
            name, mark, text = str(value).partition("=")
            row = name, text if mark else None, f"-x {name}"
        elif letter == "b":
            row = "bufsize", str(value), f"-b {value}"
        else:
            row = FLAGS[letter], None, f"-{letter}"
        namespace.options = [*namespace.options, row]


class _Macro(argparse.Action):
    """-D, -U and -I, for the preprocessor."""

    def __call__(self, _parser: argparse.ArgumentParser, namespace: argparse.Namespace,
                 value: object, option: str | None = None) -> None:
        assert option is not None
        namespace.preprocess = [*namespace.preprocess, f"-{option[1]}{value}"]


class _Raw(argparse.Action):
    def __call__(self, *_: object) -> None:
        let_through()


class _Included(argparse.Action):
    """-H, for the preprocessor."""

    def __call__(self, _parser: argparse.ArgumentParser, namespace: argparse.Namespace,
                 _value: object, _option: str | None = None) -> None:
        namespace.preprocess = [*namespace.preprocess, "-H"]


def make_parser() -> argparse.ArgumentParser:
    """The options, with their help."""
    parser = _Parser(prog="kdtrace", allow_abbrev=False)
    show_examples(parser, "traces a kernel that runs inside Python, or DTrace's own probes alone, "
                  "by D programs; a description without a predicate and actions is a clause with "
                  "the default action", EXAMPLES)
    parser.set_defaults(programs=[], options=[], preprocess=[])
    add = parser.add_argument
    for letters, name, what in (
        ("-n", "[[[PROVIDER:]MODULE:]FUNCTION:]NAME [/PREDICATE/ {ACTIONS}]",
         "trace these probes: kinst::FUNCTION:OFFSET, kinst::FUNCTION: for every instruction, "
         "fbt::FUNCTION:entry or :return; parts may be shell patterns"),
        ("-f", "[[PROVIDER:]MODULE:]FUNCTION ...", "all probes of a function"),
        ("-m", "[PROVIDER:]MODULE ...", "of a module"), ("-P", "PROVIDER ...", "of a provider"),
        ("-i", "ID ...", "the probe with an ID"), ("-s", "FILE", "a D program in a file"),
    ):
        add(letters, dest="programs", action=_Program, metavar=name, help=what)
    add("words", nargs="*", metavar="ARGUMENT", help="$1, $2 ... of the programs")
    kernel_option(parser, required=False)
    add("-c", dest="workload", metavar="WORKLOAD",
        help="what the kernel is to run: a call, e.g. 'strlen(\"hello\")', 'boot', or "
        "'$ COMMAND', a line for the shell of our userland; or a file of C with its arguments")
    add("-p", dest="process", metavar="PID",
        help="make $target this process, which is there when the workload begins; as the pid "
        "provider's, pid$target:::entry")
    add("--files", metavar="DIR", help="with -c '$ COMMAND': put the files of a folder into /files")
    add("--disk", action="append", default=[], metavar="FILE",
        help="the image of a disk; the first is the root file system.  What is written to it is "
        "forgotten in the end.  May be repeated")
    cpus_option(parser)
    add("--program", action="append", default=[], metavar="FILE",
        help="the file of a user's program, statically linked and with symbols: ustack() names its "
        "functions where a process has the file's name; our userland's are known; may be repeated")
    add("--schedule", metavar="ORDER",
        help="trace the calls of --run in this order, like 'A120 B A', as kinst explore gives it")
    add("--run", action="append", default=[], metavar="CALL", dest="runs",
        help="with --schedule: what one of them does; twice or more, the first is A")
    add("--setup", default="", metavar="CALLS", help="with --schedule: calls that are done before")
    add("--replay", metavar="FILE", help="trace a recording that is played instead")
    add("-l", dest="listing", action="store_true",
        help="list probes, do not run; all of DTrace's own and fbt's, if none are described")
    add("-v", dest="verbose", action="store_true",
        help="with -l: also what is not probed, and why")
    add("-d", dest="rewritten", action="store_true",
        help="print the program with inline functions rewritten to their copies")
    add("-o", dest="output", metavar="FILE", help="append what is printed to FILE")
    add("-q", action=_Set, nargs=0, help="print only what actions print")
    add("-L", dest="libraries", action="append", default=[], metavar="DIR",
        help="take in the libraries of a directory: declarations, inlines, translators in its .d "
        "files; may be repeated")
    add("-H", dest="preprocess", action=_Included, nargs=0,
        help="have the preprocessor print the files that are included")
    add("-64", dest="model", action="store_true", help="the data model, which is that of 64 bits")
    add("-F", action=_Set, nargs=0, help="indent by entry and return")
    add("-w", action=_Set, nargs=0, help="allow destructive actions")
    add("-x", action=_Set, metavar="OPTION[=VALUE]", help="set an option of D's (docs/d.md)")
    add("-b", action=_Set, metavar="SIZE", help="of the trace buffer, as -x bufsize=SIZE")
    add("-e", dest="compile_only", action="store_true", help="compile, do not run")
    add("-S", dest="show_code", action="store_true", help="show the code of each clause")
    add("-V", dest="version", action="store_true", help="print the version of D")
    add("-Z", action=_Set, nargs=0, help="permit descriptions that match no probe")
    add("-C", action=_Set, nargs=0, help="run the C preprocessor on programs in files")
    for letter, what in (("-D", "NAME[=VALUE]"), ("-U", "NAME"), ("-I", "DIR")):
        add(letter, dest="preprocess", action=_Macro, metavar=what, help="for the preprocessor")
    add("-X", dest="standard", choices=("a", "c", "s", "t"),
        help="the standard of C; the preprocessor is the same for all")
    for letter, why in (("-A", "anonymous tracing"), ("-a", "anonymous tracing"),
                        ("-G", "an ELF file of probes: --emit-elf FILE writes the code"),
                        ("-32", "data model of 32 bits: the kernels have 64"),
                        ("-O", "an object's data")):
        add(letter, dest="refused", action="append_const", const=(letter, why),
            help=argparse.SUPPRESS)
    add("--stack", nargs="?", metavar="N", const=str(DEFAULT_FRAMES),
        help="print the stack at each firing, at most N frames (%(const)s), with inline functions "
        "and source lines")
    add("--json", action="store_true", help="print one JSON object per line")
    add("--raw", action=_Raw, nargs=0, help=RAW)
    add("--report", type=Path, metavar="FILE",
        help="write a page of the whole trace: code with counts, a timeline, stacks")
    add("--sources", type=Path, metavar="DIR", action="append", default=[],
        help="a tree with the kernel's source, whose lines --report shows; may be repeated")
    add("--tracks", metavar="FILE",
        help="trace no probes of yours: write what the kernel and its programs do, for "
        "https://ui.perfetto.dev: processes, threads, system calls, page faults, interrupts and "
        "the time off the CPU, as tracks")
    add("--plot", metavar="FILE", help="draw the aggregations at the end: .svg or .png")
    add("--emit-elf", metavar="FILE", help="write the code of the programs as a BPF ELF object")
    add("--digest", action="store_true",
        help="print the SHA-256 of memory, registers, devices, clock and console at the end")
    add("--machine", choices=(UNICORN, QEMU), default=UNICORN,
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
    add("--memory", metavar="SIZE", help="guest RAM (512M)")
    add("--limit", metavar="N",
        help=f"instructions after which the workload is given up ({DEFAULT_LIMIT}; a recording's "
        "own with --replay)")
    return parser


@dataclass
class ProgramTexts:
    """The programs, and how they are compiled.

    :param programs: (letter, text) of -P, -m, -f, -n, -i and -s, in their order.
    :param words: ``$1`` and so on.
    :param frames: of ``--stack``.
    """

    programs: list[tuple[str, str]]
    words: list[str]
    options: Options
    preprocess: list[str]
    libraries: list[Path]
    frames: int | None


@dataclass(frozen=True)
class System:
    """The computer with the kernel, and how its breakpoints are taken."""

    kernel: str | None
    module: list[str]
    disks: list[Path]
    cpus: int | None
    memory: str | None
    machine: str
    trap_path: TrapPath
    trampolines: str
    unsafe: bool


@dataclass(frozen=True)
class Work:
    """What the kernel is to do meanwhile.

    :param limit: instructions after which it is given up.
    """

    workload: str | None
    files: Path | None
    process: int | None
    replay: Path | None
    schedule: str | None
    runs: tuple[str, ...]
    setup: str
    unchecked: bool
    limit: int | None
    user_programs: list[Path]


@dataclass(frozen=True)
class Shown:
    """What is printed and written.

    :param file: of ``-o``.
    """

    listing: bool
    verbose: bool
    rewritten: bool
    file: str | None
    compile_only: bool
    show_code: bool
    json: bool
    report: Path | None
    sources: list[Path]
    plot: str | None
    tracks: str | None
    emit_elf: str | None
    digest: bool


@dataclass(frozen=True)
class CommandLine:
    """What was asked for; the names are those of the options.

    :param version: of D, which is to be printed.
    """

    texts: ProgramTexts
    system: System
    work: Work
    shown: Shown
    version: bool

    @property
    def of_kernel(self) -> list[str]:
        """What was given that needs a kernel."""
        system, work, shown = self.system, self.work, self.shown
        return [option for option, wanted in (
            ("-c", work.workload is not None), ("--files", work.files is not None),
            ("--disk", bool(system.disks)), ("--cpus", system.cpus is not None),
            ("--schedule", work.schedule is not None), ("--program", bool(work.user_programs)),
            ("-p", work.process is not None), ("--tracks", shown.tracks is not None),
            ("--digest", shown.digest), ("--machine", system.machine != UNICORN),
            ("--report", shown.report is not None), ("--module", bool(system.module)),
            ("--memory", system.memory is not None), ("--limit", work.limit is not None),
            ("--unsafe", system.unsafe), ("--unchecked", work.unchecked),
            ("--trap-path", system.trap_path != PATHS[0]),
            ("--trampolines", system.trampolines != PER_PROBE)) if wanted]


def read_command_line(arguments: Sequence[str]) -> CommandLine:
    """:raises UsageError: for what is no command line.
    :raises KinstError: for what cannot be.
    """
    parser = make_parser()
    complete(parser)
    if not arguments:
        raise UsageError("")
    # What is behind "--" is no option, as getopt(3) has it: a number may be negative there.
    end = arguments.index("--") if "--" in arguments else len(arguments)
    given, unknown = parser.parse_known_intermixed_args(arguments[:end])
    if not unknown:
        unknown = [word for word in given.words if FLAG.fullmatch(word)]  # not a number's sign
    given.words += arguments[end + 1 :]
    if unknown:
        raise UsageError(f"illegal option -- {unknown[0].lstrip('-')}")
    for letter, why in given.refused or ():
        raise KinstError(f"{letter}: there is no {why}")
    options = Options()
    for name, value, shown in given.options:
        try:
            options.set(name, value)
        except OptionError as error:
            raise KinstError(f"failed to set {shown}: {error}") from None
    frames = None
    if given.stack is not None:
        frames = min(parse_count(given.stack, "--stack"), MAX_FRAMES)
        options.set("stackinline", None)
    if given.listing and given.version:
        raise UsageError("only one of the [-lV] options can be specified at a time")
    if not given.version:
        refuse("kdtrace", given, parser.get_default)
    if given.listing:
        options.values["zdefs"] = 1
    elif not (given.programs or given.version or given.compile_only or given.tracks is not None):
        raise KinstError("no probes specified; give one, like: -n 'kinst::strlen:'")
    line = CommandLine(
        ProgramTexts(given.programs, given.words, options, given.preprocess,
                     [Path(path) for path in given.libraries], frames),
        System(given.kernel, given.module, [Path(file) for file in given.disk], given.cpus,
               given.memory, given.machine, given.trap_path, given.trampolines, given.unsafe),
        Work(given.workload, _path(given.files),
             None if given.process is None else parse_count(given.process, "-p"),
             _path(given.replay), given.schedule, tuple(given.runs), given.setup, given.unchecked,
             None if given.limit is None else parse_count(given.limit, "--limit"),
             [Path(file) for file in given.program]),
        Shown(given.listing, given.verbose, given.rewritten, given.output, given.compile_only,
              given.show_code, given.json, given.report, given.sources, given.plot, given.tracks,
              given.emit_elf, given.digest),
        given.version)
    work = line.work
    if work.schedule is not None and (line.system.cpus or 1) > 1:
        raise KinstError(SCHEDULED)
    return line


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
