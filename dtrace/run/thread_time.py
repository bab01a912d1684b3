"""CPU times of threads (``vtimestamp``), computed from the kernel's counts."""

from collections.abc import Callable

from emu.guest.guest import ThreadClock
from emu.machine.machine import Machine

SHORT = 0xFFFF_FFFF  # mask for a counter of which the kernel uses only the low 32 bits
AHEAD = 1_000_000  # maximum lead of the kernel's counter over the machine's time, in ns


class ThreadTime:
    """Reader of threads' CPU times: the kernel's total plus the time since the last update.

    The kernel counts ticks of a counter.  Only counters that the machine drives by virtual time are
    supported, because their values are known without reading them, which would take guest time.

    :param place: returns the offset and size of a member, or None if it does not exist.
    :param read: returns an unsigned integer in guest memory (address, size in bytes).
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
        # Address of the kernel function that reads a counter -> (nanoseconds per tick, mask).
        self._counters: dict[int, tuple[int, int] | None] = {}
        # Instruction address -> whether the instruction is in a function that updates CPU times.
        self._adding: dict[int, bool] = {}
        # Thread address -> (thread ID, CPU time last returned by ``of``, ``now`` of that call).
        self._given: dict[int, tuple[int, int, int]] = {}

    @property
    def problem(self) -> str:
        """Reason why no CPU times are available, or an empty string if no reason is known."""
        clock = self._clock
        if None in (self._ran, self._since, self._tid, *self._members):
            return "its debug data does not describe processes and threads"
        if self._reader is None or self._timecounter is None:
            return f"symbol {clock.reader if self._reader is None else clock.timecounter} not found"
        return ""

    def adding(self, pc: int) -> bool:
        """Return whether an instruction is in a function that updates CPU times.

        Between two stores of the function, the same time would be counted twice.
        """
        adds = self._adding.get(pc)
        if adds is None:
            function = self._symbols.function_at(pc)
            adds = self._adding[pc] = (function is not None and function.address != pc
                                        and function.name in self._clock.adders)
        return adds

    def of(self, thread: int, cpu: int, now: int) -> int | None:
        """Return a thread's CPU time up to ``now`` in nanoseconds, or None if unknown.

        The time never decreases. It is unknown while the kernel does not count yet, and if the
        kernel uses a counter that the machine does not drive.

        :param thread: address of the ``struct thread``.
        :param cpu: address of the CPU's ``struct pcpu``.
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
        # At a thread switch, the old thread's time ends slightly before the new one's begins.
        number = self._read(thread + self._tid[0], self._tid[1])
        last = self._given.get(thread)
        if last is not None and last[0] == number and last[2] <= now:  # the clock was not set back
            time = max(time, last[1])
        self._given[thread] = number, time, now
        return time

    def _counter(self, function: int) -> tuple[int, int] | None:
        """Return the nanoseconds per tick and the mask of a counter, or None if not supported.

        :param function: address of the function that reads the counter.
        """
        if function not in self._counters:
            name = self._name(function)
            tick = self._clock.ticks.get(name)
            if name == self._clock.through:
                return self._through()
            self._counters[function] = None if tick is None else (tick, (1 << 64) - 1)
        return self._counters[function]

    def _through(self) -> tuple[int, int] | None:
        """Return the nanoseconds per tick and the mask of the timecounter in use."""
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
        symbol = self._symbols.function_at(address)
        return symbol.name if symbol is not None and symbol.address == address else ""
