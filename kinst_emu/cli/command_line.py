"""The command line of kdtrace: the options of dtrace(1), and options for the traced kernel."""

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
from kinst_emu.cli.boot_words import (
    cpus_option,
    disk_option,
    idle_option,
    parse_idle,
    system_options,
)
from kinst_emu.cli.completion import complete, kernel_option
from kinst_emu.cli.conflicts import SCHEDULED, refuse
from kinst_emu.cli.device_words import DeviceWords, device_options, device_words
from kinst_emu.cli.examples import show_examples
from kinst_emu.terminal.terminal import RAW, let_through, parse_count

# Last field of the probe descriptions that an option takes, keyed by the option's letter.
LAST = {"P": "provider", "m": "module", "f": "function"}
FLAGS = {"q": "quiet", "F": "flowindent", "w": "destructive", "C": "cpp", "Z": "zdefs"}
UNICORN, QEMU = "unicorn", "qemu"
BOOT, COMMAND = "boot", "$"  # name of the workload "boot", and prefix of a shell command
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
USAGE = """Usage: kdtrace [-CdeFGhlqSvVwZ] [-b bufsz] [-D name[=def]]
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

kdtrace --help describes the options
"""


FLAG = re.compile(r"-\d")


def last_part(letter: str) -> str:
    """Return the part that ends an option's probe description, such as ``function`` for ``-f``."""
    return LAST.get(letter, "name")


class UsageError(Exception):
    """Error raised if a command line cannot be parsed."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise UsageError in place of exiting, so that the caller prints the usage."""
        raise UsageError(message)


class _Program(argparse.Action):
    """Argparse action that collects -P, -m, -f, -n, -i and -s as (letter, text) in order."""

    def __call__(self, _parser: argparse.ArgumentParser, namespace: argparse.Namespace,
                 value: object, option: str | None = None) -> None:
        assert option is not None
        namespace.programs = [*namespace.programs, (option[1], str(value))]


class _Set(argparse.Action):
    """Argparse action that collects D options as (name, value, spelling for messages) in order."""

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
    """Argparse action that collects -D, -U and -I for the preprocessor."""

    def __call__(self, _parser: argparse.ArgumentParser, namespace: argparse.Namespace,
                 value: object, option: str | None = None) -> None:
        assert option is not None
        namespace.preprocess = [*namespace.preprocess, f"-{option[1]}{value}"]


class _Raw(argparse.Action):
    def __call__(self, *_: object) -> None:
        let_through()


class _Included(argparse.Action):
    """Argparse action that passes -H to the preprocessor."""

    def __call__(self, _parser: argparse.ArgumentParser, namespace: argparse.Namespace,
                 _value: object, _option: str | None = None) -> None:
        namespace.preprocess = [*namespace.preprocess, "-H"]


