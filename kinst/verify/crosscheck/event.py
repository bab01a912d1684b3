"""A stop at the seam, as it is compared on two machines."""

from collections import Counter
from dataclasses import dataclass

from emu.host.errors import MemoryAccessError
from emu.machine.machine import Machine
from emu.unicorn.guest_memory import PAGE
from kinst.verify.crosscheck.lockstep import ExecutionTrace

BELOW = 8192  # bytes below the stack pointer that a trap may write


@dataclass
class Event:
    """A stop at the seam.

    :param site: the probed instruction; ``second``: it is its trampoline's breakpoint.
    :param registers: at the firing; none of a second breakpoint.
    :param written: what the instruction displaced before has written to memory.
    :param stack: (address, bytes) of the stack before the trap, on the first machine: it takes back
        what its traps leave there; the second is told, because a function that reads a variable it
        has not set would see it.
    """

    site: int
    second: bool
    frame: bytes
    registers: tuple[int, ...] = ()
    stack: tuple[int, bytes] = (0, b"")
    written: bytes = b""


class DisplacedWrites:
    """Reads, at each stop of a machine, what the instruction displaced before has written there; by
    the recording of the same call."""

    def __init__(self, machine: Machine, recording: ExecutionTrace) -> None:
        self.machine, self._writes = machine, recording.writes
        self._steps: dict[int, list[int]] = {}  # of an instruction, in the order of its executions
        for number, step in enumerate(recording.steps):
            self._steps.setdefault(step[recording.pc], []).append(number)
        self._count: Counter[int] = Counter()
        self._places: list[tuple[int, int]] = []

    def at(self, site: int, second: bool, sp: int) -> bytes:
        """At a stop; ``sp`` is the interrupted stack pointer: below it the trap has written."""
        found = bytearray()
        below: list[tuple[int, int]] = []
        for page in range(sp - BELOW & -PAGE, sp, PAGE) if self._places else ():
            physical = self.machine.translate(page)
            if physical is not None:
                below.append((physical, physical + min(PAGE, sp - page)))
        for address, size in self._places:
            if not any(low <= address < high for low, high in below):
                try:
                    found += self.machine.read_physical(address, size)
                except MemoryAccessError:
                    continue  # a device
        self._places = []
        if not second:
            steps, number = self._steps.get(site, []), self._count[site]
            self._count[site] += 1
            if number < len(steps):
                self._places = self._writes.get(steps[number], [])
        return bytes(found)
