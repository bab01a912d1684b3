"""Memory by physical addresses: the machine's RAM, and what the guest knows nothing of."""

from emu.host.errors import MemoryAccessError
from emu.unicorn._engine import Engine
from emu.unicorn.guest_memory import GuestMemory


class PhysicalMemory:
    """All that writes it beside the guest's own instructions comes here.

    :param ram: which the engine has not mapped yet.
    :param base: the address of its first byte.
    :param hidden_base: where hidden memory is mapped when it is asked for.
    """

    def __init__(self, engine: Engine, ram: GuestMemory, base: int, hidden_base: int) -> None:
        self.ram, self.base = ram, base
        self.quiet = False  # what the CPU model made of what is written is dropped by who writes
        self._engine, self._hidden_base = engine, hidden_base
        self._hidden: GuestMemory | None = None
        engine.map_ram(base, ram.view)

    def hidden(self, size: int) -> int:
        """Memory the guest knows nothing of: its address; the same at every call."""
        if self._hidden is None:
            area = GuestMemory(size)
            self._engine.map_ram(self._hidden_base, area.view)
            self._hidden = area
        return self._hidden_base

    def release_hidden(self) -> None:
        """Give the host back what the hidden memory holds; it reads as zeros again."""
        if self._hidden is not None:
            self._hidden.clear()

    def is_hidden(self, address: int) -> bool:
        return self._hidden is not None and (
            self._hidden_base <= address < self._hidden_base + self._hidden.size)

    def in_ram(self, address: int, size: int) -> memoryview:
        """:raises MemoryAccessError: when the range is not RAM."""
        at = address - self.base
        if at < 0 or at + size > self.ram.size:
            raise MemoryAccessError(f"physical {address:#x}..{address + size:#x} is not RAM")
        return self.ram.view[at : at + size]

    def area(self, address: int, size: int) -> memoryview:
        """RAM, or hidden memory.

        :raises MemoryAccessError: when the range is neither.
        """
        if self._hidden is not None:
            at = address - self._hidden_base
            if at >= 0 and at + size <= self._hidden.size:
                return self._hidden.view[at : at + size]
        return self.in_ram(address, size)

    def store(self, address: int, data: bytes, outside: bool = False) -> None:
        """All that writes RAM beside the guest's own instructions, and beside restoring a state,
        comes here: what the CPU model has made of it is forgotten.

        :param outside: not by the computer itself, which forgets no page tables when it writes.
        """
        self.area(address, len(data))[:] = data
        if not self.quiet:
            self._engine.written(address, len(data), outside)
