"""Virtual memory of a process that is not running, translated with the process's page tables."""

from emu.host.errors import MachineError
from emu.machine.machine import Machine
from emu.machine.paged_memory import PagedMemory


class AddressSpace(PagedMemory):
    """Virtual memory of a process that is not running.

    Translations start at the process's page table root; everything else comes from the machine.

    :param register: the register that holds the page table root.
    :param value: the value of that register while the process runs.
    """

    def __init__(self, machine: Machine, register: str, value: int) -> None:
        self.arch = machine.arch
        self._machine, self._register, self._value = machine, register, value

    @property
    def sp(self) -> int:
        """Stack pointer of the machine."""
        return self._machine.sp

    def read_register(self, name: str) -> int:
        """Return the process's page table root, or the machine's value of any other register."""
        return self._value if name == self._register else self._machine.read_register(name)

    def write_register(self, name: str, value: int) -> None:
        """Raise an error, because registers of a process that is not running cannot be written.

        :raises MachineError: always.
        """
        raise MachineError(f"{name}: cannot be written while the process is not running")

    def read_physical(self, address: int, size: int) -> bytes:
        """Read RAM of the machine."""
        return self._machine.read_physical(address, size)

    def write_physical(self, address: int, data: bytes) -> None:
        """Write RAM of the machine."""
        self._machine.write_physical(address, data)
