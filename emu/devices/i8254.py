"""Intel 8254 programmable interval timer (data sheet 231164), with the PC's port 61h."""

from typing import Any

from emu.devices.device import Bus, Device, Line

FREQUENCY = 1_193_182  # input frequency in Hz
SECOND = 1_000_000_000
ACCESS_COST = 500  # cost of a register access in ns (slow ISA bus); it keeps polling loops short


class _Channel:
    def __init__(self) -> None:
        self.mode = 3
        self.access = 3
        self.reload = 0x10000
        self.start = 0  # virtual time in ns at which the count began
        self.low_next = True
        self.write_low = 0
        self.latched = bytearray()  # latched bytes that have not been read yet

    def ticks(self, now: int) -> int:
        return (now - self.start) * FREQUENCY // SECOND

    def count(self, now: int) -> int:
        passed = self.ticks(now)
        if self.mode in (2, 3):
            left = self.reload - passed % self.reload
            if self.mode == 3:
                left = left * 2 % self.reload or self.reload
            return left & 0xFFFF
        return self.reload - passed & 0xFFFF

    def output(self, now: int) -> bool:
        passed = self.ticks(now)
        if self.mode == 2:
            return passed % self.reload != self.reload - 1
        if self.mode == 3:
            return passed % self.reload < (self.reload + 1) // 2
        return passed >= self.reload


FIELDS = ("mode", "access", "reload", "start", "low_next", "write_low")


class I8254(Device):
    """Intel 8254 timer at ports 40h to 43h: channel 0 drives IRQ 0, channel 2 the speaker."""

    STATE = ("channel_state", "speaker")
    size = 4

    def __init__(self, bus: Bus, line: Line) -> None:
        self._bus = bus
        self._line = line
        self._alarm = bus.timer("i8254", self._ring)
        self.channels = [_Channel() for _ in range(3)]
        self.speaker = 0

    @property
    def channel_state(self) -> list[dict[str, object]]:
        """State of the three channels, for snapshots."""
        return [{name: getattr(c, name) for name in FIELDS} | {"latched": c.latched.hex()}
                for c in self.channels]

    @channel_state.setter
    def channel_state(self, state: list[dict[str, Any]]) -> None:
        for channel, values in zip(self.channels, state, strict=True):
            for name in FIELDS:
                setattr(channel, name, values[name])
            channel.latched = bytearray.fromhex(values["latched"])

    def _ring(self) -> None:
        self._line.set(True)
        self._line.set(False)
        channel = self.channels[0]
        if channel.mode in (2, 3):
            self._arm()

    def _arm(self) -> None:
        channel = self.channels[0]
        periods = 1
        if channel.mode in (2, 3):
            periods = channel.ticks(self._bus.now) // channel.reload + 1
        ticks = channel.reload * periods
        self._alarm.set(channel.start + (ticks * SECOND + FREQUENCY - 1) // FREQUENCY)

    def read(self, offset: int, size: int) -> int:
        self._bus.spend(ACCESS_COST)
        if offset == 3:
            return 0xFF
        channel = self.channels[offset]
        if channel.latched:
            return channel.latched.pop(0)
        count = channel.count(self._bus.now)
        if channel.access == 3:
            low, channel.low_next = channel.low_next, not channel.low_next
            return count & 0xFF if low else count >> 8
        return count & 0xFF if channel.access == 1 else count >> 8

    def write(self, offset: int, size: int, value: int) -> None:
        self._bus.spend(ACCESS_COST)
        value &= 0xFF
        if offset == 3:
            self._control(value)
            return
        channel = self.channels[offset]
        if channel.access == 3 and channel.low_next:
            channel.write_low = value
            channel.low_next = False
            return
        if channel.access == 3:
            count = channel.write_low | value << 8
            channel.low_next = True
        else:
            count = value if channel.access == 1 else value << 8
        channel.reload = count or 0x10000
        channel.start = self._bus.now
        if offset == 0:
            self._arm()

    def _control(self, value: int) -> None:
        select, access = value >> 6, value >> 4 & 3
        if select == 3:  # read-back command
            for i, channel in enumerate(self.channels):
                if value >> 1 + i & 1 and not value & 0x20:
                    self._latch(channel)
            return
        channel = self.channels[select]
        if access == 0:
            self._latch(channel)
            return
        channel.access, channel.mode = access, value >> 1 & 7
        channel.mode -= 4 if channel.mode > 5 else 0
        channel.low_next = True
        channel.latched.clear()
        channel.start = self._bus.now
        if select == 0:
            self._alarm.cancel()

    def _latch(self, channel: _Channel) -> None:
        if not channel.latched:
            count = channel.count(self._bus.now)
            both = bytearray(count.to_bytes(2, "little"))
            channel.latched = both if channel.access == 3 else both[channel.access - 1 :][:1]

    def gate(self) -> int:
        """Return the value of port 61h: gate, speaker, refresh toggle, output of channel 2."""
        self._bus.spend(ACCESS_COST)
        refresh = self._bus.now // 15085 & 1
        return self.speaker & 3 | refresh << 4 | int(self.channels[2].output(self._bus.now)) << 5

    def set_gate(self, value: int) -> None:
        """Write port 61h: the gate of channel 2, and the speaker."""
        if value & 1 and not self.speaker & 1:
            self.channels[2].start = self._bus.now
        self.speaker = value & 3
