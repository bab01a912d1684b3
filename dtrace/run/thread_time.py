"""``vtimestamp``: how long the running thread has had a CPU, from what the kernel counts."""

from collections.abc import Callable

from emu.guest import ThreadClock
from emu.machine import Machine
from emu.symbols import Symbol

Member = tuple[str, str]
SHORT = 0xFFFF_FFFF  # of a counter that the kernel reads 32 bits of


class ThreadTime:
    """The count up to the last switch of threads, and what has passed since then.

    The kernel counts ticks of a counter.  One that the machine drives by its own time needs no
    reading, which would take time; of another one nothing is known.

    :param place: gives a member's offset and size; None: there is no such member.
    :param read: gives a number of the guest's memory, of so many bytes.
    """

    def __init__(self, machine: Machine, clock: ThreadClock,
                 place: Callable[[str, str], tuple[int, int] | None],
                 read: Callable[[int, int], int]) -> None:
        self._machine, self._clock, self._place, self._read = machine, clock, place, read

    @property
    def known(self) -> bool:
        """Whether the kernel's debug data says where it counts."""
        clock = self._clock
        return None not in [self._place(*member) for member in (clock.ran, clock.since)] and (
            self._symbol(clock.reader) is not None)

    def of(self, thread: int, cpu: int, now: int) -> int | None:
        """Nanoseconds up to ``now``; None: the kernel does not count yet, or by a counter that the
        machine does not drive.

        :param thread: the address of its ``struct thread``; ``cpu``: of the CPU's ``struct pcpu``.
        """
        clock = self._clock
        ran, since, reader = self._place(*clock.ran), self._place(*clock.since), self._symbol(
            clock.reader)
        if ran is None or since is None or reader is None or not thread:
            return None
        function, mask = self._name(self._read(reader.address, 8)), (1 << 64) - 1
        if function == clock.through:
            function, mask = self._timecounter(), SHORT
        tick = clock.ticks.get(function)
        if tick is None:
            return None
        passed = now // tick - self._read(cpu + since[0], since[1]) & mask
        if passed > mask >> 1:  # the switch is now: the kernel's reading took a moment
            passed = 0
        return self._read(thread + ran[0], ran[1]) * tick + passed * tick

    def _timecounter(self) -> str:
        """The function that reads the timecounter in use; empty: there is none."""
        variable = self._symbol(self._clock.timecounter)
        if variable is None:
            return ""
        address = self._read(variable.address, 8)
        for member in self._clock.members:
            place = self._place(*member)
            if place is None:
                return ""
            address = self._read(address + place[0], 8)
        return self._name(address)

    def _symbol(self, name: str) -> Symbol | None:
        return self._machine.image.symbols.find(name)

    def _name(self, address: int) -> str:
        found = self._machine.image.symbols.function_at(address)
        return found.name if found is not None and found.address == address else ""
