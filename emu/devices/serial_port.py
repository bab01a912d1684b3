"""The far end of a serial port: what is typed there arrives byte by byte, as over a line.

A key pressed at the moment a prompt appears reaches the guest a little later, as from a person:
the guest has then begun to wait for it.
"""

from abc import abstractmethod

from emu.devices.device import Bus, Device

FIRST_KEY = 20_000_000  # ns from typing to the first byte
BYTE_TIME = 1_000_000  # ns between bytes


class SerialPort(Device):
    """A serial port: what the guest sends goes to the console, what is typed comes in by
    ``receive``.  A subclass has ``waiting`` (typed, still on its way) and ``fifo`` (arrived, not
    read) in its STATE."""

    fifo: bytearray

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._arrival = bus.timer("uart", self._arrive)
        self.waiting = bytearray()

    @abstractmethod
    def receive(self, byte: int) -> bool:
        """Take a byte from the line; false when there is no room for it now."""

    def type(self, data: bytes) -> None:
        """Keys pressed at the terminal."""
        if data and not self.waiting:
            self._arrival.set(self._bus.now + FIRST_KEY)
        self.waiting += data

    @property
    def keys_left(self) -> bool:
        """Whether something that was typed has not been read by the guest yet."""
        return bool(self.waiting or self.fifo)

    def _arrive(self) -> None:
        if self.waiting and self.receive(self.waiting[0]):
            del self.waiting[0]
        if self.waiting:
            self._arrival.set(self._bus.now + BYTE_TIME)
