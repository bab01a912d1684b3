"""I/O APIC (Intel 82093AA data sheet); it has 24 pins and sends interrupts to local APICs."""

from collections.abc import Callable

from emu.devices.device import Device

PINS = 24
SELECT, WINDOW, EOI = 0, 0x10, 0x40
MASKED, LEVEL, REMOTE_IRR, ACTIVE_LOW = 1 << 16, 1 << 15, 1 << 14, 1 << 13


class IoApic(Device):
    """The registers and pins of an I/O APIC.

    :param send: called with the low half of a pin's redirection entry, and its destination.
    :param identity: the APIC ID.
    """
    STATE = ("select", "redirection", "levels", "identity")
    size = 0x1000

    def __init__(self, send: Callable[[int, int], None], identity: int) -> None:
        self._send = send
        self.select = 0
        self.identity = identity << 24
        self.redirection = [MASKED] * PINS
        self.levels = 0

    def set_line(self, pin: int, level: bool) -> None:
        """Set the level of a pin's interrupt line, before polarity is applied."""
        before = self.levels >> pin & 1
        self.levels = self.levels | 1 << pin if level else self.levels & ~(1 << pin)
        entry = self.redirection[pin]
        if entry & LEVEL:
            self._level(pin)
        elif level and not before and not entry & MASKED:
            self._message(entry)

    def _message(self, entry: int) -> None:
        self._send(entry & 0xFFFFFFFF, entry >> 56)

    def _level(self, pin: int) -> None:
        entry = self.redirection[pin]
        if self.levels >> pin & 1 and not entry & (MASKED | REMOTE_IRR):
            self.redirection[pin] |= REMOTE_IRR
            self._message(entry)

    def end_of_interrupt(self, vector: int) -> None:
        """Handle an end-of-interrupt message from a local APIC."""
        for pin, entry in enumerate(self.redirection):
            if entry & LEVEL and entry & 0xFF == vector:
                self.redirection[pin] &= ~REMOTE_IRR
                self._level(pin)

    def read(self, offset: int, size: int) -> int:
        if offset == SELECT:
            return self.select
        if offset != WINDOW:
            return 0
        if self.select in (0, 2):
            return self.identity
        if self.select == 1:
            return 0x20 | PINS - 1 << 16
        if 0x10 <= self.select < 0x10 + 2 * PINS:
            entry = self.redirection[(self.select - 0x10) // 2]
            return entry >> 32 if self.select & 1 else entry & 0xFFFFFFFF
        return 0

    def write(self, offset: int, size: int, value: int) -> None:
        if offset == SELECT:
            self.select = value & 0xFF
        elif offset == EOI:
            self.end_of_interrupt(value & 0xFF)
        elif offset == WINDOW and self.select == 0:
            self.identity = value & 0x0F000000
        elif offset == WINDOW and 0x10 <= self.select < 0x10 + 2 * PINS:
            pin = (self.select - 0x10) // 2
            entry = self.redirection[pin]
            if self.select & 1:
                entry = entry & 0xFFFFFFFF | value << 32
            else:
                keep = entry & (REMOTE_IRR | 1 << 12)
                entry = entry & ~0xFFFFFFFF | value & 0xFFFFFFFF & ~(REMOTE_IRR | 1 << 12) | keep
                if not entry & LEVEL:
                    entry &= ~REMOTE_IRR
            self.redirection[pin] = entry
            if entry & LEVEL:
                self._level(pin)