def make_parser() -> argparse.ArgumentParser:
    """Return the parser with all options and their help."""
    parser = _Parser(prog="kdtrace", allow_abbrev=False, add_help=False)
    show_examples(parser, "trace a kernel that runs inside Python, or only DTrace's own probes, "
                  "with D programs; a probe description without a predicate or actions is a "
                  "clause with the default action", EXAMPLES)
    parser.set_defaults(programs=[], options=[], preprocess=[])
    add = parser.add_argument
    for letters, name, what in (
        ("-n", "[[[PROVIDER:]MODULE:]FUNCTION:]NAME [/PREDICATE/ {ACTIONS}]",
         "trace the probes that match a description: kinst::FUNCTION:OFFSET, kinst::FUNCTION: for "
         "every instruction, fbt::FUNCTION:entry or :return; parts may be shell patterns (default: "
         "no probes)"),
        ("-f", "[[PROVIDER:]MODULE:]FUNCTION ...",
         "trace all probes of a function (default: none)"),
        ("-m", "[PROVIDER:]MODULE ...", "trace all probes of a module (default: none)"),
        ("-P", "PROVIDER ...", "trace all probes of a provider (default: none)"),
        ("-i", "ID ...", "trace the probe with this ID, as listed by -l (default: none)"),
        ("-s", "FILE", "run the D program in a file; - reads standard input (default: no file)"),
    ):
        add(letters, dest="programs", action=_Program, metavar=name, help=what)
    add("words", nargs="*", metavar="ARGUMENT", help="macro arguments $1, $2 ... of the programs "
        "(default: none)")
    kernel_option(parser, optional="default: no kernel")
    add("-c", dest="workload", metavar="WORKLOAD",
        help="run a workload on the kernel: calls, e.g. 'strlen(\"hello\")'; 'boot'; '$ COMMAND', "
        "a line for the shell of the kinst-emu userland, or with --base or --disk for that "
        "system's root shell; or a C file with its arguments (default: none; the guest waits while "
        "probes fire at intervals)")
    add("-p", dest="process", metavar="PID",
        help="process ID of the guest process for $target, e.g. in pid$target:::entry; the process "
        "must exist when the workload starts (default: the first process of -c '$ COMMAND')")
    add("--files", metavar="DIR",
        help="with -c '$ COMMAND', --base or --disk: copy the files of this host directory into "
        "the guest's /files (default: no files)")
    disk_option(parser)
    system_options(parser)
    device_options(parser)
    idle_option(parser)
    cpus_option(parser)
    add("--program", action="append", default=[], metavar="FILE",
        help="read the symbols of this statically linked user program; ustack() then shows "
        "function names in processes that run a program with this file name; may be repeated "
        "(default: only the programs of the kinst-emu userland)")
    add("--sysroot", type=Path, metavar="DIR",
        help="read the programs and shared objects of the guest, and their symbols in "
        "usr/lib/debug, from this host directory if they are there; ustack() then also names "
        "functions whose symbols the guest lacks (default: from the guest's disk)")
    add("--schedule", metavar="SCHEDULE",
        help="trace the calls of --run in this schedule, e.g. 'A120 B A'; kinst explore prints "
        "schedules (default: no schedule)")
    add("--run", action="append", default=[], metavar="CALL", dest="runs",
        help="with --schedule: call made by a run; give --run once for each run (two or more), in "
        "the order A, B, ... (required with --schedule)")
    add("--setup", default="", metavar="CALLS",
        help="with --schedule: calls made before the runs (default: none)")
    add("--replay", metavar="FILE", help="replay a recording and trace it (default: no recording)")
    add("-l", dest="listing", action="store_true",
        help="list the probes that match the descriptions and exit; without descriptions, list "
        "DTrace's own, fbt and static probes (default: trace the probes)")
    add("-v", dest="verbose", action="store_true",
        help="print the stability of the programs; with -l, also print the argument types of each "
        "probe, and what cannot be probed, with reasons (default: off)")
    add("-d", dest="rewritten", action="store_true",
        help="print each program with probes of inline functions replaced by probes of their "
        "inline copies (default: do not print the programs)")
    add("-o", dest="output", metavar="FILE", help="append output to FILE (default: "
        "standard output)")
    add("-q", action=_Set, nargs=0,
        help="quiet: print only the output of actions and the guest's console (default: also print "
        "the CPU, ID and name of each probe that fires, and the number of matched probes)")
    add("-L", dest="libraries", action="append", default=[], metavar="DIR",
        help="load the D libraries in a directory: declarations, inlines and translators in .d "
        "files; may be repeated (default: only the built-in libraries)")
    add("-H", dest="preprocess", action=_Included, nargs=0,
        help="make the preprocessor print the names of included files (default: do not print them)")
    add("-64", dest="model", action="store_true",
        help="accepted for compatibility; the data model is always 64-bit (default: 64-bit)")
    add("-F", action=_Set, nargs=0,
        help="indent output by function entry and return (default: no indentation)")
    add("-w", action=_Set, nargs=0, help="allow destructive actions (default: refuse them)")
    add("-x", action=_Set, metavar="OPTION[=VALUE]",
        help="set a D option; docs/d.md lists each option and its default")
    add("-b", action=_Set, metavar="SIZE",
        help="size of the trace buffer in bytes, with an optional suffix k, m, g or t; same as "
        "-x bufsize=SIZE (default: 4m)")
    add("-e", dest="compile_only", action="store_true",
        help="compile the programs and exit (default: also run them)")
    add("-S", dest="show_code", action="store_true",
        help="print the compiled code of each clause on standard error (default: do not print it)")
    add("-V", dest="version", action="store_true",
        help="print the version of D and exit (default: off)")
    add("-Z", action=_Set, nargs=0,
        help="permit probe descriptions that match no probe (default: refuse them)")
    add("-C", action=_Set, nargs=0,
        help="run the C preprocessor on the programs given with -s (default: off)")
    for letter, what in (("-D", "NAME[=VALUE]"), ("-U", "NAME"), ("-I", "DIR")):
        add(letter, dest="preprocess", action=_Macro, metavar=what,
            help="pass this option to the preprocessor; may be repeated (default: none)")
    add("-X", dest="standard", choices=("a", "c", "s", "t"),
        help="C standard for the preprocessor; accepted for compatibility and ignored (default: "
        "none)")
    add("--help", action="help",
        help="show this help message and exit, as -h does without a program")
    add("-h", dest="header", action="store_true",
        help="write a C header for the providers that the program of -s declares, to FILE.h of "
        "FILE.d or the file of -o (default: trace)")
    add("-G", dest="link", action="store_true",
        help="replace the calls for probes in the object files given as arguments, and write an "
        "object file that declares these probes, to FILE.o of FILE.d or the file of -o (default: "
        "trace)")
    for letter, why in (("-A", "anonymous tracing is not supported"),
                        ("-a", "anonymous tracing is not supported"),
                        ("-32", "the 32-bit data model is not supported: the kernels are 64-bit"),
                        ("-O", "data of object files is not supported")):
        add(letter, dest="refused", action="append_const", const=(letter, why),
            help=argparse.SUPPRESS)
    add("--stack", nargs="?", metavar="N", const=str(DEFAULT_FRAMES),
        help="at each firing, print at most N frames of the stack, with inline functions and "
        "source lines (default: no stack; without N: %(const)s frames)")
    add("--json", action="store_true", help="print one JSON object per line (default: text)")
    add("--raw", action=_Raw, nargs=0, help=RAW)
    add("--report", type=Path, metavar="FILE",
        help="write an HTML page about the whole trace, with code and counts, a timeline and "
        "stacks (default: no page)")
    add("--sources", type=Path, metavar="DIR", action="append", default=[],
        help="with --report: show source lines from this kernel source tree; may be repeated "
        "(default: no source text)")
    add("--tracks", metavar="FILE",
        help="write processes, threads, system calls, page faults, interrupts and time off the CPU "
        "as tracks for https://ui.perfetto.dev; cannot be combined with probes or programs "
        "(default: no tracks)")
    add("--plot", metavar="FILE",
        help="at the end, draw the aggregations and write them to this .svg or .png file (default: "
             "no plot)")
    add("--emit-elf", metavar="FILE",
        help="write the compiled programs as a BPF ELF object (default: no object file)")
    add("--digest", action="store_true",
        help="at the end, print the SHA-256 of memory, registers, devices, clock and console "
        "(default: do not print it)")
    add("--machine", choices=(UNICORN, QEMU), default=UNICORN,
        help="machine that runs the kernel; unicorn: kinst-emu's own machine; qemu: a copy of the "
        "booted kernel in QEMU, where breakpoints go through the kernel's vectors as with "
        "--trap-path double (default: %(default)s)")
    add("--trap-path", choices=PATHS, default=PATHS[0],
        help="how breakpoints reach DTrace; guest: through the kernel's vectors; direct: from the "
        "emulator, which is faster; double: like guest, and the second breakpoint of arm64 and "
        "riscv64 also goes through the vectors (default: %(default)s)")
    add("--trampolines", choices=(PER_PROBE, THREAD), default=PER_PROBE,
        help="how trampolines are allocated; probe: one for each probe; thread: one for each "
        "thread, as in FreeBSD (amd64 only) (default: %(default)s)")
    add("--unchecked", action="store_true",
        help="with -c: pass arguments without checking them against the function's prototype, and "
        "show the result as a plain number (default: use the prototype)")
    add("--unsafe", action="store_true",
        help="also allow probes in excluded functions (default: refuse them)")
    add("--memory", metavar="SIZE",
        help="guest RAM in MiB, or with a suffix K, M or G (default: 512M)")
    add("--limit", metavar="N",
        help=f"stop the workload after N instructions (default: {DEFAULT_LIMIT}; ten times as many "
        "for a command, a boot or a recording)")
    return parser


