"""MC146818 real-time clock and CMOS memory, ports 70h and 71h.

The clock starts at a given date and follows virtual time.
"""

import datetime

from emu.devices.clock import RELEASE, SECOND, RealTimeClock
from emu.devices.device import Bus

SECONDS, MINUTES, HOURS, WEEKDAY, DAY, MONTH, YEAR, A, B, C, D = 0, 2, 4, 6, 7, 8, 9, 10, 11, 12, 13
CENTURY = 0x32
CLOCK = (SECONDS, MINUTES, HOURS, WEEKDAY, DAY, MONTH, YEAR, CENTURY)
B_SET, B_BINARY, B_24H = 0x80, 4, 2
LATEST = 253_402_300_799 * SECOND  # end of the year 9999, the last one that four digits can show


class Cmos(RealTimeClock):
    """The index and data ports of the real-time clock and CMOS memory.

    :param start: time of day at virtual time 0, in seconds since 1970 (UTC). None: the date of
        FreeBSD 15.0-RELEASE, and the guest cannot set the clock.
    """

    STATE = ("index", "memory")
    size = 2

    def __init__(self, bus: Bus, start: int | None = None) -> None:
        super().__init__(bus, int(RELEASE.timestamp()) if start is None else start)
        self._settable = start is not None
        self.index = 0
        self.memory = bytearray(128)
        self.memory[A], self.memory[B] = 0x26, B_24H

    def kept(self) -> tuple[str, ...]:
        return (*self.STATE, "offset") if self._settable else self.STATE

    def read(self, offset: int, size: int) -> int:
        if offset == 0:
            return 0xFF
        if self.index in CLOCK and not (self._settable and self.memory[B] & B_SET):
            return self._shown()[self.index]
        if self.index == C:
            return 0
        if self.index == D:
            return 0x80
        return self.memory[self.index]

    def write(self, offset: int, size: int, value: int) -> None:
        if offset == 0:
            self.index = value & 0x7F
            return
        if self.index in (C, D):
            return
        if self.index == B and self._settable:
            setting = bool(self.memory[B] & B_SET)
            if value & B_SET and not setting:
                for index, shown in self._shown().items():
                    self.memory[index] = shown
            elif setting and not value & B_SET:
                self._set()
        self.memory[self.index] = value & (0x7F if self.index == A else 0xFF)

    def _shown(self) -> dict[int, int]:
        """Return the current contents of the clock's registers, keyed by index."""
        date = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(
            microseconds=min(max(self.time, 0), LATEST) // 1000)
        values = [date.second, date.minute, date.hour, date.isoweekday() % 7 + 1, date.day,
                  date.month, date.year % 100, date.year // 100]
        if not self.memory[B] & B_BINARY:
            values = [value // 10 << 4 | value % 10 for value in values]
        return dict(zip(CLOCK, values, strict=True))

    def _set(self) -> None:
        """Set the clock to the date in the registers; an invalid date leaves it unchanged."""
        binary = self.memory[B] & B_BINARY
        second, minute, hour, _weekday, day, month, year, century = (
            value if binary else (value >> 4) * 10 + (value & 0xF)
            for value in (self.memory[index] for index in CLOCK))
        try:
            date = datetime.datetime(century * 100 + year, month, day, hour, minute, second,
                                     tzinfo=datetime.UTC)
        except ValueError:
            return
        self.set_time(int(date.timestamp()) * SECOND)
