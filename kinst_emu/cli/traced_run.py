"""One run of kdtrace and its output files: tracks, plots, pages, BPF objects."""

import contextlib
import io
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

from dtrace.bpf.object_file import object_file
from dtrace.d.compile.program import Compiled, singly
from dtrace.pipeline import Pipeline
from dtrace.run.consumer import Enabled
from dtrace.run.session import Session
from dtrace.run.tracks import TrackWriter
from dtrace.run.values import recorded
from emu.host.atomic_file import replacing
from emu.host.errors import KinstError
from emu.unicorn.machine import UnicornMachine
from kinst_emu.cli.command_line import CommandLine
from kinst_emu.cli.compiled_programs import CompiledProgram, say_matched
from kinst_emu.cli.say import say
from kinst_emu.cli.traced_kernel import IDLE, TracedKernel
from kinst_emu.report import plot
from kinst_emu.terminal.json_lines import JsonLines
from kinst_emu.trace_page.page import write

BEGIN = "dtrace:::BEGIN"


class TracedRun:
    """One run of compiled programs, from the first probe to the last output.

    :param kernel: the traced kernel; None when only DTrace's own probes are traced.
    :param out: stream for the output of the programs.
    """

    def __init__(self, pipeline: Pipeline, line: CommandLine, kernel: TracedKernel | None,
                 out: IO[str]) -> None:
        self._pipeline, self._line, self._kernel, self._out = pipeline, line, kernel, out
        self._rows = JsonLines(out) if line.shown.json else None
        self._tracks: TrackWriter | None = None
        self._ran = False

    def run(self, programs: Sequence[CompiledProgram]) -> int:
        """Link and run compiled programs, and return the exit status.

        :raises KinstError: with the error message of dtrace(1).
        """
        kernel, options, line = self._kernel, self._pipeline.options, self._line
        everything = [clause for program in programs for clause in program.clauses]
        if kernel is not None and kernel.idle and not any(
                probe.text == BEGIN or probe.provider == "profile"
                for clause in everything for probe in singly(clause.probes)):
            raise KinstError(IDLE)
        say_matched(programs, options.given("quiet"), line.shown.verbose and not line.shown.json)
        if not any(clause.probes for clause in everything) and not options.given("zdefs"):
            raise KinstError("no probes matched")
        with self._tracked():
            return self._run_linked(everything)

    def rehearse(self, programs: Sequence[CompiledProgram]) -> list[tuple[int, str]]:
        """Link and run programs without output, and return what ``system()`` typed meanwhile.

        :raises KinstError: with the error message of dtrace(1), if the programs cannot be linked.
        """
        assert self._kernel is not None
        everything = [clause for program in programs for clause in program.clauses]
        return self._kernel.rehearse(self._pipeline.link(everything, io.StringIO()))

    @contextlib.contextmanager
    def _tracked(self) -> Iterator[None]:
        """Write the ``--tracks`` file, which replaces an existing file only when it is complete."""
        if self._line.shown.tracks is None or self._kernel is None:
            yield
            return
        path = Path(self._line.shown.tracks)
        failure = None
        with replacing(path) as file:
            self._tracks = TrackWriter(file, self._kernel.machine.guest.traps.interrupts)
            try:
                yield
            except KinstError as error:
                if not self._ran:
                    raise
                failure = error  # keep the events recorded before the failure
            self._tracks.finish()
        if failure is not None:
            raise failure
        left_out = self._tracks.left_out
        say(f"wrote {path}" + (f"; {left_out} events over the limit were lost" * bool(left_out))
            + "; open it at https://ui.perfetto.dev")

    def _run_linked(self, everything: list[Compiled]) -> int:
        line, kernel, options = self._line, self._kernel, self._pipeline.options
        sink = self._tracks.row if self._tracks else None if self._rows is None else self._rows.row
        session = self._pipeline.link(everything, self._out, sink)
        if line.shown.emit_elf is not None:
            try:
                with replacing(Path(line.shown.emit_elf)) as file:
                    file.write(object_file(session.linked,
                                           bytes(self._pipeline.compiler.storage.strings)))
            except OSError as error:
                raise KinstError(f"--emit-elf {line.shown.emit_elf}: {error.strerror}") from None
        if line.shown.compile_only:
            return 0

        def interrupted(_number: int, _frame: FrameType | None) -> None:
            if session.interrupted:
                raise KeyboardInterrupt
            session.interrupted = True

        if kernel is None:  # otherwise, the running machine handles SIGINT
            signal.signal(signal.SIGINT, interrupted)
        if options.given("destructive") and not options.given("quiet"):
            say("allowing destructive actions")
        if line.shown.report is not None and line.texts.frames is not None:
            session.seen = self._seen
        self._ran = True
        try:
            return self._traced(session)
        finally:
            if line.shown.plot is not None:
                plot.draw(session.aggregated(), session.timed(), line.shown.plot)
            if line.shown.report is not None and kernel is not None and kernel.breakpoints:
                kernel.collect()
                kernel.collected.aggregated(session.aggregated(empty=True))
                write(line.shown.report, kernel.collected, kernel.breakpoints)

    def _seen(self, enabled: Enabled, _cpu: int, content: bytes) -> None:
        """Add the stack in a record to the page, if the record comes from ``--stack``."""
        assert self._kernel is not None
        action = enabled.function.actions[-1] if enabled.function.actions else None
        if action is not None and action.name == "stack":
            f = action.fields[0]
            frames = recorded(f, content[f.offset : f.offset + f.size],
                              self._kernel.target.symbols)
            if isinstance(frames, list):
                self._kernel.collected.stack("--stack", [str(frame).strip() for frame in frames])

    def _traced(self, session: Session) -> int:
        """Run the trace and return the exit status."""
        kernel, rows = self._kernel, self._rows
        if kernel is None:
            return session.run() & 0xFF
        for reason in dict.fromkeys(session.unknown.values()):
            names = ", ".join(sorted(name for name, why in session.unknown.items()
                                     if why == reason))
            say(f"{kernel.image.path}: variables not available: {names} ({reason}); an action that "
                "reads one causes an illegal operation")
        kernel.command_by(session, rows)
        try:
            status = session.run(lambda: kernel.run(session, rows)) & 0xFF
        finally:
            kernel.commands.forget()
        player = kernel.player
        if player is not None and player.recording.problem:
            say(f"the recording ends at {player.recording.last}: {player.recording.problem}")
        if player is not None and player.at_end:
            difference = player.difference()
            if difference:
                raise KinstError(f"{player.recording.path}: the run ended in a different state "
                                 f"than the recording: {difference}")
        if self._line.shown.digest:
            assert isinstance(kernel.machine, UnicornMachine)
            digest = kernel.machine.digest()
            if rows is None:
                print(f"digest {digest}")
            else:
                rows.row({"digest": digest})
        return status
