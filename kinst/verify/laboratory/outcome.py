"""Outcome of an execution, and mismatch between two outcomes."""

from collections.abc import Mapping
from dataclasses import dataclass

from kinst.verify.laboratory.memory_map import PAGE

ChangedPages = dict[int, bytes]  # changed pages by address


@dataclass(frozen=True)
class Outcome:
    """Registers, changed memory, next pc and fault after an execution."""

    registers: Mapping[str, int]
    vectors: tuple[int, ...]
    memory: ChangedPages
    pc: int
    fault: str


@dataclass(frozen=True)
class Mismatch:
    """Two different outcomes that should be equal.

    :param state: number of the random state.
    :param how: way of execution that was compared with the execution in place.
    """

    code: bytes
    address: int
    state: int
    verdict: str
    in_place: Outcome
    displaced: Outcome
    how: str = "displaced"

    def differences(self) -> list[str]:
        """Return a line for each difference; each line shows the value in place first."""
        lines = []
        first, second, how = self.in_place, self.displaced, self.how
        for name, value in first.registers.items():
            if value != second.registers.get(name, value):
                lines.append(f"{name}: {value:#x} in place, {second.registers[name]:#x} {how}")
        for i, (a, b) in enumerate(zip(first.vectors, second.vectors, strict=False)):
            if a != b:
                lines.append(f"vector register {i}: {a:#x} in place, {b:#x} {how}")
        for page in sorted(first.memory.keys() | second.memory.keys() if second.registers else ()):
            x, y = first.memory.get(page), second.memory.get(page)
            if x != y:
                offset = next((i for i in range(0, PAGE, 8)
                               if x is None or y is None or x[i : i + 8] != y[i : i + 8]), 0)
                lines.append(f"memory at {page + offset:#x}: {_word(x, offset)} in place, "
                             f"{_word(y, offset)} {how}")
        if first.pc != second.pc:
            lines.append(f"next pc: {first.pc:#x} in place, {second.pc:#x} {how}")
        if first.fault != second.fault:
            lines.append(f"fault: {first.fault or 'none'} in place, {second.fault or 'none'} {how}")
        return lines


def _word(page: bytes | None, at: int) -> str:
    return "not written" if page is None else page[at : at + 8].hex(" ")
