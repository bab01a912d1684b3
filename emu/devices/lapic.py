"""Local APIC (SDM volume 3, chapter "Advanced Programmable Interrupt Controller"), xAPIC mode."""

from collections.abc import Callable

from emu.devices.device import Bus, Device

TICK = 10  # duration of a timer tick in ns: the bus clock runs at 100 MHz
ID, VERSION, TPR, PPR, EOI, LDR, DFR, SVR = 0x20, 0x30, 0x80, 0xA0, 0xB0, 0xD0, 0xE0, 0xF0
LOGICAL = 1 << 11  # message flag that selects the logical destination mode
ASSERT = 1 << 14
FIXED, LOWEST, NMI, INIT, START = 0, 1, 4, 5, 6  # delivery modes of messages
ISR, TMR, IRR, ESR, ICR_LOW, ICR_HIGH = 0x100, 0x180, 0x200, 0x280, 0x300, 0x310
LVT_TIMER, LVT_FIRST, LVT_LAST, INITIAL, CURRENT, DIVIDE = 0x320, 0x320, 0x370, 0x380, 0x390, 0x3E0
MASKED, PERIODIC = 1 << 16, 1 << 17
SOFTWARE_ENABLE = 1 << 8


class LocalApic(Device):
    """Local APIC of a CPU.

    :param number: number of the CPU, which is also the APIC ID.
    :param send: called with the interrupt command register and the destination to send a message;
        None: there are no other CPUs.
    """

    STATE = ("registers", "irr", "isr", "timer_start", "timer_initial")
    size = 0x1000

    def __init__(self, bus: Bus, number: int = 0,
                 send: Callable[[int, int], None] | None = None) -> None:
        self._bus, self.number, self._send = bus, number, send
        self.urgent = False  # whether an NMI is pending
        self._alarm = bus.timer(f"lapic{number or ''}", self._ring)
        self.reset()

    def kept(self) -> tuple[str, ...]:
        return self.STATE if self._send is None else (*self.STATE, "urgent")

    def reset(self) -> None:
        """Reset to the state after power-on or INIT."""
        self._alarm.cancel()
        self.urgent = False
        self.registers = {str(r): 0 for r in (TPR, LDR, ICR_LOW, ICR_HIGH, DIVIDE, ESR)}
        self.registers |= {str(r): MASKED for r in range(LVT_FIRST, LVT_LAST + 1, 0x10)}
        self.registers |= {str(DFR): 0xFFFFFFFF, str(SVR): 0xFF}
        self.irr = self.isr = 0
        self.timer_start = self.timer_initial = 0

    # -- interrupts ---------------------------------------------------------------------------

    def request(self, vector: int) -> None:
        """Request an interrupt, if the APIC is enabled and the vector is valid."""
        if vector >= 16 and self.registers[str(SVR)] & SOFTWARE_ENABLE:
            self.irr |= 1 << vector
            self._bus.interrupts_changed()

    def urge(self) -> None:
        """Request a non-maskable interrupt (NMI)."""
        self.urgent = True
        self._bus.interrupts_changed()

    def is_meant(self, destination: int, logical: bool) -> bool:
        """Return whether a message is for this APIC (SDM, "Determining IPI Destination")."""
        if not logical:
            return destination in (self.number, 0xFF)
        own = self.registers[str(LDR)] >> 24
        if self.registers[str(DFR)] >> 28 == 0xF:
            return own & destination != 0
        return own >> 4 == destination >> 4 and own & destination & 0xF != 0

    @property
    def _priority(self) -> int:
        serving = self.isr.bit_length() - 1 if self.isr else 0
        return max(self.registers[str(TPR)] >> 4, serving >> 4)

    def pending(self) -> int | None:
        """Return the vector of the interrupt to deliver to the CPU, or None."""
        if not self.irr:
            return None
        vector = self.irr.bit_length() - 1
        return vector if vector >> 4 > self._priority else None

    def acknowledge(self) -> int:
        """Move the highest-priority requested interrupt into service, and return its vector."""
        vector = self.irr.bit_length() - 1
        self.irr &= ~(1 << vector)
        self.isr |= 1 << vector
        return vector

    # -- timer --------------------------------------------------------------------------------

    @property
    def _period(self) -> int:
        bits = self.registers[str(DIVIDE)]
        shift = (bits & 3 | bits >> 1 & 4) + 1 & 7
        return TICK << shift

    def _ring(self) -> None:
        lvt = self.registers[str(LVT_TIMER)]
        if lvt & PERIODIC:
            self.timer_start += self.timer_initial * self._period
            self._alarm.set(self.timer_start + self.timer_initial * self._period)
        self.ring()

    def ring(self) -> None:
        """Request the timer interrupt now, without changing the timer's deadline."""
        lvt = self.registers[str(LVT_TIMER)]
        if not lvt & MASKED:
            self.request(lvt & 0xFF)

    def _current(self) -> int:
        if not self.timer_initial:
            return 0
        passed = (self._bus.now - self.timer_start) // self._period
        if self.registers[str(LVT_TIMER)] & PERIODIC:
            return self.timer_initial - passed % self.timer_initial
        return max(0, self.timer_initial - passed)

    # -- registers ----------------------------------------------------------------------------

    def read(self, offset: int, size: int) -> int:
        offset &= ~15
        if offset == ID:
            return self.number << 24
        if offset == VERSION:
            return 0x14 | (LVT_LAST - LVT_FIRST >> 4) << 16
        if offset == PPR:
            return self._priority << 4
        for base, bits in ((ISR, self.isr), (IRR, self.irr)):
            if base <= offset < base + 0x80:
                return bits >> (offset - base) * 2 & 0xFFFFFFFF
        if offset == INITIAL:
            return self.timer_initial
        if offset == CURRENT:
            return self._current()
        return self.registers.get(str(offset), 0)

    def write(self, offset: int, size: int, value: int) -> None:
        offset &= ~15
        value &= 0xFFFFFFFF
        if offset == EOI:
            if self.isr:
                self.isr &= ~(1 << self.isr.bit_length() - 1)
        elif offset == INITIAL:
            self.timer_initial, self.timer_start = value, self._bus.now
            if value:
                self._alarm.set(self.timer_start + value * self._period)
            else:
                self._alarm.cancel()
        elif offset == ESR:
            self.registers[str(ESR)] = 0
        elif offset == ICR_LOW:
            self.registers[str(ICR_LOW)] = value & ~(1 << 12)
            if self._send is not None:
                self._send(value, self.registers[str(ICR_HIGH)] >> 24)
                self._bus.interrupts_changed()
                return
            to_self = value >> 18 & 3 in (1, 2) or (
                value >> 18 & 3 == 0 and self.registers[str(ICR_HIGH)] >> 24 == 0
            )
            if to_self and value >> 8 & 7 == 0:
                self.request(value & 0xFF)
        elif offset == TPR:
            self.registers[str(TPR)] = value & 0xFF
        elif str(offset) in self.registers:
            self.registers[str(offset)] = value
        self._bus.interrupts_changed()