@dataclass
class ProgramTexts:
    """The D programs of a command line, and how they are compiled.

    :param programs: (letter, text) of -P, -m, -f, -n, -i and -s, in the order given.
    :param words: macro arguments ``$1``, ``$2`` ...
    :param options: D options.
    :param preprocess: arguments of the C preprocessor.
    :param libraries: directories of -L.
    :param frames: frames that ``--stack`` prints; None without ``--stack``.
    """

    programs: list[tuple[str, str]]
    words: list[str]
    options: Options
    preprocess: list[str]
    libraries: list[Path]
    frames: int | None


@dataclass(frozen=True)
class System:
    """Options for the traced system: the kernel, the machine, and the handling of breakpoints."""

    kernel: str | None
    module: list[str]
    disks: list[Path]
    base: bool
    single: bool
    multi: bool
    date: int | None
    devices: DeviceWords
    cpus: int | None
    memory: str | None
    machine: str
    trap_path: TrapPath
    trampolines: str
    unsafe: bool


@dataclass(frozen=True)
class Work:
    """The workload that the kernel runs during the trace.

    :param workload: value of -c.
    :param files: host directory whose files are copied into the guest.
    :param process: process ID of -p.
    :param replay: recording to replay in place of a workload.
    :param schedule: schedule of the calls in ``runs``.
    :param setup: calls made before the runs.
    :param limit: instructions after which the workload is stopped.
    :param idle: idle virtual time in ns after which a command is stopped.
    :param user_programs: files of --program.
    :param sysroot: host directory with files of the guest.
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
    idle: int
    user_programs: list[Path]
    sysroot: Path | None


@dataclass(frozen=True)
class Shown:
    """Output options: what kdtrace prints and writes, and where.

    :param file: file of ``-o``; None for standard output.
    :param header: write a header for declared providers; ``link``: write their object file.
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
    header: bool
    link: bool


