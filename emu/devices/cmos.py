"""MC146818 real-time clock and CMOS memory, ports 70h and 71h.

The clock starts at a fixed date and follows virtual time.
"""

import datetime

from emu.devices.device import Bus, Device

EPOCH = datetime.datetime(2025, 12, 2, tzinfo=datetime.UTC)
SECONDS, MINUTES, HOURS, WEEKDAY, DAY, MONTH, YEAR, A, B, C, D = 0, 2, 4, 6, 7, 8, 9, 10, 11, 12, 13
CENTURY = 0x32
B_BINARY, B_24H = 4, 2


class Cmos(Device):
    """The index and data ports of the real-time clock and CMOS memory."""
    STATE = ("index", "memory")
    size = 2

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.index = 0
        self.memory = bytearray(128)
        self.memory[A], self.memory[B] = 0x26, B_24H

    def read(self, offset: int, size: int) -> int:
        if offset == 0:
            return 0xFF
        date = EPOCH + datetime.timedelta(microseconds=self._bus.now // 1000)
        clock = {
            SECONDS: date.second, MINUTES: date.minute, HOURS: date.hour,
            WEEKDAY: date.isoweekday() % 7 + 1, DAY: date.day, MONTH: date.month,
            YEAR: date.year % 100, CENTURY: date.year // 100,
        }
        if self.index in clock:
            value = clock[self.index]
            return value if self.memory[B] & B_BINARY else value // 10 << 4 | value % 10
        if self.index == C:
            return 0
        if self.index == D:
            return 0x80
        return self.memory[self.index]

    def write(self, offset: int, size: int, value: int) -> None:
        if offset == 0:
            self.index = value & 0x7F
        elif self.index not in (C, D):
            self.memory[self.index] = value & (0x7F if self.index == A else 0xFF)
