"""Run kdtrace: compile, link and run D programs, with or without a kernel."""

import contextlib
import copy
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from dtrace.d.compile.program import Compiled
from dtrace.d.language.attributes import VERSION
from dtrace.d.language.errors import DError
from dtrace.d.language.options import DEFAULTS
from dtrace.pipeline import Pipeline, ProgramText
from dtrace.run.kernel_probes import KernelProbes
from dtrace.run.tracks import tracks_program
from emu.arch.architectures import ARCHITECTURES
from emu.elf.linked_image import version_of
from emu.host.append_file import appending
from emu.host.errors import KinstError
from emu.host.progress import PROGRESS
from kinst_emu.cli.command_line import USAGE, CommandLine, UsageError, last_part, read_command_line
from kinst_emu.cli.compiled_programs import (
    CompiledProgram,
    show_code,
    show_list,
    show_promises,
    show_rewritten,
)
from kinst_emu.cli.d_sources import RELEASE, source_of
from kinst_emu.cli.say import say
from kinst_emu.cli.traced_kernel import TracedKernel
from kinst_emu.cli.traced_run import TracedRun
from kinst_emu.cli.usdt_files import usdt_file
from kinst_emu.explain.steps.explained import source_trees
from kinst_emu.report import plot
from kinst_emu.terminal.shared_output import shared
from kinst_emu.terminal.terminal import check_writable

TRACKS_BUFFER = "16m"  # size of the trace buffer for --tracks, in bytes
USAGE_STATUS = 2
MOST_REHEARSALS = 8  # maximum number of runs in advance that find out what system() starts
KERNELS = ("kinst:", "fbt:")  # prefixes of probe descriptions that need a kernel


class Failed(KinstError):
    """Error raised if a D program does not compile."""


