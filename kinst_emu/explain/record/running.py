"""Access to the current thread's structures, which are read with the kernel's types."""

from typing import Any

from dtrace.debug.kernel_types import kernel_types
from dtrace.stacks.threads import structure
from dwarf.values import CStruct
from emu.host.errors import KinstError
from emu.machine.machine import Machine


class RunningThread:
    """Reader of the current thread's structures in the kernel.

    :raises KinstError: if the kernel has no debug data for threads.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine, guest = machine, machine.guest
        self.types = kernel_types(machine.image)
        thread = structure(self.types, guest.threads.lists.thread)
        if thread is None:
            raise KinstError(f"{machine.image.path}: debug data is needed to find trap frames, but "
                             "the thread type is missing")
        self._thread = thread

    @property
    def address(self) -> int:
        """Address of the current thread's structure, or 0 before the first thread exists."""
        machine = self._machine
        return machine.read_u64(machine.read_register(machine.guest.threads.per_cpu))

    def at(self, address: int) -> CStruct:
        """Return the thread structure at ``address``."""
        return CStruct(self._thread, address, self._machine)

    def member(self, kind: str, name: str, address: int) -> int:
        """Return a member of the structure ``kind`` at an address.

        :raises KinstError: if the kernel has no debug data for the structure.
        """
        known = structure(self.types, f"struct {kind}")
        if known is None:
            raise KinstError(f"{self._machine.image.path}: debug data for struct {kind} is missing")
        return int(CStruct(known, address, self._machine)[name])

    def frame(self) -> int:
        """Return the address of the trap frame from the current thread's last kernel entry."""
        return int(self.at(self.address)[self._machine.guest.threads.lists.frame])

    def pid(self) -> int:
        """Return the current thread's process number, or 0 before the first thread exists."""
        address = self.address
        value: Any = self.at(address) if address else 0
        for _structure, member in self._machine.guest.members["pid"] if address else ():
            value = value[member]
        return int(value)
