"""``vtimestamp``: how long the running thread has had a CPU, from what the kernel counts."""

from collections.abc import Callable

from emu.guest.guest import ThreadClock
from emu.machine.machine import Machine

SHORT = 0xFFFF_FFFF  # of a counter that the kernel reads 32 bits of
AHEAD = 1_000_000  # ns: the kernel's reading of the counter is at most this far ahead of ours


class ThreadTime:
    """What the kernel has added up for a thread, and what has passed since then.

    The kernel counts ticks of a counter.  One that the machine drives by its own time needs no
    reading, which would take time; others are not supported.

    :param place: gives a member's offset and size; None: there is no such member.
    :param read: gives a number of the guest's memory, of so many bytes.
    """

    def __init__(self, machine: Machine, clock: ThreadClock,
                 place: Callable[[str, str], tuple[int, int] | None],
                 read: Callable[[int, int], int]) -> None:
        self._symbols, self._clock, self._read = machine.image.symbols, clock, read
        self._ran, self._since, self._tid = (
            place(*member) for member in (clock.ran, clock.since, clock.tid))
        self._reader, self._timecounter = (
            None if symbol is None else symbol.address
            for symbol in map(machine.image.symbols.find, (clock.reader, clock.timecounter)))
        self._members = [place(*member) for member in clock.members]
        self._counters: dict[int, tuple[int, int] | None] = {}  # by the address of their function
        self._adding: dict[int, bool] = {}  # by address
        # Of a thread: its number, the last time, and when that was given.
        self._given: dict[int, tuple[int, int, int]] = {}

    @property
    def problem(self) -> str:
        """Why nothing is known of any thread; empty: something may be."""
        clock = self._clock
        if None in (self._ran, self._since, self._tid, *self._members):
            return "its debug data has no processes and threads"
        if self._reader is None or self._timecounter is None:
            return f"it has no symbol {clock.reader if self._reader is None else clock.timecounter}"
        return ""

    def adding(self, pc: int) -> bool:
        """Whether an instruction is in a function that adds up: between two of its stores a time is
        counted twice."""
        found = self._adding.get(pc)
        if found is None:
            function = self._symbols.function_at(pc)
            found = self._adding[pc] = (function is not None and function.address != pc
                                        and function.name in self._clock.adders)
        return found

    def of(self, thread: int, cpu: int, now: int) -> int | None:
        """Nanoseconds up to ``now``, never fewer than before; None: the kernel does not count yet,
        or uses a counter that the machine does not drive.

        :param thread: the address of its ``struct thread``.
        :param cpu: the address of the CPU's ``struct pcpu``.
        """
        if (self._ran is None or self._since is None or self._tid is None
                or self._reader is None or not thread):
            return None
        counter = self._counter(self._read(self._reader, 8))
        if counter is None:
            return None
        tick, mask = counter
        passed = now // tick - self._read(cpu + self._since[0], self._since[1]) & mask
        if mask - passed < AHEAD // tick:
            passed = 0
        time = (self._read(thread + self._ran[0], self._ran[1]) + passed) * tick
        # At a switch the kernel ends one thread's time a little before the other one's begins.
        number = self._read(thread + self._tid[0], self._tid[1])
        last = self._given.get(thread)
        if last is not None and last[0] == number and last[2] <= now:  # the machine may go back
            time = max(time, last[1])
        self._given[thread] = number, time, now
        return time

    def _counter(self, function: int) -> tuple[int, int] | None:
        """The nanoseconds of a tick, and the counter's highest value."""
        if function not in self._counters:
            name = self._name(function)
            tick = self._clock.ticks.get(name)
            if name == self._clock.through:
                return self._through()
            self._counters[function] = None if tick is None else (tick, (1 << 64) - 1)
        return self._counters[function]

    def _through(self) -> tuple[int, int] | None:
        """The same of the timecounter in use."""
        address = self._timecounter
        if address is None:
            return None
        for place in ((0, 8), *self._members):
            if place is None:
                return None
            address = self._read(address + place[0], 8)
        tick = self._clock.ticks.get(self._name(address))
        return None if tick is None else (tick, SHORT)

    def _name(self, address: int) -> str:
        found = self._symbols.function_at(address)
        return found.name if found is not None and found.address == address else ""
