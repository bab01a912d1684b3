"""Arm Generic Interrupt Controller v2 (IHI 0048B) with one CPU interface.

Interrupts are level-sensitive, or edge-triggered where GICD_ICFGR says so.  Sets of interrupts
are integers, one bit each.
"""

from collections.abc import Callable

from emu.device import Device

LINES = 128
SPURIOUS = 1023
CTLR, TYPER, IIDR, IGROUPR, ISENABLER, ICENABLER = 0, 4, 8, 0x80, 0x100, 0x180
ISPENDR, ICPENDR, ISACTIVER, ICACTIVER = 0x200, 0x280, 0x300, 0x380
IPRIORITYR, ITARGETSR, ICFGR, SGIR, PIDR2 = 0x400, 0x800, 0xC00, 0xF00, 0xFE8
C_CTLR, C_PMR, C_BPR, C_IAR, C_EOIR, C_RPR, C_HPPIR, C_IIDR, C_DIR = (
    0, 4, 8, 0xC, 0x10, 0x14, 0x18, 0xFC, 0x1000)


class Distributor(Device):
    """GICD: which interrupts there are, and their state."""

    STATE = ("control", "enabled", "pending", "active", "levels", "edge", "priority", "group",
             "targets")
    size = 0x1000

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self.control = 0
        self.enabled = 0xFFFF  # SGIs are always enabled
        self.pending = self.active = self.levels = self.group = 0
        self.edge = 0xFFFF
        self.priority = [0] * LINES
        self.targets = [1] * LINES

    def set_line(self, number: int, level: bool) -> None:
        bit = 1 << number
        if level and not self.levels & bit and self.edge & bit:
            self.pending |= bit
        self.levels = self.levels | bit if level else self.levels & ~bit
        self._changed()

    @property
    def waiting(self) -> int:
        """Pending in the specification's sense: latched, or a level that is up."""
        return self.pending | self.levels & ~self.edge

    def best(self) -> tuple[int, int]:
        """Number and priority of the highest waiting, enabled, inactive interrupt."""
        best, level = SPURIOUS, 0x100
        if self.control & 1:
            ready = self.waiting & self.enabled & ~self.active
            while ready:
                number = (ready & -ready).bit_length() - 1
                ready &= ready - 1
                if self.priority[number] < level:
                    best, level = number, self.priority[number]
        return best, level

    def _word(self, bits: int, offset: int) -> int:
        return bits >> offset * 8 & 0xFFFFFFFF

    def read(self, offset: int, size: int) -> int:
        bank, at = offset & ~0x7F, offset & 0x7F
        words = {IGROUPR: self.group, ISENABLER: self.enabled, ICENABLER: self.enabled,
                 ISPENDR: self.waiting, ICPENDR: self.waiting, ISACTIVER: self.active,
                 ICACTIVER: self.active}
        if offset == CTLR:
            return self.control
        if offset == TYPER:
            return LINES // 32 - 1
        if offset == IIDR:
            return 0x0200143B
        if bank in words:
            return self._word(words[bank], at)
        if IPRIORITYR <= offset < ITARGETSR or ITARGETSR <= offset < ICFGR:
            table = self.priority if offset < ITARGETSR else self.targets
            start = offset - (IPRIORITYR if offset < ITARGETSR else ITARGETSR)
            return int.from_bytes(bytes(table[start : start + size]), "little")
        if ICFGR <= offset < ICFGR + LINES // 4:
            start = (offset - ICFGR) * 4
            return sum(2 << 2 * i for i in range(16) if self.edge >> start + i & 1)
        if offset == PIDR2:
            return 0x2B
        return 0

    def write(self, offset: int, size: int, value: int) -> None:
        bank, bits = offset & ~0x7F, value << (offset & 0x7F) * 8 & (1 << LINES) - 1
        if offset == CTLR:
            self.control = value & 3
        elif bank == ISENABLER:
            self.enabled |= bits
        elif bank == ICENABLER:
            self.enabled &= ~bits | 0xFFFF
        elif bank == ISPENDR:
            self.pending |= bits
        elif bank == ICPENDR:
            self.pending &= ~bits
        elif bank == ISACTIVER:
            self.active |= bits
        elif bank == ICACTIVER:
            self.active &= ~bits
        elif IPRIORITYR <= offset < ICFGR:
            table = self.priority if offset < ITARGETSR else self.targets
            start = offset - (IPRIORITYR if offset < ITARGETSR else ITARGETSR)
            if table is self.priority or start >= 32:
                for i, byte in enumerate(value.to_bytes(8, "little")[:size]):
                    if start + i < LINES:
                        table[start + i] = byte
        elif ICFGR + 4 <= offset < ICFGR + LINES // 4:
            start = (offset - ICFGR) * 4
            for i in range(16):
                bit = 1 << start + i
                self.edge = self.edge | bit if value >> 2 * i & 2 else self.edge & ~bit
        elif offset == SGIR and (value >> 24 & 3 in (1, 2) or value >> 16 & 1):
            self.pending |= 1 << (value & 15)
        self._changed()


class CpuInterface(Device):
    """GICC: acknowledging and ending interrupts, the priority mask, the IRQ line."""

    STATE = ("control", "mask", "binary_point", "running")
    size = 0x2000

    def __init__(self, distributor: Distributor, changed: Callable[[], None]) -> None:
        self._distributor = distributor
        self._changed = changed
        self.control = self.mask = self.binary_point = 0
        self.running: list[list[int]] = []  # number and priority, innermost last

    def _candidate(self) -> int:
        number, priority = self._distributor.best()
        limit = self.running[-1][1] if self.running else 0x100
        if number != SPURIOUS and priority < self.mask and priority < limit:
            return number
        return SPURIOUS

    @property
    def asserted(self) -> bool:
        """The IRQ line of the CPU."""
        return bool(self.control & 1) and self._candidate() != SPURIOUS

    def read(self, offset: int, size: int) -> int:
        if offset == C_CTLR:
            return self.control
        if offset == C_PMR:
            return self.mask
        if offset == C_BPR:
            return self.binary_point
        if offset == C_IAR:
            number = self._candidate()
            if number != SPURIOUS:
                d = self._distributor
                d.active |= 1 << number
                d.pending &= ~(1 << number)
                self.running.append([number, d.priority[number]])
                self._changed()
            return number
        if offset == C_RPR:
            return self.running[-1][1] if self.running else 0xFF
        if offset == C_HPPIR:
            return self._distributor.best()[0]
        if offset == C_IIDR:
            return 0x0202143B
        return 0

    def write(self, offset: int, size: int, value: int) -> None:
        if offset == C_CTLR:
            self.control = value & 0x201
        elif offset == C_PMR:
            self.mask = value & 0xFF
        elif offset == C_BPR:
            self.binary_point = value & 7
        elif offset == C_EOIR:
            number = value & 0x3FF
            for at in range(len(self.running) - 1, -1, -1):
                if self.running[at][0] == number:
                    del self.running[at]
                    break
            if not self.control & 0x200 and number < LINES:
                self._distributor.active &= ~(1 << number)
        elif offset == C_DIR and value & 0x3FF < LINES:
            self._distributor.active &= ~(1 << (value & 0x3FF))
        self._changed()
