"""Stops at the seam, in a form that can be compared between two machines."""

from collections import Counter
from dataclasses import dataclass

from emu.host.errors import MemoryAccessError
from emu.machine.machine import Machine
from emu.unicorn.guest_memory import PAGE
from kinst.verify.crosscheck.lockstep import ExecutionTrace

BELOW = 8192  # number of bytes below the stack pointer that a trap may write


@dataclass
class Event:
    """One stop of a machine at the seam, with its registers and memory writes.

    :param site: the address of the probed instruction.
    :param second: whether the stop is at the second breakpoint, in the site's trampoline.
    :param registers: the registers at the firing; empty at a second breakpoint.
    :param written: what the previously displaced instruction wrote to memory.
    :param stack: (address, bytes) of the stack before the trap on the first machine, whose traps
        leave nothing there.  The second machine receives this content, because a function that
        reads an uninitialized variable would see the difference.
    """

    site: int
    second: bool
    frame: bytes
    registers: tuple[int, ...] = ()
    stack: tuple[int, bytes] = (0, b"")
    written: bytes = b""


class DisplacedWrites:
    """Reader of the bytes that a machine's displaced instructions have written, stop by stop.

    The addresses are those of the recording of the same call.
    """

    def __init__(self, machine: Machine, recording: ExecutionTrace) -> None:
        self.machine, self._writes = machine, recording.writes
        # address -> sorted indexes of the recorded steps at the address
        self._steps: dict[int, list[int]] = {}
        for number, step in enumerate(recording.steps):
            self._steps.setdefault(step[recording.pc], []).append(number)
        self._count: Counter[int] = Counter()
        self._places: list[tuple[int, int]] = []

    def at(self, site: int, second: bool, sp: int) -> bytes:
        """Return the bytes that the last displaced instruction wrote, except below ``sp``.

        :param sp: the interrupted stack pointer, below which the trap itself has written.
        """
        content = bytearray()
        below: list[tuple[int, int]] = []
        for page in range(sp - BELOW & -PAGE, sp, PAGE) if self._places else ():
            physical = self.machine.translate(page)
            if physical is not None:
                below.append((physical, physical + min(PAGE, sp - page)))
        for address, size in self._places:
            if not any(low <= address < high for low, high in below):
                try:
                    content += self.machine.read_physical(address, size)
                except MemoryAccessError:
                    continue  # device memory, which is not compared
        self._places = []
        if not second:
            steps, number = self._steps.get(site, []), self._count[site]
            self._count[site] += 1
            if number < len(steps):
                self._places = self._writes.get(steps[number], [])
        return bytes(content)
