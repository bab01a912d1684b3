"""One order after the other, from one state: the runs are executed as an order says, to their
end."""

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
from kinst_emu.explore.accesses import ENTRY, RunStretch, in_order, read_accesses
from kinst_emu.explore.order import Order, OrderTurn
from kinst_emu.explore.threads import StartedRun, place_of_return
from kinst_emu.explore.trampolines import ProbedRuns

SLEEP = 1_000_000_000  # virtual nanoseconds that a run may sleep before others go on
LONG_TURN = 1 << 30  # instructions: a CPU goes on as long as it can
PAUSES = 3000  # times that a run says that it waits for another one, and is left to go on
FACTOR = 4
SPINS = 400_000  # instructions behind which it is taken to wait, where its CPU does not say so
ANSWER = 20_000  # instructions in which a CPU answers an interrupt
SLEEPS = 8  # times that the last one does so: longer than that nobody sleeps who will go on
ROUNDS = 40  # of all runs in turns, none of which comes to its end: they wait for each other
MOST_LOOKED = 512 << 20  # bytes of entries
DONE, PREEMPTED, STUCK = "done", "preempted", "stuck"


class AccessEntries:
    """What was read and written, as it is told; so much, and no more.

    :raises KinstError: of ``add``, when it is too much.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > MOST_LOOKED:
            raise KinstError(
                f"the runs read and write too much to be looked at (more than "
                f"{MOST_LOOKED // ENTRY.size // 1_000_000} million times), or do not come to their "
                "end")
        self._parts.append(part)

    def take(self) -> bytes:
        parts, self._parts, self._size = self._parts, [], 0
        return b"".join(parts)


@dataclass
class Played:
    """What came of an order.

    :param results: of each run that is done, what its function gave.
    :param end: why it ended before all were; None: all are done.
    :param instructions: executed in all.
    :param accesses: what was read and written by the runs' threads of what several use, where it
        was looked at (``_accesses.pxi``).
    :param waited: a run waited in a turn without an end, and another one went on in its midst.
    :param stretches: in which each run went on.
    """

    order: Order
    results: dict[int, int] = field(default_factory=dict)
    end: Stop | None = None
    instructions: int = 0
    accesses: bytes = b""
    waited: bool = False
    stretches: list[RunStretch] = field(default_factory=list)

    def went_on(self, run: int, begin: int, end: int) -> None:
        """A run went on from one count of the machine's instructions to another one."""
        self.stretches.append(RunStretch(begin, end, run, self.executed(run)))

    def executed(self, run: int) -> int:
        """Instructions of a run so far."""
        return sum(one.end - one.begin for one in self.stretches if one.run == run)


