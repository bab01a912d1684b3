"""Physical memory of the machine: RAM, and hidden memory that the guest does not know about."""

from emu.host.errors import MemoryAccessError
from emu.unicorn._engine import Engine
from emu.unicorn.guest_memory import GuestMemory


class PhysicalMemory:
    """RAM and hidden memory, accessed by physical address.

    All writes except those of the guest's own instructions use this class.

    :param ram: RAM, which the engine has not mapped yet.
    :param base: physical address of its first byte.
    :param hidden_base: physical address at which hidden memory is mapped on demand.
    """

    def __init__(self, engine: Engine, ram: GuestMemory, base: int, hidden_base: int) -> None:
        self.ram, self.base = ram, base
        # whether the caller of ``store``, not ``store`` itself, drops stale translations
        self.quiet = False
        self._engine, self._hidden_base = engine, hidden_base
        self._hidden: GuestMemory | None = None
        engine.map_ram(base, ram.view)

    def hidden(self, size: int) -> int:
        """Allocate memory that the guest does not know about.

        :return: its physical address, the same on every call.
        """
        if self._hidden is None:
            area = GuestMemory(size)
            self._engine.map_ram(self._hidden_base, area.view)
            self._hidden = area
        return self._hidden_base

    def release_hidden(self) -> None:
        """Free the host memory that backs hidden memory; hidden memory then reads as zeros."""
        if self._hidden is not None:
            self._hidden.clear()

    def is_hidden(self, address: int) -> bool:
        """Return whether an address lies in hidden memory."""
        return self._hidden is not None and (
            self._hidden_base <= address < self._hidden_base + self._hidden.size)

    def in_ram(self, address: int, size: int) -> memoryview:
        """Return a view of a range of RAM.

        :raises MemoryAccessError: if the range is not in RAM.
        """
        at = address - self.base
        if at < 0 or at + size > self.ram.size:
            raise MemoryAccessError(f"physical memory {address:#x}..{address + size:#x} is not RAM")
        return self.ram.view[at : at + size]

    def area(self, address: int, size: int) -> memoryview:
        """Return a view of a range of RAM or hidden memory.

        :raises MemoryAccessError: if the range is in neither.
        """
        if self._hidden is not None:
            at = address - self._hidden_base
            if at >= 0 and at + size <= self._hidden.size:
                return self._hidden.view[at : at + size]
        return self.in_ram(address, size)

    def store(self, address: int, data: bytes, outside: bool = False) -> None:
        """Write memory and drop the CPU model's translations of the code there.

        All writes use this method, except those of the guest's own instructions and of restored
        states.

        :param outside: whether the write comes from outside the computer, whose own writes do not
            invalidate cached page table entries.
        """
        self.area(address, len(data))[:] = data
        if not self.quiet:
            self._engine.written(address, len(data), outside)
