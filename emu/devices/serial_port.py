"""Serial ports whose input arrives byte by byte, as over a serial line.

A key pressed when a prompt appears reaches the guest a little later, as if a person had typed it:
by then the guest waits for input.
"""

from abc import abstractmethod
from collections.abc import Callable

from emu.devices.device import Bus, Device

FIRST_KEY = 20_000_000  # time in ns from typing to the arrival of the first byte
BYTE_TIME = 1_000_000  # time in ns between two bytes
CONSOLE = "uart"  # name of the port that is the console; nothing is connected to other ports


class SerialPort(Device):
    """Serial port between the guest and a terminal.

    The guest's output goes to ``output``; typed bytes arrive through ``receive``.  The STATE of a
    subclass has to include ``waiting`` (typed, not arrived) and ``fifo`` (arrived, not read).
    """

    fifo: bytearray

    def __init__(self, bus: Bus, name: str = CONSOLE) -> None:
        self._bus = bus
        self._arrival = bus.timer(name, self._arrive)
        self.output: Callable[[int], None] = bus.output if name == CONSOLE else _nowhere
        self.waiting = bytearray()

    @abstractmethod
    def receive(self, byte: int) -> bool:
        """Receive a byte from the line; return False if there is currently no room for the byte."""

    def type(self, data: bytes) -> None:
        """Type keys at the terminal."""
        if data and not self.waiting:
            self._arrival.set(self._bus.now + FIRST_KEY)
        self.waiting += data

    @property
    def keys_left(self) -> bool:
        """Whether the guest still has typed bytes to read."""
        return bool(self.waiting or self.fifo)

    def _arrive(self) -> None:
        if self.waiting and self.receive(self.waiting[0]):
            del self.waiting[0]
        if self.waiting:
            self._arrival.set(self._bus.now + BYTE_TIME)


def _nowhere(byte: int) -> None:
    """Discard a byte, because nothing is connected to the port."""
