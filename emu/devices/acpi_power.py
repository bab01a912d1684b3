"""The fixed hardware of ACPI (ACPI 6.5, 4.8.3): PM1 event and control blocks, PM timer."""

from collections.abc import Callable

from emu.devices.device import Bus, Device

PM1_STATUS, PM1_ENABLE, PM1_CONTROL, PM_TIMER = 0, 2, 4, 8
FREQUENCY = 3_579_545
TIMER_MASK = 0xFFFFFF
SCI_ENABLED, SLEEP_ENABLE = 1, 1 << 13
ACCESS_COST = 500


class AcpiPower(Device):
    """Registers of ACPI fixed hardware: power management events, sleep control, and a timer.

    :param sleep: called when the guest requests S5 (power off).
    """
    STATE = ("status", "enable", "control")
    size = 12

    def __init__(self, bus: Bus, sleep: Callable[[], None]) -> None:
        self._bus = bus
        self._sleep = sleep
        self.status = self.enable = 0
        self.control = SCI_ENABLED

    def read(self, offset: int, size: int) -> int:
        if offset >= PM_TIMER:
            self._bus.spend(ACCESS_COST)
            return self._bus.now * FREQUENCY // 1_000_000_000 & TIMER_MASK
        return {PM1_STATUS: self.status, PM1_ENABLE: self.enable, PM1_CONTROL: self.control}.get(
            offset, 0
        )

    def write(self, offset: int, size: int, value: int) -> None:
        if offset == PM1_STATUS:
            self.status &= ~value
        elif offset == PM1_ENABLE:
            self.enable = value & 0xFFFF
        elif offset == PM1_CONTROL:
            self.control = value & ~SLEEP_ENABLE & 0xFFFF | SCI_ENABLED
            if value & SLEEP_ENABLE:
                self._sleep()