class Stage:
    """Each run has a CPU of its own.

    :param machine: with the runs about to be executed.
    :param limit: instructions after which the runs are taken to never end.
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
        self.longest = 0  # instructions of the longest serial order, as far as it is known
        self.looking: Accesses | None = None
        self.probed: ProbedRuns | None = None
        machine.schedule.length = LONG_TURN
        watch_threads(machine)
        machine.give_turn(0)
        self.mark = machine.mark()
        self.begin, self._time = machine.instructions, machine.engine.time

    def play(self, order: Order, look: bool = False) -> Played:
        """Execute the runs so; the machine is then where they ended.

        :param look: whether accesses are looked at.
        """
        if not look:
            return self._played(order, None)
        return self.play_all([order])[0]

    def play_all(self, orders: Iterable[Order]) -> list[Played]:
        """Execute several orders, and look at their accesses: to begin to look takes long."""
        entries = AccessEntries()
        looking = self.looking = Accesses(self.machine.engine, entries.add, *self.looked_at)
        try:
            return [self._played(order, (looking, entries)) for order in orders]
        finally:
            self._look_no_more()

    def _look_no_more(self) -> None:
        if self.looking is not None:
            looking, self.looking = self.looking, None
            looking.close()

    def _played(self, order: Order, looking: "tuple[Accesses, AccessEntries] | None") -> Played:
        machine = self.machine
        machine.back_to(self.mark)
        if self.probed is not None:
            self.probed.begin()
        played = Played(order)
        self._play(played)
        if looking is not None:
            looking[0].flush()
            found = looking[1].take()
            if self.probed is not None and (more := self.probed.take()):
                found = in_order(found, more)
            played.accesses = shared_entries(found)
        played.instructions = machine.instructions - self.begin
        return played

    def uses(self) -> tuple[set[int], set[int]] | None:
        """The granules that the first run reads and writes when it goes first; None: it does not
        come to its end."""
        entries = AccessEntries()
        self.looking = Accesses(self.machine.engine, entries.add, *self.looked_at)
        try:
            self.machine.back_to(self.mark)
            played = Played(())
            self._begin(played)
            self._turn(OrderTurn(0), played)
        finally:
            self._look_no_more()
        if 0 not in played.results:
            return None
        reads, writes = set[int](), set[int]()
        for access in read_accesses(entries.take()):
            if access.cpu == 0:
                (writes if access.stores else reads).update(access.places)
        return reads, writes

    def stack_at(self, order: Order, position: int) -> list[str]:
        """Who has called what at a count of the machine's instructions, as stack() prints it; the
        machine is then there."""
        limit, self.limit = self.limit, position - self.begin
        try:
            self.play(order)
        finally:
            self.limit = limit
        if self.machine.instructions != position:
            return []
        try:
            return [line.strip() for line in
                    Stacks(self.machine).text(self.machine.read_register)]
        except DebugDataError as error:
            return [f"no stack: {error}"]

    def record(self, order: Order, path: Path, text: str) -> Played:
        """Execute the runs so, and record it: from the state where all orders begin.

        :param text: what is recorded, for people.
        :raises ReplayError: when the file cannot be written.
        """
        self.machine.back_to(self.mark)
        played = Played(order)
        with Recorder(self.machine, path, STATE, text):
            self._play(played)
        return played

    def _begin(self, played: Played) -> None:
        """The machine has gone back to where all orders begin."""

    def _play(self, played: Played) -> None:
        self._begin(played)
        for turn in (*played.order, *(OrderTurn(run) for run in range(len(self.runs)))):
            if turn.run not in played.results and not self._turn(turn, played):
                return

    def _turn(self, turn: OrderTurn, played: Played) -> bool:
        """Have a run go on, and no other, but where it cannot without one: then those, each as far
        as it can.

        :return: whether it can go on behind the turn.
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
        """The last run waits: CPUs whose runs are done may owe it something (an answer to an
        interrupt).  STUCK, or what ended all."""
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
        """Have a run go on by itself: DONE, PREEMPTED, STUCK, or what ended all."""
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
        """Which run has come to its end; by its thread, which may be on another CPU now.  None: a
        process that a program has made."""
        if not self.runs[0].thread:
            return self.machine.cpu.number
        thread = thread_of(self.machine)
        return next((n for n, one in enumerate(self.runs) if one.thread == thread), None)

    def result(self, run: int) -> int:
        """What a run gives that has just come to its end: of a program, its exit status, above it
        the number of the signal that ended it."""
        machine = self.machine
        if not self.runs[run].program:
            return machine.read_register(machine.arch.result)
        status, number = (machine.read_register(machine.arch.arguments[n]) & 0xFFFFFFFF
                          for n in (1, 2))
        return status | number << 32

    def end_run(self) -> None:
        """The run is done: its thread ends when its CPU has a turn again; a CPU without threads is
        switched off."""
        machine = self.machine
        if self.runs[0].program:
            return  # it ends by itself
        if self._leave is None:
            machine.switch_off()
            return
        machine.arch.prepare_call(machine, (), self.back)
        machine.pc = self._leave
