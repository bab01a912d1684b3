"""The kernel's fault handlers, where an execution ends that faults."""

from collections.abc import Sequence

from emu.host.errors import MemoryAccessError
from emu.machine.machine import Machine
from kinst.relocation.trap import GuestTrap
from kinst.verify.trial.architecture import TrialArch

EXCEPTION = "a fault"


class Faults:
    """What the kernel's fault handlers saw of the last fault.

    ``at``: where it was, as its trap frame says; ``unknown``: it was one of an instruction that the
    CPU does not know.

    :param compared: the registers that are told of.
    """

    def __init__(self, machine: Machine, arch: TrialArch, trap: GuestTrap,
                 compared: Sequence[str]) -> None:
        self._machine, self._arch, self._trap, self._compared = machine, arch, trap, compared
        self.handlers = {symbol.address: name for name in arch.faults
                         if (symbol := machine.image.symbols.find(name)) is not None}
        self.at = 0
        self.unknown = False

    def text(self) -> str:
        """At a handler: what the fault is about."""
        return _about(self._machine.read_register(self._arch.fault_address)
                      & self._arch.fault_mask)

    def of_its_own_address(self) -> str:
        """The text of a fault about where the last one was."""
        return _about(self.at & self._arch.fault_mask)

    def registers(self, fault: str) -> dict[str, int]:
        """The registers that the kernel's fault handler sees, but where it was."""
        register, machine = self._arch.faults[fault], self._machine
        self.at, self.unknown = 0, False
        if register is None:
            return {}
        frame, layout = machine.read_register(register), machine.guest.traps.trap_frame
        pc = self._trap.frame.field(machine.arch.pc)
        found = {}
        try:
            self.at = layout.read(machine, frame, pc)
            if self._arch.unknown is not None:
                member, number = self._arch.unknown
                self.unknown = layout.read(machine, frame, member) == number
            for name in self._compared:
                name_there = self._trap.frame.field(name)
                if name_there in layout.fields and name not in self._arch.fixed:
                    found[name] = layout.read(machine, frame, name_there)
        except MemoryAccessError:
            return {}
        return found


def _about(address: int) -> str:
    return f"{EXCEPTION} about {address:#x}"
