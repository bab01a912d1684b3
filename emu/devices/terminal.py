"""What is typed at a serial terminal: bytes arrive one by one, as over a line.

A key pressed at the moment a prompt appears reaches the guest a little later, as from a person:
the guest has then begun to wait for it.
"""

from collections.abc import Callable

from emu.device import Bus

FIRST_KEY = 20_000_000  # ns from typing to the first byte
BYTE_TIME = 1_000_000  # ns between bytes


class Terminal:
    """The keyboard side of a serial port."""

    def __init__(self, bus: Bus, name: str, receive: Callable[[int], bool]) -> None:
        """:param receive: takes a byte; false when the port has no room for it now."""
        self._bus = bus
        self._receive = receive
        self._alarm = bus.timer(name, self._arrive)
        self.waiting = bytearray()

    def type(self, data: bytes) -> None:
        if data and not self.waiting:
            self._alarm.set(self._bus.now + FIRST_KEY)
        self.waiting += data

    def _arrive(self) -> None:
        if self.waiting and self._receive(self.waiting[0]):
            del self.waiting[0]
        if self.waiting:
            self._alarm.set(self._bus.now + BYTE_TIME)
