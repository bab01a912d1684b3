"""Memory for trampolines: pages unknown to the guest, mapped executable in its page tables.

The memory consists of large pages that are divided into slots and filled with breakpoints, so that
a stray jump stops cleanly.  The first large page of the hidden memory holds page tables; slot 1 of
the second is the seam.  The dispatcher tracks in a bitset which slots are in use.
"""

from emu.guest.hole import LARGE
from emu.host.errors import MachineError
from emu.machine.machine import Machine
from emu.unicorn._engine import TrampolineSize

SLOT = int(TrampolineSize.SLOT)
RESERVED = 2  # reserved slots: the first slot and the seam
HIDDEN = 256 << 20


class Trampolines:
    """Executable memory for ``slots`` trampolines; ``close`` restores the guest's page tables.

    :param near: an address in the kernel's code, near which the memory is mapped.
    :param filler: the breakpoint that unused slots are filled with.
    :raises MachineError: when the guest's address space has no room for the trampolines.
    """

    def __init__(self, machine: Machine, near: int, filler: bytes, slots: int) -> None:
        self.machine = machine
        tables = machine.hidden_memory(HIDDEN)
        self.physical = tables + LARGE
        pages = -(-(slots + RESERVED) * SLOT // LARGE)
        self.size = pages * LARGE
        if LARGE + self.size > HIDDEN:
            raise MachineError(f"{slots} trampolines do not fit into the hidden memory; the "
                               f"maximum is {(HIDDEN - LARGE) // SLOT}")
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
        machine.forget_translations()  # the slots may have contained other trampolines before

    @property
    def seam(self) -> int:
        """Address that is stored in the kernel's pointer to the seam."""
        return self.base + SLOT  # not slot 0: Unicorn also reads the byte before a stop address

    def write_seam(self, code: bytes) -> None:
        """Write the code of the seam."""
        self.machine.write_physical(self.physical + SLOT, code)

    def close(self) -> None:
        """Restore the guest's page tables and release the memory."""
        for address, content in self._undo:
            self.machine.write_physical(address, content)
        self._undo.clear()
        self.machine.forget_translations()
        self.machine.release_hidden()
