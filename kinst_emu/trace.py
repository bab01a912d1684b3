"""A trace while it runs: firings, their actions, the guest's console, in the order they came."""

import contextlib
import signal
import sys
from collections.abc import Iterator, Sequence

from dtrace.actions import Action
from kinst.breakpoints import Breakpoints, NativeState
from kinst.probe_table import Probe
from kinst.trap import CpuState
from kinst_emu.trace_output import TraceOutput

PERIOD = 0.25  # seconds between looks at what has fired


class Trace:
    """:param actions: of every firing; without any, firings are recorded natively and listed."""

    def __init__(
        self, breakpoints: Breakpoints, output: TraceOutput, actions: Sequence[Action]
    ) -> None:
        self.breakpoints, self.output, self._actions = breakpoints, output, actions
        self._busy = False  # what the clock interrupts may be writing
        if actions:
            breakpoints.fire = self._fired

    def _fired(self, probe: Probe, state: CpuState | NativeState) -> None:
        lines = [line for action in self._actions for line in action.lines(state.get)]
        with self._writing():
            machine = self.breakpoints.machine
            self.output.firing(probe, machine.instructions, lines=lines,
                               time=machine.engine.instructions + machine.engine.skew)

    def rows(self) -> None:
        """Show what has been recorded."""
        with self._writing():
            for firing in self.breakpoints.firings():
                self.output.firing(firing.probe, firing.instructions, firing.registers,
                                   time=firing.time)

    def byte(self, byte: int) -> None:
        """The guest has written to its console."""
        self.rows()
        with self._writing():
            self.output.byte(byte)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    @contextlib.contextmanager
    def streaming(self) -> Iterator[None]:
        """Rows appear soon after they came, also where the guest says nothing."""
        before = signal.signal(signal.SIGALRM, self._tick)
        signal.setitimer(signal.ITIMER_REAL, PERIOD, PERIOD)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _tick(self, _signal: int, _frame: object) -> None:
        if not self._busy:
            self.rows()
            sys.stdout.flush()
