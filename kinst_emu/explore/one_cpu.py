"""Stage on which the runs share one CPU, whose timer interrupt preempts the runs.

A schedule determines where the interrupt occurs; the kernel then switches to another thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dtrace.debug.kernel_types import kernel_types
from dtrace.stacks.threads import structure
from dwarf.types import Structure, find_member
from dwarf.values import CStruct
from emu.guest.guest import ThreadSwitch
from emu.host.errors import KinstError
from emu.machine.machine import Stop, StopReason, Until
from emu.machine.running_thread import thread_of
from emu.unicorn.machine import UnicornMachine
from kinst_emu.explore.schedule import ScheduleTurn
from kinst_emu.explore.stage import FACTOR, SLEEP, SLEEPS, SPINS, Played, Stage
from kinst_emu.explore.threads import StartedRun, place_of_first

# Reasons for a stop after which the run's turn continues.
GOES_ON = (StopReason.ADDRESS, StopReason.INSTRUCTIONS, StopReason.INTERRUPT, StopReason.TIME,
           StopReason.HALT)


@dataclass
class _Runner:
    """State of a run while a schedule is executed.

    :param begun: whether its call has begun.
    :param returns: (pc, sp) to which the run returns after a preemption or after giving up the CPU;
        None: it is not switched out.
    """

    begun: bool = False
    returns: tuple[int, int] | None = None

    @property
    def goes_on(self) -> bool:
        """Whether the instructions that the thread executes belong to its run."""
        return self.begun and self.returns is None


class OneCpuStage(Stage):
    """Stage with one CPU, on which the first run is about to begin and the others are queued."""

    def __init__(self, machine: UnicornMachine, runs: Sequence[StartedRun], limit: int) -> None:
        switch, symbols = machine.guest.threads.switch, machine.image.symbols
        assert switch is not None  # only kernels with threads use this stage
        self._switch: ThreadSwitch = switch
        functions = [one for one in map(symbols.find, switch.functions) if one is not None]
        start = machine.guest.threads.start
        thread = None if start is None else structure(kernel_types(machine.image), start.thread)
        if not functions or thread is None:
            raise KinstError("cannot find the kernel's thread-switch functions or its thread "
                             "structure (missing symbols or debug data); omit --cpus to give each "
                             "run its own CPU")
        self._thread: Structure = thread
        self._switches = [one.address for one in functions]
        self._first = place_of_first(machine)
        super().__init__(machine, runs, limit)
        member = find_member(thread, switch.nesting)
        if member is None:
            raise KinstError(f"the kernel's struct {thread.name} has no {switch.nesting}; omit "
                             "--cpus to give each run its own CPU")
        nested = member.offset // 8
        nesting = [machine.translate(run.thread + nested) for run in runs]
        if None in nesting:
            raise KinstError("the structure of a thread is not mapped in guest memory")
        self.looked_at = [run.thread for run in runs], [one for one in nesting if one is not None]

    # -- the run on the CPU -----------------------------------------------------------------------

    def _begin(self, played: Played) -> None:
        self._runners = [_Runner() for _run in self.runs]
        self._runners[0].begun = True
        self._on: int | None = 0
        self._owes = False  # whether the running thread was asked to give up the CPU
        self._since = self.machine.instructions

    def _number(self, thread: int) -> int | None:
        return next((n for n, run in enumerate(self.runs) if run.thread == thread), None)

    def _goes(self) -> int | None:
        """Return the number of the run whose code the CPU is executing, or None for other code."""
        return self._on if self._on is not None and self._runners[self._on].goes_on else None

    def _note(self, played: Played) -> None:
        """Attribute the instructions since the last call to the run whose code the CPU executes."""
        run, now = self._goes(), self.machine.instructions
        if run is not None and run not in played.results and now > self._since:
            played.went_on(run, self._since, now)
        self._since = now

    def _look(self, played: Played) -> None:
        """Observe memory accesses only while a run executes its own instructions."""
        if self.looking is not None:
            run = self._goes()
            self.looking.away = run is None or run in played.results

    # -- execution --------------------------------------------------------------------------------

    def _run(self, played: Played, instructions: int, interrupts: bool = False) -> Stop:
        """Run the machine until a thread switch, the beginning or end of a run, or a limit."""
        runner = None if self._on is None else self._runners[self._on]
        returns = runner.returns if runner is not None else None
        self._look(played)
        stop = self.machine.run(Until(
            addresses=[self.back, *self._switches, *self._starts(),
                       *([returns[0]] if returns else ())],
            instructions=instructions, time=self.machine.engine.time + SLEEP,
            interrupts=interrupts))
        self._note(played)
        if stop.reason is StopReason.ADDRESS:
            self._came(stop.pc, played)
            self._since = self.machine.instructions
        return stop

    def _came(self, pc: int, played: Played) -> None:
        machine = self.machine
        if pc in self._switches:
            leaves = self._number(machine.read_register(machine.arch.arguments[0]))
            if leaves is not None and self._runners[leaves].goes_on:
                self._runners[leaves].returns = self._back_from_switch()
            self._on = self._number(machine.read_register(machine.arch.arguments[1]))
            self._owes = False
            return
        run = self._number(thread_of(machine))
        if run is None:
            return
        runner = self._runners[run]
        if not runner.begun and pc == self._start(self.runs[run]):
            self._begin_run(self.runs[run])
            runner.begun, runner.returns = True, None
        elif pc == self.back and run not in played.results:
            played.results[run] = self.result(run)
            if len(played.results) < len(self.runs):
                self.end_run()
                self._on = None
        elif runner.returns == (pc, machine.sp):
            runner.returns = None

    def _start(self, run: StartedRun) -> int:
        """Return the address that a run's thread reaches just before the run begins."""
        return run.address if run.program else self._first

    def _starts(self) -> set[int]:
        """Return the start addresses of the runs that have not begun yet."""
        return {self._start(run) for run, runner in zip(self.runs, self._runners, strict=True)
                if not runner.begun}

    def _begin_run(self, run: StartedRun) -> None:
        machine = self.machine
        if not run.program:
            machine.arch.prepare_call(machine, run.arguments, self.back)
            machine.pc = run.address

    def _back_from_switch(self) -> tuple[int, int]:
        """Return the values that pc and sp will have when the function just entered returns."""
        machine = self.machine
        back = machine.arch.return_address(machine)
        return back, machine.arch.stack_after_return(machine)

    def _turn(self, turn: ScheduleTurn, played: Played) -> bool:
        machine, run = self.machine, turn.run
        most = last = self.begin + self.limit
        awake = machine.engine.time  # virtual time at which a run was last on the CPU
        if self.longest and not machine.panics:
            last = min(last, self.begin + len(self.runs) * max(SPINS, FACTOR * self.longest))
        goal = None if turn.count is None else played.executed(run) + turn.count
        had = False  # whether the run has been on the CPU in this turn
        while run not in played.results:
            left = None if goal is None else goal - played.executed(run)
            if left is not None and left <= 0:
                return True
            had = had or self._on == run
            if not (had or self._owes or self._on is None) and self._could_run(run):
                stop = self._preempt(played, last)
            else:
                mine = left is not None and self._goes() == run
                stop = self._run(played, min(last, machine.instructions + (left or 0))
                                 if mine else last)
            played.waited |= goal is None and had and self._goes() not in (None, run)
            if self._on is not None:
                awake = machine.engine.time
            if stop.reason is StopReason.INTERRUPTED:
                raise KeyboardInterrupt
            elif stop.reason is StopReason.INSTRUCTIONS and machine.instructions >= last:
                if machine.panics and last < most:
                    last = most  # let the kernel print the panic message
                    continue
                played.end = Stop(StopReason.PATIENCE if self.longest else stop.reason, stop.pc)
                return False
            elif stop.reason not in GOES_ON:
                played.end = stop
                return False
            if stop.reason is StopReason.HALT or machine.engine.time - awake > SLEEPS * SLEEP:
                played.end = Stop(StopReason.PATIENCE, machine.pc)
                return False
        return True

    def _could_run(self, run: int) -> bool:
        """Return whether a run's thread is ready, and only waits for the CPU."""
        thread = CStruct(self._thread, self.runs[run].thread, self.machine)
        return int(thread[self._switch.state]) == self._switch.queued

    def _preempt(self, played: Played, last: int) -> Stop:
        """Raise the timer interrupt, and let the interrupted thread give up the CPU afterward."""
        assert self._on is not None
        machine, run, switch = self.machine, self._on, self._switch
        machine.ring_timer()
        stop = self._run(played, last, interrupts=True)
        if stop.reason is not StopReason.INTERRUPT:
            return stop
        runner = self._runners[run]
        if runner.goes_on:
            runner.returns = machine.pc, machine.sp
        thread = CStruct(self._thread, self.runs[run].thread, machine)
        self._owes = True
        thread[switch.owes] = 1
        thread[switch.flags] = int(thread[switch.flags]) | switch.ended
        return self._run(played, last)
