"""One order after the other, from one state: the runs are executed as an order says, to their
end."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from emu.machine import Stop, StopReason, Until
from emu.replay.recording import Recorder
from emu.replay.starts import STATE
from emu.unicorn._engine import Accesses, shared_entries
from emu.unicorn.machine import UnicornMachine
from kinst_emu.explore.order import Order, OrderTurn
from kinst_emu.explore.threads import StartedRun

PATIENCE = 10_000_000_000  # virtual nanoseconds in which the runs are done: longer than who sleeps
LONG_TURN = 1 << 30  # instructions: a CPU goes on as long as it can
MOST_TURNS = 3000  # that are given away behind one of an order's: somebody waits for long
BRIEF_TURN = 20_000  # where a CPU does not say that it waits for another one


@dataclass
class Played:
    """What came of an order.

    :param results: of each run that is done, what its function gave.
    :param end: why it ended before all were; None: all are done.
    :param instructions: executed in all.
    :param accesses: what was read and written of what several runs use, where it was looked at
        (``_accesses.pxi``).
    :param ends: instructions that were executed when each run was done.
    """

    order: Order
    results: dict[int, int] = field(default_factory=dict)
    end: Stop | None = None
    instructions: int = 0
    accesses: bytes = b""
    ends: dict[int, int] = field(default_factory=dict)


class Stage:
    """:param machine: with the runs about to be executed, one on each CPU.
    :param back: the address that each comes to when it is done.
    :param limit: instructions after which the runs are taken to never end.
    """

    def __init__(self, machine: UnicornMachine, runs: Sequence[StartedRun], back: int,
                 limit: int) -> None:
        self.machine, self.runs, self.limit = machine, runs, limit
        self.back = back
        start = machine.guest.thread_start
        leave = None if start is None else machine.image.symbols.find(start.exit)
        self._leave = None if leave is None else leave.address
        machine.schedule.length = LONG_TURN if machine.cpu.spins_aloud else BRIEF_TURN
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
        entries: list[bytes] = []
        looking = Accesses(self.machine.engine, entries.append)
        try:
            return [self._played(order, (looking, entries)) for order in orders]
        finally:
            looking.close()

    def _played(self, order: Order, looking: tuple[Accesses, list[bytes]] | None) -> Played:
        machine = self.machine
        machine.back_to(self.mark)
        played = Played(order)
        self._play(played)
        if looking is not None:
            looking[0].flush()
            played.accesses = shared_entries(b"".join(looking[1]))
            looking[1].clear()
        played.instructions = machine.instructions - self.begin
        return played

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

    def go_on(self, played: Played, limit: int) -> None:
        """Where the runs did not come to their end within the limit: have them go on for more.

        :param limit: instructions, from the begin.
        """
        before, self.limit = self.limit, limit
        played.end = None
        try:
            self._rest(played)
        finally:
            self.limit = before

    def _play(self, played: Played) -> None:
        for turn in played.order:
            if turn.run not in played.results and not self._turn(turn, played):
                return
        self._rest(played)

    def _rest(self, played: Played) -> None:
        """Each to its end."""
        for run in range(len(self.runs)):
            if run not in played.results and not self._turn(OrderTurn(run), played):
                return

    def _turn(self, turn: OrderTurn, played: Played) -> bool:
        """Whether it can go on behind the turn."""
        machine = self.machine
        machine.give_turn(turn.run)
        machine.schedule.left = MOST_TURNS
        last = self.begin + self.limit
        end = last if turn.count is None else min(last, machine.instructions + turn.count)
        while True:
            stop = machine.run(Until(addresses=[self.back], instructions=end,
                                     time=self._time + PATIENCE))
            if stop.reason is StopReason.INTERRUPTED:
                raise KeyboardInterrupt
            if stop.reason is not StopReason.ADDRESS:
                break
            run = machine.cpu.number
            if run not in played.results:
                played.results[run] = machine.read_register(machine.arch.result)
                played.ends[run] = machine.instructions
            if len(played.results) == len(self.runs):
                return True
            self.end_run()
            if run == turn.run:
                return True
            machine.give_turn(turn.run)
        if stop.reason is StopReason.INSTRUCTIONS and machine.instructions < last:
            return True
        played.end = stop
        machine.schedule.left = None
        return False

    def end_run(self) -> None:
        """The run is done: its thread ends when its CPU has a turn again; a CPU without threads is
        switched off."""
        machine = self.machine
        if self._leave is None:
            machine.switch_off()
            return
        machine.arch.prepare_call(machine, (), self.back)
        machine.pc = self._leave
