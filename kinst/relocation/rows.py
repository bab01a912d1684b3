"""Tables of instructions: rows of (mask, value, ...), of which the first that fits counts."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from kinst.relocation.verdict import Copy, Refuse, Verdict

#: (mask, value) of a row -> those of earlier rows that take some of what it would
Overlaps = dict[tuple[int, int], tuple[tuple[int, int], ...]]
Row = TypeVar("Row", bound=tuple[object, ...])
#: (mask, value, what gives the verdict of a code at an address) of a 32- or 16-bit instruction
VerdictRow = tuple[int, int, Callable[[int, int], Verdict]]


def possible(rows: Iterable[Row], bits: int, value: int) -> tuple[Row, ...]:
    """The rows that an instruction can fit whose ``bits`` are ``value``, in their order."""
    return tuple(row for row in rows if not (row[1] ^ value) & row[0] & bits)  # type: ignore[operator]


def signed(value: int, bits: int) -> int:
    """A field of so many bits in two's complement."""
    return value - (1 << bits) if value >> bits - 1 & 1 else value


def copy(code: int, pc: int) -> Verdict:
    """For a row of what does the same anywhere."""
    return Copy()


def refuse(reason: str) -> Callable[[int, int], Verdict]:
    """For a row of what cannot be probed."""
    return lambda code, pc: Refuse(reason)
