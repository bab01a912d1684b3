"""Virtual memory, by the guest's page tables."""

from abc import ABC, abstractmethod

from emu.arch.arch import Arch
from emu.host.errors import MemoryAccessError

MAX_PIECE = 1 << 30  # bytes: page tables may map any number


class PagedMemory(ABC):
    """Who has page tables: a machine, or a process that does not run.

    :ivar arch: whose tables they are.
    """

    arch: Arch

    @property
    @abstractmethod
    def sp(self) -> int: ...

    @abstractmethod
    def read_register(self, name: str) -> int: ...

    @abstractmethod
    def write_register(self, name: str, value: int) -> None: ...

    @abstractmethod
    def read_physical(self, address: int, size: int) -> bytes: ...

    @abstractmethod
    def write_physical(self, address: int, data: bytes) -> None: ...

    def translate(self, address: int) -> int | None:
        """Physical address of a virtual one, by the guest's page tables; None: not mapped, also
        where these lie outside RAM."""
        try:
            return self.arch.translate(self, address)
        except MemoryAccessError:
            return None

    def may_write(self, address: int, size: int) -> bool:
        """Whether all pages of a piece of virtual memory are there, and let themselves be written
        to."""
        try:
            found = [self.arch.walk(self, page)
                     for page in range(address & ~4095, address + size, 4096)]
        except MemoryAccessError:
            return False
        return all(one is not None and self.arch.writable(one[1]) for one in found)

    def _pieces(self, address: int, size: int) -> list[tuple[int, int]]:
        if not 0 <= size <= MAX_PIECE:
            raise MemoryAccessError(f"{size} bytes at guest address {address:#x}: from 0 to "
                                    f"{MAX_PIECE} are read or written at once")
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
        """Virtual memory.

        :raises MemoryAccessError: when a page is not mapped, or for more than 1 GiB.
        """
        return b"".join(self.read_physical(p, n) for p, n in self._pieces(address, size))

    def write(self, address: int, data: bytes) -> None:
        """Virtual memory, regardless of page protection.

        :raises MemoryAccessError: when a page is not mapped; nothing is written then.
        """
        at = 0
        for physical, length in self._pieces(address, len(data)):
            self.write_physical(physical, data[at : at + length])
            at += length

    def write_u64(self, address: int, value: int) -> None:
        self.write(address, value.to_bytes(8, "little"))
