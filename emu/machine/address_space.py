"""The memory of a process that does not run: the guest's page tables, from another root."""

from emu.host.errors import MachineError
from emu.machine.machine import Machine
from emu.machine.paged_memory import PagedMemory


class AddressSpace(PagedMemory):
    """:param register: that has the root of the tables, and ``value``, what it has while the
        process runs.  All else is the machine's.
    """

    def __init__(self, machine: Machine, register: str, value: int) -> None:
        self.arch = machine.arch
        self._machine, self._register, self._value = machine, register, value

    @property
    def sp(self) -> int:
        return self._machine.sp

    def read_register(self, name: str) -> int:
        return self._value if name == self._register else self._machine.read_register(name)

    def write_register(self, name: str, value: int) -> None:
        raise MachineError(f"{name}: of a process that does not run")

    def read_physical(self, address: int, size: int) -> bytes:
        return self._machine.read_physical(address, size)

    def write_physical(self, address: int, data: bytes) -> None:
        self._machine.write_physical(address, data)
