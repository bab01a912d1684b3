"""PrimeCell PL031 real-time clock (ARM DDI 0224, chapter 3), without its alarm interrupt."""

from emu.devices.clock import SECOND, RealTimeClock
from emu.devices.device import Bus

DR, MR, LR, CR, IMSC, RIS, MIS, ICR = range(0x00, 0x20, 4)
IDENTIFICATION = bytes((0x31, 0x10, 0x04, 0x00, 0x0D, 0xF0, 0x05, 0xB1))


class Pl031(RealTimeClock):
    """The real-time clock of arm64; it counts seconds.

    :param start: time of day at virtual time 0, in seconds since 1970 (UTC).
    """

    STATE = ("offset", "match", "imsc")
    size = 0x1000

    def __init__(self, bus: Bus, start: int) -> None:
        super().__init__(bus, start)
        self.match = self.imsc = 0

    def read(self, offset: int, size: int) -> int:
        if offset in (DR, LR):
            return self.time // SECOND & 0xFFFFFFFF
        if 0xFE0 <= offset < 0x1000:
            return IDENTIFICATION[(offset - 0xFE0) // 4]
        return {MR: self.match, CR: 1, IMSC: self.imsc}.get(offset, 0)

    def write(self, offset: int, size: int, value: int) -> None:
        if offset == LR:
            self.set_time((value & 0xFFFFFFFF) * SECOND)
        elif offset == MR:
            self.match = value & 0xFFFFFFFF
        elif offset == IMSC:
            self.imsc = value & 1
