"""kdtrace: D programs are compiled, linked, run and shown, with a kernel or without."""

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import IO

from dtrace.bpf.object_file import object_file
from dtrace.d.compile.listing import listing
from dtrace.d.compile.program import Compiled, Compiler, ListedProbe, split
from dtrace.d.language.attributes import VERSION
from dtrace.d.language.errors import DError
from dtrace.d.language.lexer import Macros, between
from dtrace.d.language.surroundings import Nowhere, Surroundings
from dtrace.d.language.types import Universe
from dtrace.run.consumer import Enabled
from dtrace.run.kernel import KernelProbes, KernelSurroundings
from dtrace.run.libraries import needed, of_directories
from dtrace.run.options import DEFAULTS
from dtrace.run.render import NoSymbols
from dtrace.run.session import Session, defaults
from dtrace.run.timers import OwnProbes
from dtrace.run.tracks import TrackWriter, tracks_program
from dtrace.run.values import recorded
from emu.arch.arch import Arch
from emu.arch.architectures import ARCHITECTURES
from emu.host.append_file import appending
from emu.host.atomic_file import replacing
from emu.host.errors import KinstError
from emu.host.progress import PROGRESS
from emu.unicorn.machine import UnicornMachine
from kinst_emu.cli import probe_listing
from kinst_emu.cli.command_line import LAST, USAGE, CommandLine, UsageError, read_command_line
from kinst_emu.cli.traced_kernel import IDLE, TracedKernel
from kinst_emu.explain.steps.explained import source_trees
from kinst_emu.report import plot
from kinst_emu.terminal.json_lines import JsonLines
from kinst_emu.terminal.shared_output import shared
from kinst_emu.terminal.terminal import check_writable, end_line
from kinst_emu.trace_page.page import write

TRACKS_BUFFER = "16m"  # of records between two looks

BEGIN = "dtrace:::BEGIN"
MAX_SCRIPT = 1 << 22  # bytes
USAGE_STATUS = 2
KERNELS = ("kinst:", "fbt:")  # what begins the descriptions of a kernel's probes


def say(text: str) -> None:
    """A message on standard error."""
    end_line()
    print(f"dtrace: {text}", file=sys.stderr)


class Failed(KinstError):
    """A program that does not compile."""


def trace(arguments: list[str]) -> int:
    """Run the command; its exit status.

    :raises KinstError: with what dtrace(1) says.
    """
    try:
        line = read_command_line(arguments)
    except UsageError as error:
        if str(error):
            say(str(error))
        sys.stderr.write(USAGE)
        return USAGE_STATUS
    if line.version:
        print(f"dtrace: Sun D {VERSION}")
        return 0
    if line.kernel is None and line.replay is None:
        if line.of_kernel:
            raise KinstError(f"{line.of_kernel[0]}: is about a kernel: give one with -k")
        return _Run(line, None).run()
    with TracedKernel(line) as kernel:
        return _Run(line, kernel).run()


