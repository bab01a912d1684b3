"""Virtual memory access through the guest's page tables."""

from abc import ABC, abstractmethod

from emu.arch.arch import Arch
from emu.host.errors import MemoryAccessError

MAX_PIECE = 1 << 30  # maximum size of one access in bytes; page tables can map any amount of memory


class PagedMemory(ABC):
    """Memory accessed through page tables: of a machine, or of a process that is not running.

    :ivar arch: architecture of the page tables.
    """

    arch: Arch

    @property
    @abstractmethod
    def sp(self) -> int:
        """Stack pointer."""

    @abstractmethod
    def read_register(self, name: str) -> int:
        """Return the value of a register."""

    @abstractmethod
    def write_register(self, name: str, value: int) -> None:
        """Set a register."""

    @abstractmethod
    def read_physical(self, address: int, size: int) -> bytes:
        """Read RAM at a physical address."""

    @abstractmethod
    def write_physical(self, address: int, data: bytes) -> None:
        """Write RAM at a physical address."""

    def translate(self, address: int) -> int | None:
        """Translate a virtual address to a physical one through the guest's page tables.

        :return: None if the address is not mapped or its page tables lie outside RAM.
        """
        try:
            return self.arch.translate(self, address)
        except MemoryAccessError:
            return None

    def may_write(self, address: int, size: int) -> bool:
        """Return whether all pages of a virtual memory range are mapped and writable."""
        try:
            entries = [self.arch.walk(self, page)
                     for page in range(address & ~4095, address + size, 4096)]
        except MemoryAccessError:
            return False
        return all(entry is not None and self.arch.writable(entry[1]) for entry in entries)

    def _pieces(self, address: int, size: int) -> list[tuple[int, int]]:
        if not 0 <= size <= MAX_PIECE:
            raise MemoryAccessError(f"cannot access {size} bytes at guest address {address:#x}: "
                                    f"the size must be 0 to {MAX_PIECE} bytes")
        pieces = []
        while size > 0:
            physical = self.translate(address)
            if physical is None:
                raise MemoryAccessError(f"guest address {address:#x} is not mapped")
            length = min(size, 4096 - address % 4096)
            pieces.append((physical, length))
            address += length
            size -= length
        return pieces

    def read(self, address: int, size: int) -> bytes:
        """Read virtual memory.

        :raises MemoryAccessError: if a page is not mapped, or for more than 1 GiB.
        """
        return b"".join(self.read_physical(p, n) for p, n in self._pieces(address, size))

    def write(self, address: int, data: bytes) -> None:
        """Write virtual memory, regardless of page protection.

        :raises MemoryAccessError: if a page is not mapped; nothing is written then.
        """
        at = 0
        for physical, length in self._pieces(address, len(data)):
            self.write_physical(physical, data[at : at + length])
            at += length

    def write_u64(self, address: int, value: int) -> None:
        """Write a 64-bit little-endian word to virtual memory."""
        self.write(address, value.to_bytes(8, "little"))
