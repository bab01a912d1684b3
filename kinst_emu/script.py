"""D programs, with dtrace(1)'s options: on an emulated kernel, or on DTrace's own probes alone."""

import getopt
import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from dtrace.bpf.listing import listing
from dtrace.bpf.object_file import object_file
from dtrace.calls import Evaluation, check
from dtrace.calls import parse as parse_calls
from dtrace.d.attributes import VERSION
from dtrace.d.errors import DError
from dtrace.d.lexer import Macros
from dtrace.d.program import Compiled, Compiler, split
from dtrace.d.surroundings import Nowhere, Surroundings
from dtrace.d.types import Universe
from dtrace.debug_data import debug_index
from dtrace.libraries import needed
from dtrace.prototypes import Prototypes, plain, result_line
from dtrace.run.kernel import (
    GuestState,
    KernelProbes,
    KernelSurroundings,
    KernelSymbols,
)
from dtrace.run.options import OptionError, Options
from dtrace.run.render import NoSymbols
from dtrace.run.session import Session, defaults
from dtrace.run.timers import OwnProbes
from emu.appending import appending
from emu.arch import Arch
from emu.architectures import ARCHITECTURES
from emu.call import DEFAULT_LIMIT, Caller
from emu.errors import KinstError
from emu.replacing import replacing
from emu.replay.player import Player
from emu.unicorn.machine import UnicornMachine
from images import catalog
from images.boots import LIMIT, at_start, boot_to_prompt, booted
from images.recordings import from_start, played
from kinst.breakpoints import PATHS, Breakpoints
from kinst_emu import plot
from kinst_emu.explain.explained import source_trees
from kinst_emu.json_lines import JsonLines
from kinst_emu.terminal import check_writable, end_line, parse_count, parse_size, show_byte
from kinst_emu.trace_page.collected import Collected
from kinst_emu.trace_page.page import write

LETTERS = "3:6:aAb:Bc:CdD:ef:FGhHi:I:k:lL:m:n:o:Op:P:qs:SU:vVwx:X:Z"
WORDS = ["kernel=", "trap-path=", "memory=", "limit=", "digest", "unsafe", "json", "emit-elf=",
         "plot=", "report=", "sources=", "replay=", "module="]
WITHOUT_PROGRAMS = ("stack", "machine", "trampolines", "unchecked")
BOOT = "boot"
BEGIN = "dtrace:::BEGIN"
IDLE = "nothing to run; give a call, like: -c 'strlen(\"hello\")', or -c boot"
LAST = {"P": "provider", "m": "module", "f": "function", "n": "name", "i": "number"}
MODES = "AGhlV"
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

