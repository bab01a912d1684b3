"""Real-time clocks: a start date, which virtual time advances."""

import datetime

from emu.devices.device import Bus, Device

SECOND = 1_000_000_000  # in ns
RELEASE = datetime.datetime(2025, 12, 2, tzinfo=datetime.UTC)  # date of FreeBSD 15.0-RELEASE


class RealTimeClock(Device):
    """Device that knows the time of day.

    :param start: time of day at virtual time 0, in seconds since 1970 (UTC).
    :ivar offset: nanoseconds by which the guest has set the clock forward; may be negative.
    """

    def __init__(self, bus: Bus, start: int) -> None:
        self._bus, self._start = bus, start
        self.offset = 0

    @property
    def time(self) -> int:
        """Current time of day in nanoseconds since 1970 (UTC)."""
        return self._start * SECOND + self._bus.now + self.offset

    def set_time(self, time: int) -> None:
        """Set the clock to a time of day in nanoseconds since 1970 (UTC)."""
        self.offset += time - self.time