@dataclass(frozen=True)
class CommandLine:
    """A parsed command line of kdtrace; fields are named after the options.

    :param version: whether to print the version of D and exit.
    """

    texts: ProgramTexts
    system: System
    work: Work
    shown: Shown
    version: bool

    @property
    def of_kernel(self) -> list[str]:
        """Options given on the command line that need a kernel."""
        system, work, shown = self.system, self.work, self.shown
        return [option for option, wanted in (
            ("-c", work.workload is not None), ("--files", work.files is not None),
            ("--disk", bool(system.disks)), ("--base", system.base),
            ("--single", system.single), ("--multi", system.multi),
            ("--date", system.date is not None),
            ("--net, --entropy, --serial", system.devices != DeviceWords()),
            ("--cpus", system.cpus is not None),
            ("--schedule", work.schedule is not None), ("--program", bool(work.user_programs)),
            ("--sysroot", work.sysroot is not None),
            ("-p", work.process is not None), ("--tracks", shown.tracks is not None),
            ("--digest", shown.digest), ("--machine", system.machine != UNICORN),
            ("--report", shown.report is not None), ("--module", bool(system.module)),
            ("--memory", system.memory is not None), ("--limit", work.limit is not None),
            ("--unsafe", system.unsafe), ("--unchecked", work.unchecked),
            ("--trap-path", system.trap_path != PATHS[0]),
            ("--trampolines", system.trampolines != PER_PROBE)) if wanted]


def read_command_line(arguments: Sequence[str]) -> CommandLine:
    """Parse the arguments of kdtrace.

    :raises UsageError: when the command line cannot be parsed.
    :raises KinstError: when options have invalid values or contradict each other.
    """
    parser = make_parser()
    complete(parser)
    if not arguments:
        raise UsageError("")
    # As in getopt(3), arguments after "--" are not options, so a number may be negative there.
    end = arguments.index("--") if "--" in arguments else len(arguments)
    given, unknown = parser.parse_known_intermixed_args(arguments[:end])
    if not unknown:
        # As in getopt(3), -1 is an option, not a number.
        unknown = [word for word in given.words if FLAG.fullmatch(word)]
    given.words += arguments[end + 1 :]
    if unknown:
        raise UsageError(f"illegal option -- {unknown[0].lstrip('-')}")
    if given.header and not given.programs:
        parser.print_help()
        parser.exit()
    for letter, why in given.refused or ():
        raise KinstError(f"{letter}: {why}")
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
        raise KinstError("no probes specified; give a description, like: -n 'kinst::strlen:'")
    line = CommandLine(
        ProgramTexts(given.programs, given.words, options, given.preprocess,
                     [Path(path) for path in given.libraries], frames),
        System(given.kernel, given.module, given.disk, given.base,
               given.single, given.multi, given.date, device_words(given), given.cpus, given.memory,
               given.machine, given.trap_path, given.trampolines, given.unsafe),
        Work(given.workload, _path(given.files),
             None if given.process is None else parse_count(given.process, "-p"),
             _path(given.replay), given.schedule, tuple(given.runs), given.setup, given.unchecked,
             None if given.limit is None else parse_count(given.limit, "--limit"),
             parse_idle(given.idle), [Path(file) for file in given.program], given.sysroot),
        Shown(given.listing, given.verbose, given.rewritten, given.output, given.compile_only,
              given.show_code, given.json, given.report, given.sources, given.plot, given.tracks,
              given.emit_elf, given.digest, given.header, given.link),
        given.version)
    work = line.work
    if work.sysroot is not None and not work.sysroot.is_dir():
        raise KinstError(f"--sysroot: {work.sysroot} is not a directory")
    if work.schedule is not None and (line.system.cpus or 1) > 1:
        raise KinstError(SCHEDULED)
    return line


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
