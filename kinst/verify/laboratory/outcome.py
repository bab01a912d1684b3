"""What an execution left behind, and two that should have been one."""

from collections.abc import Mapping
from dataclasses import dataclass

from kinst.verify.laboratory.memory_map import PAGE

ChangedPages = dict[int, bytes]  # pages that are not what they were


@dataclass(frozen=True)
class Outcome:
    """What an execution left behind."""

    registers: Mapping[str, int]
    vectors: tuple[int, ...]
    memory: ChangedPages
    pc: int
    fault: str


@dataclass(frozen=True)
class Mismatch:
    """Two outcomes that should have been one.

    :param state: the number of the random state.
    :param how: what was compared with the execution in place.
    """

    code: bytes
    address: int
    state: int
    verdict: str
    in_place: Outcome
    displaced: Outcome
    how: str = "displaced"

    def differences(self) -> list[str]:
        """One line for everything that differs, in place first."""
        lines = []
        one, two, how = self.in_place, self.displaced, self.how
        for name, value in one.registers.items():
            if value != two.registers.get(name, value):
                lines.append(f"{name}: {value:#x} in place, {two.registers[name]:#x} {how}")
        for i, (a, b) in enumerate(zip(one.vectors, two.vectors, strict=False)):
            if a != b:
                lines.append(f"vector register {i}: {a:#x} in place, {b:#x} {how}")
        for page in sorted(one.memory.keys() | two.memory.keys() if two.registers else ()):
            x, y = one.memory.get(page), two.memory.get(page)
            if x != y:
                at = next((i for i in range(0, PAGE, 8)
                           if x is None or y is None or x[i : i + 8] != y[i : i + 8]), 0)
                lines.append(f"memory at {page + at:#x}: {_word(x, at)} in place, "
                             f"{_word(y, at)} {how}")
        if one.pc != two.pc:
            lines.append(f"next pc: {one.pc:#x} in place, {two.pc:#x} {how}")
        if one.fault != two.fault:
            lines.append(f"fault: {one.fault or 'none'} in place, {two.fault or 'none'} {how}")
        return lines


def _word(page: bytes | None, at: int) -> str:
    return "not written" if page is None else page[at : at + 8].hex(" ")
