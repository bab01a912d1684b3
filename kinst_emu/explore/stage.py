"""Stage that executes schedules of the runs, each from the same initial state."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dtrace.stacks.stack import Stacks
from dwarf.debug_file import DebugDataError
from emu.host.errors import KinstError
from emu.machine.machine import Stop, StopReason, Until
from emu.machine.running_thread import thread_of
from emu.replay.recording import Recorder
from emu.replay.starts import STATE
from emu.unicorn._accesses import Accesses, shared_entries
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.running_thread import watch_threads
from images.kept_contents import KeptContents
from kinst_emu.explore.accesses import ENTRY, RunStretch, in_order, read_accesses
from kinst_emu.explore.schedule import Schedule, ScheduleTurn
from kinst_emu.explore.threads import StartedRun, place_of_return
from kinst_emu.explore.trampolines import ProbedRuns

# Maximum virtual time that a run may sleep before others continue, in nanoseconds.
SLEEP = 1_000_000_000
LONG_TURN = 1 << 30  # length of a CPU's turn in instructions: practically unlimited
# number of wait signals of a run after which other runs continue
PAUSES = 3000
# FACTOR times the length of the longest serial schedule replaces SPINS if it is larger
FACTOR = 4
# number of instructions after which a run counts as waiting, on CPUs without a signal for waiting
SPINS = 400_000
ANSWER = 20_000  # maximum number of instructions until a CPU answers an interrupt
SLEEPS = 8  # number of sleeps after which the last unfinished run counts as stuck
# after this many switches per run within one turn, the runs count as waiting for each other
ROUNDS = 40
MOST_LOOKED = 512 << 20  # maximum size of the access entries of a schedule, in bytes
DONE, PREEMPTED, STUCK = "done", "preempted", "stuck"


class AccessEntries:
    """Buffer of limited size for access entries."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, part: bytes) -> None:
        """Append access entries to the buffer.

        :raises KinstError: the entries exceed the size limit.
        """
        self._size += len(part)
        if self._size > MOST_LOOKED:
            raise KinstError(
                f"the runs make more than {MOST_LOOKED // ENTRY.size // 1_000_000} million memory "
                "accesses; perhaps they do not finish")
        self._parts.append(part)

    def take(self) -> bytes:
        """Return all access entries, and clear the buffer."""
        parts, self._parts, self._size = self._parts, [], 0
        return b"".join(parts)


@dataclass
class Played:
    """Outcome of executing a schedule.

    :param results: results of the finished runs, by number.
    :param end: why execution stopped before all runs finished; None: all finished.
    :param instructions: total number of executed instructions.
    :param accesses: entries of the accesses by the runs' threads to memory that several of them
        use; empty if accesses were not observed.
    :param waited: whether a run waited in a turn without a count, and another one continued
        meanwhile.
    :param stretches: uninterrupted parts of all runs.
    """

    schedule: Schedule
    results: dict[int, int] = field(default_factory=dict)
    end: Stop | None = None
    instructions: int = 0
    accesses: bytes = b""
    waited: bool = False
    stretches: list[RunStretch] = field(default_factory=list)

    def went_on(self, run: int, begin: int, end: int) -> None:
        """Record an uninterrupted part of a run, given by two instruction counts of the machine."""
        self.stretches.append(RunStretch(begin, end, run, self.executed(run)))

    def executed(self, run: int) -> int:
        """Return the number of instructions that a run has executed so far."""
        return sum(one.end - one.begin for one in self.stretches if one.run == run)