def trace(arguments: list[str]) -> int:
    """Run kdtrace and return its exit status.

    :raises KinstError: with the error message of dtrace(1).
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
    if line.shown.header or line.shown.link:
        return usdt_file(line)
    if line.system.kernel is None and line.work.replay is None:
        if line.of_kernel:
            raise KinstError(f"{line.of_kernel[0]}: needs a kernel; give one with -k")
        return _carried_out(line, None, *_prepared(line, None, say, []))
    return _traced(line)


def _traced(line: CommandLine) -> int:
    """Run kdtrace with a kernel.

    The commands of ``system()`` are not known before they run, nor are the programs that they
    start.  If probes of such programs are wanted, the trace runs in advance, until it runs the same
    commands twice.  Meanwhile, descriptions need not match a probe, as with ``-Z``.
    """
    typed: list[tuple[int, str]] = []
    sources: list[str] = []
    settled = lenient = False
    for rehearsals in range(MOST_REHEARSALS + 2):
        again = copy.deepcopy(line)  # compiling and tracing programs changes the options
        settled = settled or rehearsals > MOST_REHEARSALS
        if lenient and not settled:
            again.texts.options.set("zdefs", None)
        with TracedKernel(again, typed) as kernel:
            held = _HeldMessages()
            try:
                pipeline, programs = _prepared(again, kernel, held.say, sources)
            except KinstError:
                if not (lenient or settled) and kernel.runs and kernel.commands.available and any(
                        "system" in source for source in sources):
                    lenient = True
                    continue
                held.release()
                raise
            starts = _starts_programs(kernel, programs)
            if settled or not (starts or lenient):
                held.release()
                if rehearsals > MOST_REHEARSALS:
                    say("system() runs other commands in each run in advance: programs that it "
                        "starts may have no probes")
                return _carried_out(again, kernel, pipeline, programs)
            before, typed = typed, [] if not starts else TracedRun(
                pipeline, again, kernel, io.StringIO()).rehearse(programs)
            settled = typed == before
    raise AssertionError("unreachable: the last run in advance is followed by the run itself")


def _starts_programs(kernel: TracedKernel, programs: Sequence[CompiledProgram]) -> bool:
    """Return whether ``system()`` may start programs whose probes are wanted."""
    return (kernel.runs and kernel.commands.available and kernel.target.processes.looked_ahead
            and any(action.name == "system" and any(
                probe.text != "dtrace:::END" for probe in clause.probes)
                for program in programs for clause in program.clauses
                for action in clause.function.actions))


class _HeldMessages:
    """Messages on standard error, which are not printed before it is known that they are wanted."""

    def __init__(self) -> None:
        self._texts: list[str] | None = []

    def say(self, text: str) -> None:
        """Print a message, now or after ``release()``."""
        if self._texts is None:
            say(text)
        else:
            self._texts.append(text)

    def release(self) -> None:
        """Print the messages, also those that follow."""
        texts, self._texts = self._texts, None
        for text in texts or ():
            say(text)


def _prepared(line: CommandLine, kernel: TracedKernel | None, tell: Callable[[str], None],
              sources: list[str]) -> tuple[Pipeline, list[CompiledProgram]]:
    """Compile the programs of the command line.

    :param tell: prints a message on standard error.
    :param sources: the texts of the programs; if there are none yet, they are read and added.
    """
    _check(line, kernel)
    pipeline = Pipeline(line.texts.options, None if kernel is None else kernel.target, tell,
                        line.texts.frames)
    arch = ARCHITECTURES[pipeline.arch]
    version = None if kernel is None else version_of(kernel.target.image)
    release = RELEASE if version is None else version // 100_000
    if not sources:
        sources += [
            source_of(letter, text, line.texts.options, line.texts.preprocess, arch, release)
            for letter, text in line.texts.programs]
    named = line.texts.options.text("libdir")
    pipeline.take_libraries([*sources, *line.texts.words],
                            [*line.texts.libraries, *([Path(named)] if named else [])])
    with PROGRESS.working("creating the probes"):
        programs = [
            CompiledProgram(letter, text, source, _compiled(pipeline, line, kernel, letter, text,
                                                            source))
            for (letter, text), source in zip(line.texts.programs, sources, strict=True)]
    if isinstance(pipeline.probes, KernelProbes):
        for report in pipeline.probes.reports:
            tell(f"not probed: {report}")
    for report in () if kernel is None else kernel.said:
        tell(report)
    return pipeline, programs


def _carried_out(line: CommandLine, kernel: TracedKernel | None, pipeline: Pipeline,
                 programs: Sequence[CompiledProgram]) -> int:
    """Run or show compiled programs, and return the exit status."""
    with _output(line.shown.file) as out:
        if line.shown.rewritten:
            show_rewritten(pipeline, programs, line.shown.json)
        if line.shown.listing:
            return show_list(pipeline, programs, line.shown.json, line.shown.verbose)
        if line.shown.show_code:
            show_code(programs)
        if line.shown.compile_only and line.shown.verbose:
            show_promises(pipeline, programs)
        if line.shown.compile_only and line.shown.emit_elf is None:
            return 0
        return TracedRun(pipeline, line, kernel, out).run(programs)


def _check(line: CommandLine, kernel: TracedKernel | None) -> None:
    """Check output files and options before the programs are compiled; add the --tracks program.

    :raises KinstError: when a file cannot be written, or the kernel does not support --tracks.
    """
    if line.shown.report is not None:
        assert kernel is not None
        check_writable(line.shown.report, "--report")
        source_trees(kernel.image, line.shown.sources)
    if line.shown.plot is not None:
        plot.check(line.shown.plot)
    if line.shown.tracks is not None and kernel is not None:
        if kernel.types is None or kernel.breakpoints is None or not any(
                one.provider == "sched" for one in kernel.breakpoints.declared):
            unreadable = [] if kernel.breakpoints is None else kernel.breakpoints.unreadable
            raise KinstError("--tracks: " + ("; ".join(unreadable) or "needs a FreeBSD kernel with "
                                             "debug data or CTF, and --machine unicorn"))
        check_writable(Path(line.shown.tracks), "--tracks")
        line.texts.programs.append(("n", tracks_program(kernel.machine.guest.traps.interrupts)))
        line.texts.options.set("quiet", None)
        if line.texts.options.number("bufsize") == DEFAULTS["bufsize"]:
            line.texts.options.set("bufsize", TRACKS_BUFFER)


def _compiled(pipeline: Pipeline, line: CommandLine, kernel: TracedKernel | None, letter: str,
              text: str, source: str) -> list[Compiled]:
    script = letter == "s"
    try:
        return pipeline.compile(ProgramText(
            source, [text if script else "dtrace", *line.texts.words], _variables(source, kernel),
            string=not script, last=last_part(letter)))
    except DError as error:
        tags = line.texts.options.given("errtags")
        if script:
            raise Failed(f"failed to compile script {text}: {error.said(tags)}") from None
        tag = f"[{error.tag}] " if tags and error.tag else ""
        if kernel is None and text.startswith(KERNELS):
            raise Failed(f"invalid probe specifier {text}: kinst and fbt need a kernel; give one "
                         "with -k, like -k teaching/amd64") from None
        raise Failed(f"invalid probe specifier {text}: {tag}{error.text}") from None


def _variables(source: str, kernel: TracedKernel | None) -> dict[str, int]:
    # $target is looked up only when the program uses it: not every kernel can name a process.
    target = kernel.target_process if kernel and ("$target" in source or "pid`" in source) else 0
    shell = kernel.shell if kernel and "$" in source else {}
    return {"egid": os.getegid(), "euid": os.geteuid(), "gid": os.getgid(), "pid": os.getpid(),
            "pgid": os.getpgid(0), "ppid": os.getppid(), "projid": 0, "sid": os.getsid(0),
            "taskid": 0, "uid": os.getuid()} | shell | {"target": target}


@contextlib.contextmanager
def _output(path: str | None) -> Iterator[IO[str]]:
    """Append standard output to a file, or leave standard output unchanged if the path is None."""
    shown = sys.stdout
    if isinstance(shown, io.TextIOWrapper):
        shown.reconfigure(encoding="utf-8", errors="surrogateescape")  # keep non-UTF-8 bytes
    if path is None:
        yield shown
        return
    try:
        out = shared(appending(path, "surrogateescape"))
    except OSError as error:
        raise KinstError(f"failed to open output file '{path}': {error.strerror}") from None
    with out:
        sys.stdout = out
        try:
            yield out
        finally:
            sys.stdout = shown
