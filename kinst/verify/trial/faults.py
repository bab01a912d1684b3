"""Fault handlers of the kernel, where the execution of a faulting sample ends."""

from collections.abc import Sequence

from emu.host.errors import MemoryAccessError
from emu.machine.machine import Machine
from kinst.relocation.trap import GuestTrap
from kinst.verify.trial.architecture import TrialArch

EXCEPTION = "fault at address"


class Faults:
    """State that the kernel's fault handlers saw at the last fault.

    ``at`` is the pc of the fault according to the trap frame; ``unknown`` tells whether the CPU
    does not support the instruction.

    :param compared: names of the registers to read from the trap frame.
    """

    def __init__(self, machine: Machine, arch: TrialArch, trap: GuestTrap,
                 compared: Sequence[str]) -> None:
        self._machine, self._arch, self._trap, self._compared = machine, arch, trap, compared
        self.handlers = {symbol.address: name for name in arch.faults
                         if (symbol := machine.image.symbols.find(name)) is not None}
        self.at = 0
        self.unknown = False

    def text(self) -> str:
        """Describe the current fault; the machine must be at the entry of a fault handler."""
        return _about(self._machine.read_register(self._arch.fault_address)
                      & self._arch.fault_mask)

    def of_its_own_address(self) -> str:
        """Return the description of a failed instruction fetch at the pc of the last fault."""
        return _about(self.at & self._arch.fault_mask)

    def registers(self, fault: str) -> dict[str, int]:
        """Return the registers in the trap frame of a fault, except pc (stored in ``at``)."""
        register, machine = self._arch.faults[fault], self._machine
        self.at, self.unknown = 0, False
        if register is None:
            return {}
        frame, layout = machine.read_register(register), machine.guest.traps.trap_frame
        pc = self._trap.frame.field(machine.arch.pc)
        registers = {}
        try:
            self.at = layout.read(machine, frame, pc)
            if self._arch.unknown is not None:
                member, number = self._arch.unknown
                self.unknown = layout.read(machine, frame, member) == number
            for name in self._compared:
                field = self._trap.frame.field(name)
                if field in layout.fields and name not in self._arch.fixed:
                    registers[name] = layout.read(machine, frame, field)
        except MemoryAccessError:
            return {}
        return registers


def _about(address: int) -> str:
    return f"{EXCEPTION} {address:#x}"
