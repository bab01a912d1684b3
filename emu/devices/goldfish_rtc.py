"""Goldfish real-time clock (QEMU's documentation, "Goldfish RTC"), without its alarm."""

from emu.devices.clock import RealTimeClock
from emu.devices.device import Bus

TIME_LOW, TIME_HIGH = 0x00, 0x04


class GoldfishRtc(RealTimeClock):
    """The real-time clock of riscv64; it counts nanoseconds.

    :param start: time of day at virtual time 0, in seconds since 1970 (UTC).
    :ivar high: upper half of the time at the last read of TIME_LOW, or written by the guest.
    """

    STATE = ("offset", "high")
    size = 0x1000

    def __init__(self, bus: Bus, start: int) -> None:
        super().__init__(bus, start)
        self.high = 0

    def read(self, offset: int, size: int) -> int:
        if offset == TIME_LOW:
            now = self.time & (1 << 64) - 1
            self.high = now >> 32
            return now & 0xFFFFFFFF
        return self.high if offset == TIME_HIGH else 0

    def write(self, offset: int, size: int, value: int) -> None:
        if offset == TIME_HIGH:
            self.high = value & 0xFFFFFFFF
        elif offset == TIME_LOW:
            self.set_time(self.high << 32 | value & 0xFFFFFFFF)