with a kernel: kdtrace -k IMAGE --help
"""
MAX_SCRIPT = 1 << 22  # bytes
USAGE_STATUS = 2


class UsageError(Exception):
    """The command line is none."""


@dataclass
class CommandLine:
    """What was asked for.

    :param programs: (letter, text) of -P, -m, -f, -n, -i and -s, in their order.
    """

    programs: list[tuple[str, str]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    output: str | None = None
    modes: str = ""
    flags: str = ""
    preprocess: list[str] = field(default_factory=list)
    workload: str | None = None
    words_given: dict[str, str] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)


def say(text: str) -> None:
    """A message on standard error."""
    end_line()
    print(f"dtrace: {text}", file=sys.stderr)


def read_command_line(arguments: list[str], options: Options) -> CommandLine:
    """:raises UsageError: for what is no command line.
    :raises KinstError: for an option that cannot be set.
    """
    try:
        given, words = getopt.gnu_getopt(arguments, LETTERS, WORDS)
    except getopt.GetoptError as error:
        if error.opt in WITHOUT_PROGRAMS:
            raise KinstError(f"--{error.opt}: is not for D programs yet (docs/d.md)") from None
        raise UsageError(f"illegal option -- {error.opt}") from None
    found = CommandLine(words=words)

    def set_option(name: str, value: str | None, shown: str) -> None:
        try:
            options.set(name, value)
        except OptionError as error:
            raise KinstError(f"failed to set {shown}: {error}") from None

    for flag, value in given:
        letter = flag[1]
        if flag == "--module":
            found.modules.append(value)
        elif flag == "--sources":
            found.sources.append(value)
        elif flag.startswith("--"):
            found.words_given[flag[2:]] = value
        elif letter == "k":
            found.words_given["kernel"] = value
        elif letter == "c":
            found.workload = value
        elif letter in LAST or letter == "s":
            found.programs.append((letter, value))
        elif letter == "x":
            name, mark, text = value.partition("=")
            set_option(name, text if mark else None, f"-x {name}")
        elif letter == "b":
            set_option("bufsize", value, f"-b {value}")
        elif letter in "qFw":
            name = {"q": "quiet", "F": "flowindent", "w": "destructive"}[letter]
            set_option(name, None, f"-{letter}")
        elif letter in "DUI":
            found.preprocess.append(f"-{letter}{value}")
        elif letter == "C":
            set_option("cpp", None, "-C")
        elif letter == "Z":
            set_option("zdefs", None, "-Z")
        elif letter == "o":
            found.output = value
        elif letter in MODES:
            found.modes += letter
        elif letter == "d":
            raise KinstError("-d: is not for D programs yet (docs/d.md); without actions it shows "
                             "what probes of inline functions stand for")
        else:
            found.flags += letter
    if len(set(found.modes)) > 1:
        raise UsageError("only one of the [-AGhlV] options can be specified at a time")
    return found


class Failed(KinstError):
    """A program that does not compile."""


def trace(arguments: list[str]) -> int:
    """Run the command; its exit status.

    :raises KinstError: with what dtrace(1) says.
    """
    options = Options()
    try:
        line = read_command_line(arguments, options)
        if not line.programs and not line.modes:
            if not arguments:
                raise UsageError("")
            raise KinstError("no probes specified")
    except UsageError as error:
        if str(error):
            say(str(error))
        sys.stderr.write(USAGE)
        return USAGE_STATUS
    if "V" in line.modes:
        print(f"dtrace: Sun D {VERSION}")
        return 0
    if set(line.modes) & set("AGh"):
        raise KinstError(f"-{line.modes[0]}: is not for programs without a kernel")
    if "l" in line.modes:
        options.values["zdefs"] = 1
    return _Run(options, line).run()


class _Kernel:
    """The kernel that a program traces, and what it is to do.

    :raises KinstError: for what cannot be.
    """

    def __init__(self, line: CommandLine) -> None:
        given = line.words_given
        self.player: Player | None = None
        if "replay" in given:
            if "memory" in given:
                raise KinstError("--memory: with --replay, it is the recording's own")
            if line.workload is not None:
                raise KinstError("-c: cannot be used with --replay, which runs the recording")
            self.player = played(
                Path(given["replay"]), given.get("kernel"),
                LIMIT if "limit" not in given else parse_count(given["limit"], "--limit"),
                line.modules)
            self.image = self.player.machine.image
        else:
            self.image = catalog.find(given["kernel"], line.modules)
        wanted = given.get("trap-path", PATHS[0])
        path = next((known for known in PATHS if known == wanted), None)
        if path is None:
            raise KinstError(f"--trap-path={wanted}: there are {', '.join(PATHS)}")
        self.limit = parse_count(given.get("limit", str(DEFAULT_LIMIT)), "--limit")
        memory = parse_size(given.get("memory", "512M"))
        self.workload = line.workload
        self.prototypes = Prototypes(self.image)
        listing = "l" in line.modes or "e" in line.flags
        self.idle = self.workload is None and not listing and self.player is None
        self.calls = None
        if self.workload not in (None, BOOT):
            self.calls = parse_calls(self.workload)
            check(self.image, self.calls, self.prototypes)
        if self.player is not None:
            self.machine = self.player.machine
            from_start(self.player)
        elif self.workload == BOOT and not listing:
            self.machine = UnicornMachine(self.image, memory)
            self.machine.boot()
            at_start(self.machine)
        else:
            self.machine = booted(self.image, memory)
        if self.player is None:
            self.machine.console.text.clear()
        self.breakpoints = Breakpoints(self.machine, path=path, records="report" in given)
        self.collected = Collected(catalog.described(self.image),
                                   self.workload or f"--replay {given.get('replay', '')}",
                                   tuple(map(Path, line.sources)))
        self.breakpoints.dispatcher.sink = lambda: self.collected.take(self.breakpoints)
        self.types = self.prototypes.types()
        self.probes = KernelProbes(
            self.breakpoints, "unsafe" in given,
            None if self.types is None else lambda: debug_index(self.image))
        self.guest = GuestState(self.probes, self.types)

    def run(self, quiet: bool, rows: JsonLines | None) -> None:
        """Do what was asked for.

        :param rows: are given what the guest writes, and the result; None: they are printed.
        """
        machine = self.machine
        machine.console.stream = show_byte if rows is None else rows.byte
        if self.player is not None:
            self.player.advance_to_end()
            return
        if self.idle:  # what begins has not ended it
            raise KinstError(IDLE)
        if self.calls is None:
            boot_to_prompt(machine, self.limit)
            return
        evaluation = Evaluation(Caller(machine, self.limit), self.prototypes)
        value = evaluation.run(self.calls)
        if rows is not None:
            rows.row({"call": self.workload, "value": plain(machine, evaluation.kind, value)})
            return
        if not quiet:
            print(result_line(str(self.workload), machine, evaluation.kind, value))


class _Run:
    def __init__(self, options: Options, line: CommandLine) -> None:
        self.options, self.line = options, line
        self.sources: list[str] = []
        given = line.words_given
        self.kernel = _Kernel(line) if "kernel" in given or "replay" in given else None
        self.probes: OwnProbes | KernelProbes = OwnProbes()
        universe = Universe()
        surroundings: Surroundings = Nowhere()
        if self.kernel is not None:
            self.probes = self.kernel.probes
            universe = Universe(self.kernel.types)
            surroundings = KernelSurroundings(
                self.kernel.image, self.kernel.types, self.kernel.probes,
                lambda content: self.compiler.place(content), say)
        self.compiler = Compiler(
            self.probes, lambda name, value: options.set(name, value, inside=True),
            lambda: defaults(options), lambda: options.number("strsize"),
            lambda: options.given("zdefs"), universe, surroundings)

    def _libraries(self, programs: Iterable[str]) -> None:
        """Take in the libraries that the programs use."""
        if self.options.given("nolibs"):
            return
        types = self.kernel is not None and self.kernel.types is not None
        for name, text in needed(self._arch.name, types, programs).items():
            try:
                self.compiler.library(text)
            except DError as error:
                raise KinstError(f"failed to compile library {name}.d for this kernel: "
                                 f"{error.said(False)}") from None

    def run(self) -> int:
        sources = [self._source(letter, text) for letter, text in self.line.programs]
        self._libraries([*sources, *self.line.words])
        compiled = [self._compile(letter, text, source)
                    for (letter, text), source in zip(self.line.programs, sources, strict=True)]
        if "l" in self.line.modes:
            if "report" in self.line.words_given:
                raise KinstError("--report: is of a trace, and -l makes none")
            self._list(compiled)
            return 0
        if "S" in self.line.flags:
            self._show_code(compiled)
        report = self.line.words_given.get("report")
        if report is not None:
            if self.kernel is None:
                raise KinstError("--report: is of a kernel's probes: give one with -k")
            if "e" in self.line.flags:
                raise KinstError("--report: is of a trace, and -e makes none")
            check_writable(Path(report), "--report")
            source_trees(self.kernel.image, self.kernel.collected.sources)
        elif self.line.sources:
            raise KinstError("--sources: is for --report")
        picture = self.line.words_given.get("plot")
        if picture is not None:
            plot.check(picture)
        emitted = self.line.words_given.get("emit-elf")
        if "e" in self.line.flags and emitted is None:
            return 0
        everything = [one for program in compiled for one in program]
        if self.kernel is not None and self.kernel.idle and not any(
                probe.text == BEGIN for one in everything for probe in one.probes):
            raise KinstError(IDLE)
        self._matched(compiled)
        if not any(one.probes for one in everything) and not self.options.given("zdefs"):
            raise KinstError("no probes matched")
        out = sys.stdout
        if isinstance(out, io.TextIOWrapper):
            out.reconfigure(encoding="utf-8", errors="surrogateescape")  # bytes, as they are
        if self.line.output is not None:
            try:
                out = appending(self.line.output, "surrogateescape")
            except OSError as error:
                raise KinstError(f"failed to open output file '{self.line.output}': "
                                 f"{error.strerror}") from None
        kernel = self.kernel
        rows = None
        if "json" in self.line.words_given:
            rows = JsonLines(out)
        session = Session(
            self.compiler, self.options,
            NoSymbols() if kernel is None else KernelSymbols(kernel.image, kernel.guest.lines),
            out, say,
            None if kernel is None else kernel.guest, None if rows is None else rows.row)
        session.link(everything)
        if emitted is not None:
            try:
                with replacing(Path(emitted)) as file:
                    file.write(object_file(session.linked, bytes(self.compiler.storage.strings)))
            except OSError as error:
                raise KinstError(f"--emit-elf {emitted}: {error.strerror}") from None
        if "e" in self.line.flags:
            return 0

        def interrupted(_number: int, _frame: FrameType | None) -> None:
            if session.interrupted:
                raise KeyboardInterrupt
            session.interrupted = True

        if kernel is None:  # a machine that runs has its own way to be interrupted
            signal.signal(signal.SIGINT, interrupted)
        if self.options.given("destructive") and not self.options.given("quiet"):
            say("allowing destructive actions")
        try:
            return self._traced(session, rows)
        finally:
            if picture is not None:
                plot.draw(session.aggregated(), session.timed(), picture)
            if report is not None and kernel is not None:
                kernel.collected.take(kernel.breakpoints)
                kernel.collected.aggregated(session.aggregated(empty=True))
                write(Path(report), kernel.collected, kernel.breakpoints)
            if self.line.output is not None:
                out.close()

    def _traced(self, session: Session, rows: JsonLines | None) -> int:
        """Run the trace; the exit status."""
        kernel = self.kernel
        if kernel is None:
            return session.run() & 0xFF
        quiet = self.options.given("quiet")
        status = session.run(lambda: kernel.run(quiet, rows)) & 0xFF
        if kernel.player is not None and kernel.player.recording.problem:
            say(f"the recording ends at {kernel.player.recording.last}: "
                f"{kernel.player.recording.problem}")
        if kernel.player is not None and kernel.player.at_end:
            difference = kernel.player.difference()
            if difference:
                raise KinstError(f"{kernel.player.recording.path}: the run ended in another state: "
                                 f"{difference}")
        if "digest" in self.line.words_given:
            digest = kernel.machine.digest()
            if rows is None:
                print(f"digest {digest}")
            else:
                rows.row({"digest": digest})
        return status

    def _show_code(self, compiled: list[list[Compiled]]) -> None:
        """The code of each clause, on standard error."""
        for program, source in zip(compiled, self.sources, strict=True):
            for one in program:
                function = one.function
                title = f"{function.name} ({function.specifier.text})"
                sys.stderr.write("".join(
                    f"{row}\n" for row in listing(title, function.code, source.splitlines())))

    def _matched(self, compiled: list[list[Compiled]]) -> None:
        if self.options.given("quiet"):
            return
        for (letter, text), program in zip(self.line.programs, compiled, strict=True):
            count = sum(len(one.probes) for one in program if not one.function.clause.hidden)
            what = "script" if letter == "s" else "description"
            shown = text
            if letter != "s":
                ends = [text.find(mark) for mark in "{/;" if mark in text]
                shown = text[: min(ends)] if ends else text
            say(f"{what} '{shown}' matched {count} probe{'' if count == 1 else 's'}")

    # -- compiling ---------------------------------------------------------------------------------

    def _source(self, letter: str, text: str) -> str:
        """The text of a program, after the preprocessor."""
        if letter != "s":
            return text
        source = self._read(text)
        return self._preprocessed(source, text) if self.options.given("cpp") else source

    def _compile(self, letter: str, text: str, source: str) -> list[Compiled]:
        script = letter == "s"
        name = text if script else "dtrace"
        macros = Macros([name, *self.line.words], self._variables(),
                        self.options.given("defaultargs"))
        self.sources.append(source)
        try:
            return self.compiler.compile(
                source, macros, string=not script,
                last=LAST.get(letter, "name") if letter != "i" else "name",
                check_arguments=not self.options.given("argref"))
        except DError as error:
            tags = self.options.given("errtags")
            if script:
                raise Failed(
                    f"failed to compile script {text}: {error.said(tags)}") from None
            tag = f"[{error.tag}] " if tags and error.tag else ""
            if self.kernel is None and text.startswith(("kinst:", "fbt:")):
                raise Failed(f"invalid probe specifier {text}: kinst and fbt need a kernel: -k "
                             "IMAGE, like -k teaching/amd64") from None
            raise Failed(f"invalid probe specifier {text}: {tag}{error.text}") from None

    @property
    def _arch(self) -> Arch:
        """Of the kernel; without one, the first that there is."""
        if self.kernel is not None:
            return self.kernel.machine.arch
        return next(iter(ARCHITECTURES.values()))

    @staticmethod
    def _read(path: str) -> str:
        try:
            if path == "-":
                return sys.stdin.read(MAX_SCRIPT)
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                return file.read(MAX_SCRIPT)
        except OSError as error:
            raise KinstError(f"failed to open {path}: {error.strerror}") from None

    @staticmethod
    def _variables() -> dict[str, int]:
        return {"egid": os.getegid(), "euid": os.geteuid(), "gid": os.getgid(),
                "pid": os.getpid(), "pgid": os.getpgid(0), "ppid": os.getppid(), "projid": 0,
                "sid": os.getsid(0), "target": 0, "taskid": 0, "uid": os.getuid()}

    def _preprocessed(self, source: str, path: str) -> str:
        """What the C preprocessor makes of a script."""
        tool = self.options.text("cpppath") or shutil.which("cpp")
        if tool is None:
            raise KinstError(f"failed to compile script {path}: Preprocessor not found")
        if source.startswith("#!"):
            source = "\n" + source.partition("\n")[2]
        defines = [f"-{'D' if what == 'define' else 'U' if what == 'undef' else 'I'}{value}"
                   for what, value in self.options.defines]
        version = VERSION.split(".")
        number = int(version[0]) << 24 | int(version[1]) << 12
        command = [tool, "-P", "-undef", "-nostdinc", "-D__sun", "-D__unix", "-D__SVR4",
                   "-D__SUNW_D=1",
                   "-D__FreeBSD__=15", *(f"-D{macro}" for macro in self._arch.macros),
                   f"-D__SUNW_D_VERSION={number:#010x}",
                   f"-I{os.path.dirname(path) or '.'}", *defines, *self.line.preprocess, "-"]
        try:
            made = subprocess.run(command, input=source, capture_output=True, text=True,
                                  errors="surrogateescape", timeout=60, check=False)
        except OSError:
            raise KinstError(f"failed to compile script {path}: Failed to exec preprocessor"
                             ) from None
        except subprocess.TimeoutExpired:
            raise KinstError(f"failed to compile script {path}: Preprocessor failed to process "
                             "input program") from None
        sys.stderr.write(made.stderr)
        if made.returncode:
            raise KinstError(f"failed to compile script {path}: Preprocessor failed to process "
                             "input program")
        return made.stdout

    # -- listing -----------------------------------------------------------------------------------

    def _list(self, compiled: list[list[Compiled]]) -> None:
        print(f"{'ID':>5} {'PROVIDER':>10} {'MODULE':>17} {'FUNCTION':>33} NAME")
        if not compiled:
            own = self.probes.own if isinstance(self.probes, KernelProbes) else self.probes
            shown = list(own.probes)
        else:
            shown = []
            for one in (c for program in compiled for c in program):
                if not one.probes:
                    parts = split(one.function.specifier.text)
                    say(f"failed to match {':'.join(parts)}: No probe matches description")
                shown += one.probes
        for probe in shown:
            print(f"{probe.number:5d} {probe.provider:>10} {probe.module:>17} "
                  f"{probe.function:>33} {probe.name}")
