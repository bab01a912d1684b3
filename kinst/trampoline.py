"""Trampolines: slots in pages the guest does not know, mapped executable in its page tables.

Physical layout of the hidden memory: one page for the last-level table, then pages of slots,
filled with breakpoints so that a stray jump stops cleanly.  Slot 0 is the seam's address.
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
        self._filler = filler
        table = machine.hidden_memory((PAGES + 1) * PAGE)
        self._first = table + PAGE
        hole = machine.arch.executable_hole(machine, near, table)
        self._undo: tuple[int, bytes] | None = None
        if hole is None:
            self.base = self._first
        else:
            entries = b"".join(
                hole.leaf(self._first + i * PAGE).to_bytes(8, "little") for i in range(PAGES)
            )
            machine.write_physical(table, entries.ljust(PAGE, b"\0"))
            self._undo = hole.entry, machine.read_physical(hole.entry, 8)
            machine.write_physical(hole.entry, hole.content.to_bytes(8, "little"))
            machine.engine.flush_tlb()
            self.base = hole.virtual
        size = PAGES * PAGE
        machine.write_physical(self._first, (filler * (size // len(filler) + 1))[:size])
        self._next = SLOT

    @property
    def seam(self) -> int:
        """The address the kernel's seam points to."""
        return self.base

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
        if self._undo is not None:
            self.machine.write_physical(*self._undo)
            self._undo = None
            self.machine.engine.flush_tlb()
