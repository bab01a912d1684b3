"""RISC-V platform-level interrupt controller (PLIC specification 1.0.0).

Each hart has an M-mode context, which is not used, and an S-mode context.
"""

from collections.abc import Callable

from emu.devices.device import Device

SOURCES = 64
PRIORITY, PENDING, ENABLE, CONTEXT = 0, 0x1000, 0x2000, 0x200000
ENABLE_STEP, CONTEXT_STEP = 0x80, 0x1000  # bytes per context in the ENABLE and CONTEXT blocks


class Plic(Device):
    """PLIC with level-triggered sources, each with its own gateway.

    :param harts: number of harts.
    """

    # ``enabled`` and ``threshold`` belong to hart 0; ``others`` has those of the other harts.
    STATE = ("priority", "levels", "claimed", "enabled", "threshold")
    size = 0x600000

    def __init__(self, changed: Callable[[], None], harts: int = 1) -> None:
        self._changed = changed
        self.priority = [0] * SOURCES
        self.levels = 0
        self.claimed = 0
        self.enabled = 0
        self.threshold = 0
        self.others = [{"enabled": 0, "threshold": 0} for _ in range(harts - 1)]

    def kept(self) -> tuple[str, ...]:
        return (*self.STATE, "others") if self.others else self.STATE

    def set_line(self, source: int, level: bool) -> None:
        """Set the level of a source's interrupt line."""
        old = self.levels
        self.levels = old | 1 << source if level else old & ~(1 << source)
        if old != self.levels:
            self._changed()

    def _of(self, hart: int) -> tuple[int, int]:
        if hart == 0:
            return self.enabled, self.threshold
        return self.others[hart - 1]["enabled"], self.others[hart - 1]["threshold"]

    def _put(self, hart: int, enabled: int, threshold: int) -> None:
        if hart == 0:
            self.enabled, self.threshold = enabled, threshold
        else:
            self.others[hart - 1] = {"enabled": enabled, "threshold": threshold}

    def _best(self, hart: int) -> int:
        enabled, threshold = self._of(hart)
        ready = self.levels & ~self.claimed & enabled
        best = 0
        for source in range(1, SOURCES if ready else 0):
            if (
                ready >> source & 1
                and self.priority[source] > threshold
                and (not best or self.priority[source] > self.priority[best])
            ):
                best = source
        return best

    def asserted(self, hart: int) -> bool:
        """Return whether the external interrupt line of a hart is asserted."""
        return self._best(hart) != 0

    def _hart(self, offset: int, step: int) -> tuple[int | None, int]:
        """Convert an offset in a block of contexts to (hart or None, offset in the context)."""
        context = offset // step
        hart = context // 2 if context % 2 and context // 2 <= len(self.others) else None
        return hart, offset % step

    def read(self, offset: int, size: int) -> int:
        if offset < PENDING:
            return self.priority[offset // 4] if offset // 4 < SOURCES else 0
        if offset in (PENDING, PENDING + 4):
            return (self.levels & ~self.claimed) >> (offset - PENDING) * 8 & 0xFFFFFFFF
        if ENABLE <= offset < CONTEXT:
            hart, at = self._hart(offset - ENABLE, ENABLE_STEP)
            if hart is not None and at in (0, 4):
                return self._of(hart)[0] >> at * 8 & 0xFFFFFFFF
        if offset >= CONTEXT:
            hart, at = self._hart(offset - CONTEXT, CONTEXT_STEP)
            if hart is not None and at == 0:
                return self._of(hart)[1]
            if hart is not None and at == 4:
                source = self._best(hart)
                self.claimed |= 1 << source if source else 0
                self._changed()
                return source
        return 0

    def write(self, offset: int, size: int, value: int) -> None:
        if offset < PENDING:
            if 0 < offset // 4 < SOURCES:
                self.priority[offset // 4] = value & 7
        elif ENABLE <= offset < CONTEXT:
            hart, at = self._hart(offset - ENABLE, ENABLE_STEP)
            if hart is not None and at in (0, 4):
                enabled, threshold = self._of(hart)
                enabled = enabled & ~(0xFFFFFFFF << at * 8) | value << at * 8
                self._put(hart, enabled & (1 << SOURCES) - 2, threshold)
        elif offset >= CONTEXT:
            hart, at = self._hart(offset - CONTEXT, CONTEXT_STEP)
            if hart is not None and at == 0:
                self._put(hart, self._of(hart)[0], value & 7)
            elif hart is not None and at == 4 and value < SOURCES:
                self.claimed &= ~(1 << value)
        self._changed()
