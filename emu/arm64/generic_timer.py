"""The Arm generic timer's EL1 registers (Arm ARM, "The Generic Timer in AArch64 state")."""

from collections.abc import Callable
from typing import Any

from emu.arm64.registers import key
from emu.devices.device import Bus, number

FREQUENCY = 62_500_000  # frequency of the counter in Hz
TICK = 1_000_000_000 // FREQUENCY  # duration of a counter tick in ns
ENABLE, IMASK, ISTATUS = 1, 2, 4

# Registers CNTPCT, CNTVCT and their self-synchronized forms.
COUNTERS = [key(3, 3, 14, 0, op2) for op2 in (1, 2, 5, 6)]
CNTFRQ = key(3, 3, 14, 0, 0)
PPI_VIRTUAL, PPI_PHYSICAL = 11, 14  # private interrupt numbers of the two timers
PHYSICAL, VIRTUAL = 2, 3  # CRm values in the encodings of the CNTP_* and CNTV_* registers
REGISTERS = {
    key(3, 3, 14, crm, op2): (crm, name)
    for crm in (PHYSICAL, VIRTUAL)
    for op2, name in enumerate(("tval", "ctl", "cval"))
}


class GenericTimer:
    """Timer of a CPU; it compares the counter with ``cval`` and drives an interrupt line."""

    def __init__(self, bus: Bus, name: str, output: Callable[[bool], None]) -> None:
        self._bus = bus
        self._output = output
        self._alarm = bus.timer(name, self.update)
        self.control = 0
        self.compare = 0

    @property
    def _count(self) -> int:
        return self._bus.now // TICK

    def update(self) -> None:
        """Update the timer's interrupt line, and set an alarm for the next change of the line."""
        met = self._count >= self.compare
        self._output(self.control & (ENABLE | IMASK) == ENABLE and met)
        if self.control & (ENABLE | IMASK) == ENABLE and not met:
            self._alarm.set(min(self.compare * TICK, (1 << 64) - 1))
        else:
            self._alarm.cancel()

    def ring(self) -> None:
        """Make the timer expire now if it is enabled."""
        if self.control & (ENABLE | IMASK) == ENABLE:
            self.compare = self._count
            self.update()

    def read(self, name: str) -> int:
        """Read the register ``tval``, ``ctl`` or ``cval``."""
        if name == "ctl":
            met = self.control & ENABLE and self._count >= self.compare
            return self.control | (ISTATUS if met else 0)
        if name == "cval":
            return self.compare
        return self.compare - self._count & 0xFFFFFFFF

    def write(self, name: str, value: int) -> None:
        """Write the register ``tval``, ``ctl`` or ``cval``."""
        if name == "ctl":
            self.control = value & (ENABLE | IMASK)
        elif name == "cval":
            self.compare = value & (1 << 64) - 1
        else:
            signed = (value & 0xFFFFFFFF) - ((value & 0x80000000) << 1)
            self.compare = self._count + signed & (1 << 64) - 1
        self.update()

    def state(self) -> dict[str, Any]:
        """Return the state of the timer for a snapshot."""
        return {"control": self.control, "compare": self.compare}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state of the timer from a snapshot."""
        self.control = number(state["control"], 4)
        self.compare = number(state["compare"], 1 << 64)
