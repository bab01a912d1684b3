"""The thread that the machine runs, by the kernel's types."""

from typing import Any

from dtrace.debug.kernel_types import kernel_types
from dtrace.stacks.threads import structure
from dwarf.values import CStruct
from emu.host.errors import KinstError
from emu.machine.machine import Machine


class RunningThread:
    """:raises KinstError: for a kernel without types of threads."""

    def __init__(self, machine: Machine) -> None:
        self._machine, guest = machine, machine.guest
        self.types = kernel_types(machine.image)
        thread = structure(self.types, guest.threads.lists.thread)
        if thread is None:
            raise KinstError(f"{machine.image.path}: has no types (debug data) to find a trap "
                             "frame by")
        self._thread = thread

    @property
    def address(self) -> int:
        """Of its structure; 0: there is none yet."""
        machine = self._machine
        return machine.read_u64(machine.read_register(machine.guest.threads.per_cpu))

    def at(self, address: int) -> CStruct:
        """Another one."""
        return CStruct(self._thread, address, self._machine)

    def frame(self) -> int:
        """The address of the trap frame of its last entry into the kernel."""
        return int(self.at(self.address)[self._machine.guest.threads.lists.frame])

    def pid(self) -> int:
        """The number of its process."""
        address = self.address
        value: Any = self.at(address) if address else 0
        for _structure, member in self._machine.guest.members["pid"] if address else ():
            value = value[member]
        return int(value)
