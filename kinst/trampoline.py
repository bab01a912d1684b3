"""Trampolines: slots in pages the guest does not know, mapped executable in its page tables.

Physical layout of the hidden memory: a page for the last-level table, one for the table above
it, then pages of slots, filled with breakpoints so that a stray jump stops cleanly.  Slot 1 is
the seam's address.
"""

from emu.errors import MachineError
from emu.unicorn_machine import UnicornMachine

PAGE = 4096
PAGES = 511
SLOT = 32


class Trampolines:
    """Hands out slots; ``close`` leaves the guest's page tables as they were."""

    def __init__(self, machine: UnicornMachine, near: int, filler: bytes) -> None:
        self.machine = machine
        table = machine.hidden_memory((PAGES + 2) * PAGE)
        directory, self._first = table + PAGE, table + 2 * PAGE
        machine.write_physical(directory, bytes(PAGE))
        hole = machine.arch.executable_hole(machine, near, table, directory)
        self._undo: list[tuple[int, bytes]] = []
        if hole is None:
            self.base = self._first
        else:
            entries = b"".join(
                hole.leaf(self._first + i * PAGE).to_bytes(8, "little") for i in range(PAGES)
            )
            machine.write_physical(table, entries.ljust(PAGE, b"\0"))
            for address, content in hole.writes:
                self._undo.insert(0, (address, machine.read_physical(address, 8)))
                machine.write_physical(address, content.to_bytes(8, "little"))
            machine.engine.flush_tlb()
            self.base = hole.virtual
        size = PAGES * PAGE
        machine.write_physical(self._first, (filler * (size // len(filler) + 1))[:size])
        machine.engine.flush_translations()  # of what stood in the slots before
        self._next = 2 * SLOT

    @property
    def seam(self) -> int:
        """The address the kernel's seam points to."""
        return self.base + SLOT  # Unicorn also looks at the byte before a stop address

    def allocate(self) -> int:
        """The address of a free slot.

        :raises MachineError: when there is none left.
        """
        if self._next + SLOT > PAGES * PAGE:
            raise MachineError(f"more than {PAGES * PAGE // SLOT - 1} probes need trampolines")
        address = self.base + self._next
        self._next += SLOT
        return address

    def write(self, address: int, code: bytes) -> None:
        """Fill a slot."""
        self.machine.write_physical(self._first + address - self.base, code)

    def close(self) -> None:
        for address, content in self._undo:
            self.machine.write_physical(address, content)
        self._undo.clear()
        self.machine.engine.flush_tlb()