class _Run:
    def __init__(self, line: CommandLine, kernel: TracedKernel | None) -> None:
        self.options, self.line, self.kernel = line.options, line, kernel
        options = self.options
        self.sources: list[str] = []
        self._tracks: TrackWriter | None = None
        self._ran = False
        self.probes: OwnProbes | KernelProbes = OwnProbes()
        universe = Universe()
        surroundings: Surroundings = Nowhere()
        self.surroundings: KernelSurroundings | None = None
        if kernel is not None:
            self.probes = kernel.probes
            universe = Universe(kernel.types)
            surroundings = self.surroundings = KernelSurroundings(
                kernel.image, kernel.types, kernel.probes,
                lambda content: self.compiler.place(content), say)
        self.compiler = Compiler(
            self.probes, lambda name, value: options.set(name, value, inside=True),
            lambda: defaults(options), lambda: options.number("strsize"),
            lambda: options.given("zdefs"), universe, surroundings, line.frames)

    def _libraries(self, programs: Iterable[str]) -> None:
        """Take in the libraries that the programs use."""
        if self.options.given("nolibs"):
            return
        named = self.options.text("libdir")
        given = of_directories([*self.line.libraries, *([Path(named)] if named else [])])
        types = None if self.kernel is None else self.kernel.types
        words = [*programs, *(text for _path, text in given)]
        for name, text in needed(self._arch.name, types, words).items():
            try:
                self.compiler.library(text)
            except DError as error:
                raise KinstError(f"failed to compile library {name}.d for this kernel: "
                                 f"{error.said(False)}") from None
        for path, text in given:
            try:
                self.compiler.library(text)
            except DError as error:
                if error.tag == "D_PRAGMA_DEPEND":
                    continue  # as dtrace(1) does: a library for another system
                raise KinstError(f"failed to compile library {path}: {error.said(False)}"
                                 ) from None

    def run(self) -> int:
        line = self.line
        self._check()
        sources = [self._source(letter, text) for letter, text in line.programs]
        self._libraries([*sources, *line.words])
        with PROGRESS.working("making the probes"):
            compiled = [self._compile(letter, text, source)
                        for (letter, text), source in zip(line.programs, sources, strict=True)]
        if isinstance(self.probes, KernelProbes):
            for report in self.probes.reports:
                say(f"not probed: {report}")
        with self._output() as out:
            if line.rewritten:
                self._show_rewritten(compiled)
            if line.listing:
                return self._list(compiled)
            if line.show_code:
                self._show_code(compiled)
            if line.compile_only and line.verbose:
                self._promised(compiled)
            if line.compile_only and line.emit_elf is None:
                return 0
            return self._linked(compiled, out)

    def _check(self) -> None:
        """:raises KinstError: for what cannot be, before anything is done."""
        line, kernel = self.line, self.kernel
        if line.report is not None:
            for option, given in (("-l", line.listing), ("-e", line.compile_only)):
                if given:
                    raise KinstError(f"--report: is of a trace, and {option} makes none")
            assert kernel is not None
            check_writable(line.report, "--report")
            source_trees(kernel.image, line.sources)
        elif line.sources:
            raise KinstError("--sources: is for --report")
        if line.plot is not None:
            plot.check(line.plot)
        if line.tracks is not None and kernel is not None:
            if kernel.types is None or kernel.breakpoints is None or not any(
                    one.provider == "sched" for one in kernel.breakpoints.declared):
                raise KinstError("--tracks: is for FreeBSD's kernels, with debug data or CTF, on "
                                 "our own machine")
            check_writable(Path(line.tracks), "--tracks")
            line.programs.append(("n", tracks_program(kernel.machine.guest.interrupts)))
            line.options.set("quiet", None)
            if line.options.number("bufsize") == DEFAULTS["bufsize"]:
                line.options.set("bufsize", TRACKS_BUFFER)

    @contextlib.contextmanager
    def _output(self) -> Iterator[IO[str]]:
        """Where what is printed goes; with -o, to the end of a file."""
        shown = sys.stdout
        if isinstance(shown, io.TextIOWrapper):
            shown.reconfigure(encoding="utf-8", errors="surrogateescape")  # bytes, as they are
        if self.line.output is None:
            yield shown
            return
        try:
            out = shared(appending(self.line.output, "surrogateescape"))
        except OSError as error:
            raise KinstError(f"failed to open output file '{self.line.output}': "
                             f"{error.strerror}") from None
        with out:
            sys.stdout = out
            try:
                yield out
            finally:
                sys.stdout = shown

    @contextlib.contextmanager
    def _tracked(self) -> Iterator[None]:
        """The file of --tracks, which is there when it is whole."""
        if self.line.tracks is None or self.kernel is None:
            yield
            return
        path = Path(self.line.tracks)
        failure = None
        with replacing(path) as file:
            self._tracks = TrackWriter(file, self.kernel.machine.guest.interrupts)
            try:
                yield
            except KinstError as error:
                if not self._ran:
                    raise
                failure = error  # what was seen before it is kept
            self._tracks.finish()
        if failure is not None:
            raise failure
        left_out = self._tracks.left_out
        say(f"wrote {path}" + (f"; {left_out} events were too many" * bool(left_out))
            + "; https://ui.perfetto.dev shows it")

    def _linked(self, compiled: list[list[Compiled]], out: IO[str]) -> int:
        """Link and run what was compiled; the exit status."""
        kernel = self.kernel
        everything = [one for program in compiled for one in program]
        if kernel is not None and kernel.idle and not any(
                probe.text == BEGIN for one in everything for probe in one.probes):
            raise KinstError(IDLE)
        self._matched(compiled)
        if not any(one.probes for one in everything) and not self.options.given("zdefs"):
            raise KinstError("no probes matched")
        with self._tracked():
            return self._run_linked(everything, out)

    def _run_linked(self, everything: list[Compiled], out: IO[str]) -> int:
        line, kernel = self.line, self.kernel
        rows = JsonLines(out) if line.json else None
        sink = self._tracks.row if self._tracks else None if rows is None else rows.row
        session = Session(
            self.compiler, self.options,
            NoSymbols() if kernel is None else kernel.symbols,
            out, say,
            None if kernel is None else kernel.guest, sink)
        session.link(everything)
        if line.emit_elf is not None:
            try:
                with replacing(Path(line.emit_elf)) as file:
                    file.write(object_file(session.linked, bytes(self.compiler.storage.strings)))
            except OSError as error:
                raise KinstError(f"--emit-elf {line.emit_elf}: {error.strerror}") from None
        if line.compile_only:
            return 0

        def interrupted(_number: int, _frame: FrameType | None) -> None:
            if session.interrupted:
                raise KeyboardInterrupt
            session.interrupted = True

        if kernel is None:  # a machine that runs has its own way to be interrupted
            signal.signal(signal.SIGINT, interrupted)
        if self.options.given("destructive") and not self.options.given("quiet"):
            say("allowing destructive actions")
        if line.report is not None and line.frames is not None:
            session.seen = self._seen
        self._ran = True
        try:
            return self._traced(session, rows)
        finally:
            if line.plot is not None:
                plot.draw(session.aggregated(), session.timed(), line.plot)
            if line.report is not None and kernel is not None and kernel.breakpoints is not None:
                kernel.collect()
                kernel.collected.aggregated(session.aggregated(empty=True))
                write(line.report, kernel.collected, kernel.breakpoints)

    def _seen(self, enabled: Enabled, _cpu: int, content: bytes) -> None:
        """A record: the stack that ``--stack`` asks for is one of the page's."""
        assert self.kernel is not None
        action = enabled.function.actions[-1] if enabled.function.actions else None
        if action is not None and action.name == "stack":
            f = action.fields[0]
            frames = recorded(f, content[f.offset : f.offset + f.size],
                              self.kernel.symbols)
            if isinstance(frames, list):
                self.kernel.collected.stack("--stack", [str(frame).strip() for frame in frames])

    def _traced(self, session: Session, rows: JsonLines | None) -> int:
        """Run the trace; the exit status."""
        kernel = self.kernel
        if kernel is None:
            return session.run() & 0xFF
        for reason in dict.fromkeys(session.unknown.values()):
            names = ", ".join(sorted(name for name, why in session.unknown.items()
                                     if why == reason))
            say(f"{kernel.image.path}: {names} cannot be known: {reason}; an action that reads "
                "one is an illegal operation")
        session.consumer.shell = lambda command: kernel.shell(command, rows)
        try:
            status = session.run(lambda: kernel.run(session, rows)) & 0xFF
        finally:
            kernel.forget_commands()
        player = kernel.player
        if player is not None and player.recording.problem:
            say(f"the recording ends at {player.recording.last}: {player.recording.problem}")
        if player is not None and player.at_end:
            difference = player.difference()
            if difference:
                raise KinstError(f"{player.recording.path}: the run ended in another state: "
                                 f"{difference}")
        if self.line.digest:
            assert isinstance(kernel.machine, UnicornMachine)
            digest = kernel.machine.digest()
            if rows is None:
                print(f"digest {digest}")
            else:
                rows.row({"digest": digest})
        return status

    def _show_rewritten(self, compiled: list[list[Compiled]]) -> None:
        """-d: the programs, with inline functions rewritten to their copies."""
        assert isinstance(self.probes, KernelProbes | OwnProbes)
        rewritten = self.probes.rewritten if isinstance(self.probes, KernelProbes) else {}
        for (letter, _text), program, source in zip(
                self.line.programs, compiled, self.sources, strict=True):
            for one in program:
                clause, specifier = one.function.clause, one.function.specifier
                if clause.body is None and not clause.bare:
                    continue  # a piece of a clause with "if", whose first piece has it whole
                parts = split(specifier.text, LAST.get(letter, "name") if letter != "i" else "name")
                text = rewritten.get(parts) or [":".join(parts)]
                body = "{\n}" if clause.body is None else between(source, *clause.body)
                if self.line.json:
                    JsonLines().row({"rewritten": text, "body": body})
                else:
                    print(",\n".join(text) + f"\n{body}\n")

    def _show_code(self, compiled: list[list[Compiled]]) -> None:
        """The code of each clause, on standard error."""
        for program, source in zip(compiled, self.sources, strict=True):
            for one in program:
                function = one.function
                title = f"{function.name} ({function.specifier.text})"
                sys.stderr.write("".join(
                    f"{row}\n" for row in listing(title, function.code, source.splitlines())))

    def _programs(self, compiled: list[list[Compiled]]
                  ) -> Iterator[tuple[str, str, list[Compiled]]]:
        """What each program is, how it is named in messages, and its clauses."""
        for (letter, text), program in zip(self.line.programs, compiled, strict=True):
            shown = text
            if letter != "s":
                ends = [text.find(mark) for mark in "{/;" if mark in text]
                shown = text[: min(ends)] if ends else text
            yield "script" if letter == "s" else "description", shown, program

    def _promised(self, compiled: list[list[Compiled]]) -> None:
        """Print what programs that do not run rely on, clause by clause."""
        for what, shown, program in self._programs(compiled):
            print(probe_listing.stability(what, shown, program), end="")
            probe_listing.show_clauses(program, self._arguments)

    def _matched(self, compiled: list[list[Compiled]]) -> None:
        for what, shown, program in self._programs(compiled):
            count = sum(len(one.probes) for one in program if not one.function.clause.hidden)
            if not self.options.given("quiet"):
                say(f"{what} '{shown}' matched {count} probe{'' if count == 1 else 's'}")
            if self.line.verbose and not self.line.json:
                print(probe_listing.stability(what, shown, program), flush=True)

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
        macros = Macros([name, *self.line.words], self._variables(source),
                        lambda: self.options.given("defaultargs"))
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
            if self.kernel is None and text.startswith(KERNELS):
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
                if sys.stdin is None:
                    raise KinstError("-s -: standard input is closed")
                content = sys.stdin.buffer.read(MAX_SCRIPT + 1)
            else:
                with open(path, "rb") as file:
                    content = file.read(MAX_SCRIPT + 1)
        except OSError as error:
            raise KinstError(f"failed to open {path}: {error.strerror}") from None
        if len(content) > MAX_SCRIPT:
            raise KinstError(f"failed to compile script {path}: it has more than {MAX_SCRIPT} "
                             "bytes")
        text = content.decode("utf-8", "surrogateescape")
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def _variables(self, source: str) -> dict[str, int]:
        # Who the target is, is looked up where it is asked for: not every kernel can say.
        target = self.kernel.target if self.kernel and "$target" in source else 0
        return {"egid": os.getegid(), "euid": os.geteuid(), "gid": os.getgid(),
                "pid": os.getpid(), "pgid": os.getpgid(0), "ppid": os.getppid(), "projid": 0,
                "sid": os.getsid(0), "target": target,
                "taskid": 0, "uid": os.getuid()}

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

    def _list(self, compiled: list[list[Compiled]]) -> int:
        shown = [] if compiled else list(probe_listing.every_probe(self.probes))
        for letter, one in ((letter, c) for (letter, _text), program in zip(
                self.line.programs, compiled, strict=True) for c in program):
            if not one.probes:
                parts = split(one.function.specifier.text,
                              LAST.get(letter, "name") if letter != "i" else "name")
                say(f"failed to match {':'.join(parts)}: "
                    f"{one.why or 'No probe matches description'}")
            shown += one.probes
        if not shown:
            return 1
        probe_listing.show(shown, self.line.json, self._arguments if self.line.verbose else None)
        if self.line.verbose and isinstance(self.probes, KernelProbes):
            probe_listing.show_left_out(self.probes, shown, self.line.json)
        return 0

    def _arguments(self, probe: ListedProbe) -> list[str]:
        """The types of a probe's arguments."""
        return [] if self.surroundings is None else self.surroundings.listed(probe)
