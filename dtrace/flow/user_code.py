"""Code of user programs in a recorded run, read from guest memory.

The kernel image does not contain this code, so the recording is moved to where it is executed.
"""

from collections.abc import Callable

from emu.host.errors import MemoryAccessError
from emu.machine.machine import Machine
from emu.unicorn.guest_memory import PAGE

LONGEST = 15  # maximum length of an instruction in bytes
MOST = 256  # maximum number of cached pages


def in_program(address: int) -> bool:
    """Return whether an address is in user space, which is the lower half of the address space."""
    return not address >> 63


class UserCode:
    """Reader of user code; caches the code pages of each uninterrupted run of a program.

    A run is what a program executes between two entries into the kernel. No page is mapped or
    unmapped during a run.

    :param seek: moves the recording to an instruction count.
    """

    def __init__(self, machine: Machine, seek: Callable[[int], None]) -> None:
        self._machine, self._seek = machine, seek
        self._pages: dict[tuple[int, int], bytes] = {}

    def _page(self, run: int, page: int) -> bytes:
        """Return a page of code, or empty bytes if the page is not mapped.

        :param run: the instruction count where the run begins.
        """
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
        """Return an instruction's bytes, or empty bytes if they cannot be read."""
        page, offset = divmod(address, PAGE)
        code = self._page(run, page)[offset : offset + LONGEST]
        if len(code) < LONGEST:
            code += self._page(run, page + 1)[: LONGEST - len(code)]
        length = self._machine.arch.instruction_length(code)
        return code[:length] if 0 < length <= len(code) else b""

    def addresses(self, run: int, address: int, count: int) -> list[int]:
        """Return the addresses of a piece's instructions, up to the first that cannot be read."""
        addresses = []
        for _ in range(count):
            addresses.append(address)
            length = len(self.instruction(run, address))
            if not length:
                break
            address += length
        return addresses
