"""The memory of a process that does not run: the guest's page tables, from another root."""

from emu.arch import Arch
from emu.errors import MachineError, MemoryAccessError
from emu.machine import Machine

PAGE = 4096


class AddressSpace:
    """:param register: that has the root of the tables, and ``value``, what it has while the
        process runs.  All else is the machine's.
    """

    def __init__(self, machine: Machine, register: str, value: int) -> None:
        self._machine, self._register, self._value = machine, register, value
        self._arch: Arch = machine.arch

    @property
    def sp(self) -> int:
        return self._machine.sp

    def read_register(self, name: str) -> int:
        return self._value if name == self._register else self._machine.read_register(name)

    def write_register(self, name: str, value: int) -> None:
        raise MachineError(f"{name}: of a process that does not run")

    def read_physical(self, address: int, size: int) -> bytes:
        return self._machine.read_physical(address, size)

    def write_u64(self, address: int, value: int) -> None:
        self.write(address, value.to_bytes(8, "little"))

    def translate(self, address: int) -> int | None:
        """Physical address of a virtual one; None: not mapped."""
        try:
            return self._arch.translate(self, address)
        except MemoryAccessError:
            return None

    def _pieces(self, address: int, size: int) -> list[tuple[int, int]]:
        pieces = []
        while size > 0:
            physical, length = self.translate(address), min(size, PAGE - address % PAGE)
            if physical is None:
                raise MemoryAccessError(f"{address:#x} is not mapped in the process")
            pieces.append((physical, length))
            address, size = address + length, size - length
        return pieces

    def read(self, address: int, size: int) -> bytes:
        """:raises MemoryAccessError: when a page is not mapped."""
        return b"".join(self.read_physical(at, length)
                        for at, length in self._pieces(address, size))

    def write(self, address: int, data: bytes) -> None:
        """Regardless of page protection; nothing is written where a page is not mapped.

        :raises MemoryAccessError: then.
        """
        done = 0
        for at, length in self._pieces(address, len(data)):
            self._machine.write_physical(at, data[done : done + length])
            done += length
