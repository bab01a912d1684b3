"""RISC-V platform-level interrupt controller (PLIC specification 1.0.0), one context: hart 0, S."""

from collections.abc import Callable

from emu.device import Device

SOURCES = 64
PRIORITY, PENDING, ENABLE, CONTEXT = 0, 0x1000, 0x2080, 0x201000


class Plic(Device):
    """Registers of context 1 (S-mode of hart 0); level-triggered sources with a gateway each."""

    STATE = ("priority", "levels", "claimed", "enabled", "threshold")
    size = 0x600000

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self.priority = [0] * SOURCES
        self.levels = 0
        self.claimed = 0
        self.enabled = 0
        self.threshold = 0

    def set_line(self, source: int, level: bool) -> None:
        old = self.levels
        self.levels = old | 1 << source if level else old & ~(1 << source)
        if old != self.levels:
            self._changed()

    def _best(self) -> int:
        ready = self.levels & ~self.claimed & self.enabled
        best = 0
        for source in range(1, SOURCES):
            if (
                ready >> source & 1
                and self.priority[source] > self.threshold
                and (not best or self.priority[source] > self.priority[best])
            ):
                best = source
        return best

    @property
    def asserted(self) -> bool:
        """The external interrupt line of the hart."""
        return self._best() != 0

    def read(self, offset: int, size: int) -> int:
        if offset < PENDING:
            return self.priority[offset // 4] if offset // 4 < SOURCES else 0
        if offset in (PENDING, PENDING + 4):
            return (self.levels & ~self.claimed) >> (offset - PENDING) * 8 & 0xFFFFFFFF
        if offset in (ENABLE, ENABLE + 4):
            return self.enabled >> (offset - ENABLE) * 8 & 0xFFFFFFFF
        if offset == CONTEXT:
            return self.threshold
        if offset == CONTEXT + 4:
            source = self._best()
            self.claimed |= 1 << source if source else 0
            self._changed()
            return source
        return 0

    def write(self, offset: int, size: int, value: int) -> None:
        if offset < PENDING:
            if 0 < offset // 4 < SOURCES:
                self.priority[offset // 4] = value & 7
        elif offset in (ENABLE, ENABLE + 4):
            shift = (offset - ENABLE) * 8
            self.enabled = self.enabled & ~(0xFFFFFFFF << shift) | value << shift
            self.enabled &= (1 << SOURCES) - 2
        elif offset == CONTEXT:
            self.threshold = value & 7
        elif offset == CONTEXT + 4 and value < SOURCES:
            self.claimed &= ~(1 << value)
        self._changed()
