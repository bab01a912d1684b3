"""The code of programs in a recorded run, which no image of the kernel has: it is read from the
guest's memory, where the run is when it executes it."""

from collections.abc import Callable

from emu.host.errors import MemoryAccessError
from emu.machine.machine import Machine
from emu.unicorn.guest_memory import PAGE

LONGEST = 15  # bytes of an instruction
MOST = 256  # pages that are kept


def in_program(address: int) -> bool:
    """Whether an address is a program's: kernels that run some have the upper half."""
    return not address >> 63


class UserCode:
    """Reads it by runs: what a program executes between two entries into the kernel is one, in
    which no page comes or goes.

    :param seek: brings the recording to a count of instructions.
    """

    def __init__(self, machine: Machine, seek: Callable[[int], None]) -> None:
        self._machine, self._seek = machine, seek
        self._pages: dict[tuple[int, int], bytes] = {}

    def _page(self, run: int, page: int) -> bytes:
        """:param run: the count of instructions where it begins."""
        key = run, page
        if key not in self._pages:
            if len(self._pages) >= MOST:
                self._pages.clear()
            self._seek(run)
            try:
                self._pages[key] = self._machine.read(page * PAGE, PAGE)
            except MemoryAccessError:
                self._pages[key] = b""
        return self._pages[key]

    def instruction(self, run: int, address: int) -> bytes:
        """The instruction at an address; empty where the run has none."""
        page, offset = divmod(address, PAGE)
        code = self._page(run, page)[offset : offset + LONGEST]
        if len(code) < LONGEST:
            code += self._page(run, page + 1)[: LONGEST - len(code)]
        length = self._machine.arch.instruction_length(code)
        return code[:length] if 0 < length <= len(code) else b""

    def addresses(self, run: int, address: int, count: int) -> list[int]:
        """Of the instructions of a piece, as far as they can be read."""
        found = []
        for _ in range(count):
            found.append(address)
            length = len(self.instruction(run, address))
            if not length:
                break
            address += length
        return found