class Stage:
    """Machine that is prepared to execute schedules, with a separate CPU for each run.

    :param machine: a machine on which the runs are about to be executed.
    :param limit: instructions after which the runs are considered never to finish.
    """

    def __init__(self, machine: UnicornMachine, runs: Sequence[StartedRun], limit: int) -> None:
        self.machine, self.runs, self.limit = machine, runs, limit
        self.back = place_of_return(machine)
        program = machine.guest.programs.start
        if runs[0].program and program is not None:
            self.back = machine.symbol(program.ends).address
        start = machine.guest.threads.start
        leave = None if start is None else machine.image.symbols.find(start.exit)
        self._leave = leave.address if leave is not None and runs[0].thread else None
        self.looked_at: tuple[Sequence[int], Sequence[int]] = (
            [run.thread for run in runs] if all(run.thread for run in runs) else (), ())
        self.longest = 0  # number of instructions of the longest serial schedule; 0: unknown
        self.looking: Accesses | None = None
        self.probed: ProbedRuns | None = None
        machine.schedule.length = LONG_TURN
        watch_threads(machine)
        machine.give_turn(0)
        self.mark = machine.mark()
        self.begin, self._time = machine.instructions, machine.engine.time

    def play(self, schedule: Schedule, look: bool = False) -> Played:
        """Execute a schedule, and leave the machine in the final state.

        :param look: whether to observe memory accesses.
        """
        if not look:
            return self._played(schedule, None)
        return self.play_all([schedule])[0]

    def play_all(self, schedules: Iterable[Schedule]) -> list[Played]:
        """Execute several schedules and observe their memory accesses, with a single setup."""
        entries = AccessEntries()
        looking = self.looking = Accesses(self.machine.engine, entries.add, *self.looked_at)
        try:
            return [self._played(schedule, (looking, entries)) for schedule in schedules]
        finally:
            self._look_no_more()

    def _look_no_more(self) -> None:
        if self.looking is not None:
            looking, self.looking = self.looking, None
            looking.close()

    def _played(self, schedule: Schedule,
                looking: "tuple[Accesses, AccessEntries] | None") -> Played:
        machine = self.machine
        machine.back_to(self.mark)
        if self.probed is not None:
            self.probed.begin()
        played = Played(schedule)
        self._play(played)
        if looking is not None:
            looking[0].flush()
            entries = looking[1].take()
            if self.probed is not None and (more := self.probed.take()):
                entries = in_order(entries, more)
            played.accesses = shared_entries(entries)
        played.instructions = machine.instructions - self.begin
        return played

    def uses(self) -> tuple[set[int], set[int]] | None:
        """Execute the first run, and return the granules that the run reads and writes.

        :return: None if the run does not finish.
        """
        entries = AccessEntries()
        self.looking = Accesses(self.machine.engine, entries.add, *self.looked_at)
        try:
            self.machine.back_to(self.mark)
            played = Played(())
            self._begin(played)
            self._turn(ScheduleTurn(0), played)
        finally:
            self._look_no_more()
        if 0 not in played.results:
            return None
        reads, writes = set[int](), set[int]()
        for access in read_accesses(entries.take()):
            if access.cpu == 0:
                (writes if access.stores else reads).update(access.places)
        return reads, writes

    def stack_at(self, schedule: Schedule, position: int) -> list[str]:
        """Execute a schedule up to an instruction count, and return the call stack there.

        The machine stays at that point.

        :return: lines as the D action stack() prints them; empty if the count is never reached.
        """
        limit, self.limit = self.limit, position - self.begin
        try:
            self.play(schedule)
        finally:
            self.limit = limit
        if self.machine.instructions != position:
            return []
        try:
            return [line.strip() for line in
                    Stacks(self.machine).text(self.machine.read_register)]
        except DebugDataError as error:
            return [f"stack not available: {error}"]

    def record(self, schedule: Schedule, path: Path, text: str) -> Played:
        """Execute a schedule from the initial state, and record the execution to a file.

        :param text: title of the recording.
        :raises ReplayError: the file cannot be written.
        """
        self.machine.back_to(self.mark)
        played = Played(schedule)
        with Recorder(self.machine, path, STATE, text, KeptContents(path)):
            self._play(played)
        return played

    def _begin(self, played: Played) -> None:
        """Prepare for a schedule, after the machine has returned to the initial state."""

    def _play(self, played: Played) -> None:
        self._begin(played)
        for turn in (*played.schedule, *(ScheduleTurn(run) for run in range(len(self.runs)))):
            if turn.run not in played.results and not self._turn(turn, played):
                return

    def _turn(self, turn: ScheduleTurn, played: Played) -> bool:
        """Execute one turn of a schedule.

        If the run cannot continue without other runs, those continue, each as far as possible.

        :return: whether the schedule can continue after the turn.
        """
        run, left, alone = turn.run, turn.count, 0
        for _ in range(ROUNDS * len(self.runs)):
            before = self.machine.instructions
            ended = self._go(run, left if run == turn.run else None, played)
            if not isinstance(ended, str):
                played.end = ended
                return False
            if run == turn.run:
                if ended != STUCK:
                    return True
                played.waited |= left is None
                if left is not None:
                    left -= min(left, self.machine.instructions - before)
            others = [one for one in range(len(self.runs)) if one not in played.results]
            run = next((one for one in (*others[others.index(run) + 1 :], *others)
                        if one != run), run) if run in others else turn.run
            if len(others) == 1 and ended == STUCK:
                alone += 1
                ended = self._let_others(run)
                if not isinstance(ended, str):
                    played.end = ended
                    return False
            if alone > SLEEPS:
                break
        played.end = Stop(StopReason.PATIENCE, self.machine.pc)
        return False

    def _let_others(self, run: int) -> str | Stop:
        """Let the CPUs of finished runs answer interrupts; the last run may wait for an answer.

        :return: STUCK, or the stop that ends the schedule.
        """
        machine = self.machine
        for cpu in machine.cpus:
            if cpu.number == run or not cpu.on or machine.schedule.waits[cpu.number] is not None:
                continue
            machine.give_turn(cpu.number, [n for n in range(len(machine.cpus)) if n != cpu.number])
            stop = machine.run(Until(instructions=machine.instructions + ANSWER,
                                     time=machine.engine.time + SLEEP))
            if stop.reason is StopReason.INTERRUPTED:
                raise KeyboardInterrupt
            if stop.reason not in (StopReason.INSTRUCTIONS, StopReason.TIME, StopReason.HALT,
                                   StopReason.PATIENCE):
                return stop
        return STUCK

    def _go(self, run: int, count: int | None, played: Played) -> str | Stop:
        """Execute a run while the other unfinished runs are held.

        :return: DONE, PREEMPTED, STUCK, or the stop that ends the schedule.
        """
        begin = self.machine.instructions
        try:
            return self._alone(run, count, played)
        finally:
            played.went_on(run, begin, self.machine.instructions)
            self.machine.schedule.left = None

    def _alone(self, run: int, count: int | None, played: Played) -> str | Stop:
        machine = self.machine
        held = [one for one in range(len(self.runs)) if one != run and one not in played.results]
        machine.give_turn(run, held, PAUSES)
        last = self.begin + self.limit
        goal = last + 1 if count is None else machine.instructions + count
        end = min(last, goal)
        if not machine.cpu.spins_aloud:
            end = min(end, machine.instructions + max(SPINS, FACTOR * self.longest))
        asleep = machine.engine.time + SLEEP
        machine.schedule.left = 1
        stop = machine.run(Until(addresses=[self.back], instructions=end,
                                 time=asleep))
        while stop.reason is StopReason.ADDRESS or (
                stop.reason is StopReason.PATIENCE and not machine.schedule.borne):
            if stop.reason is StopReason.ADDRESS:
                done = self._who()
                if done is not None and done not in played.results:
                    played.results[done] = self.result(done)
                    if len(played.results) == len(self.runs):
                        return DONE
                    self.end_run()
                    if done == run:
                        return DONE
            machine.schedule.left = 1
            stop = machine.run(Until(addresses=[self.back], instructions=end,
                                     time=asleep))
        if stop.reason is StopReason.INTERRUPTED:
            raise KeyboardInterrupt
        if stop.reason is StopReason.INSTRUCTIONS:
            if machine.instructions >= last:
                return stop
            return PREEMPTED if machine.instructions >= goal else STUCK
        if stop.reason in (StopReason.PATIENCE, StopReason.TIME, StopReason.HALT):
            return STUCK
        return stop

    def _who(self) -> int | None:
        """Return the run whose thread has just finished, possibly on another run's CPU.

        :return: None if the thread belongs to a process that a program created.
        """
        if not self.runs[0].thread:
            return self.machine.cpu.number
        thread = thread_of(self.machine)
        return next((n for n, one in enumerate(self.runs) if one.thread == thread), None)

    def result(self, run: int) -> int:
        """Return the result of a run that has just finished.

        The result of a program is its exit status, plus 2^32 times the number of the signal that
        ended it.
        """
        machine = self.machine
        if not self.runs[run].program:
            return machine.read_register(machine.arch.result)
        status, number = (machine.read_register(machine.arch.arguments[n]) & 0xFFFFFFFF
                          for n in (1, 2))
        return status | number << 32

    def end_run(self) -> None:
        """Let the thread of a finished run exit in the next turn of its CPU.

        A CPU without threads is switched off.
        """
        machine = self.machine
        if self.runs[0].program:
            return  # a program exits by itself
        if self._leave is None:
            machine.switch_off()
            return
        machine.arch.prepare_call(machine, (), self.back)
        machine.pc = self._leave
