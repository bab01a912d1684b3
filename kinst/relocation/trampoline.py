"""Memory for trampolines: pages the guest does not know, mapped executable in its page tables.

They are handed out in chunks of a large page, split into slots and filled with breakpoints so that
a stray jump stops cleanly.  The first large page of the hidden memory is for page tables; in the
second, slot 1 is the seam's address.  Which slots are in use is a bitset of the dispatcher's.
"""

from emu.guest.hole import LARGE
from emu.host.errors import MachineError
from emu.machine.machine import Machine
from emu.unicorn._engine import TrampolineSize

SLOT = int(TrampolineSize.SLOT)
RESERVED = 2  # slots: the page's first, and the seam
HIDDEN = 256 << 20


class Trampolines:
    """Executable memory for ``slots`` trampolines; ``close`` leaves the guest's page tables as they
    were.

    :param near: an address in the kernel's code.
    :raises MachineError: when the guest's address space has no room for them.
    """

    def __init__(self, machine: Machine, near: int, filler: bytes, slots: int) -> None:
        self.machine = machine
        tables = machine.hidden_memory(HIDDEN)
        self.physical = tables + LARGE
        pages = -(-(slots + RESERVED) * SLOT // LARGE)
        self.size = pages * LARGE
        if LARGE + self.size > HIDDEN:
            raise MachineError(f"{slots} trampolines: at most {(HIDDEN - LARGE) // SLOT} fit")
        machine.write_physical(tables, bytes(4096))
        hole = machine.guest.traps.hole(machine, near, self.physical, pages, tables)
        self._undo: list[tuple[int, bytes]] = []
        if hole is None:
            self.base = self.physical
        else:
            for address, content in hole.writes:
                self._undo.insert(0, (address, machine.read_physical(address, 8)))
                machine.write_physical(address, content.to_bytes(8, "little"))
            self.base = hole.virtual
        machine.write_physical(self.physical, filler * (self.size // len(filler)))
        machine.forget_translations()  # also of what stood in the slots before

    @property
    def seam(self) -> int:
        """The address the kernel's seam points to."""
        return self.base + SLOT  # Unicorn also looks at the byte before a stop address

    def write_seam(self, code: bytes) -> None:
        self.machine.write_physical(self.physical + SLOT, code)

    def close(self) -> None:
        for address, content in self._undo:
            self.machine.write_physical(address, content)
        self._undo.clear()
        self.machine.forget_translations()
        self.machine.release_hidden()
