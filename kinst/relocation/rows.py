"""Decoding tables: rows of (mask, value, ...), of which the first matching row applies."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from kinst.relocation.verdict import Copy, Refuse, Verdict

#: (mask, value) of a row -> (mask, value) of earlier rows that match some of the same instructions
Overlaps = dict[tuple[int, int], tuple[tuple[int, int], ...]]
Row = TypeVar("Row", bound=tuple[object, ...])
#: (mask, value, function from code and address to verdict), for 32-bit or 16-bit instructions
VerdictRow = tuple[int, int, Callable[[int, int], Verdict]]


def possible(rows: Iterable[Row], bits: int, value: int) -> tuple[Row, ...]:
    """Return the rows, in order, that can match an instruction whose ``bits`` equal ``value``."""
    return tuple(row for row in rows if not (row[1] ^ value) & row[0] & bits)  # type: ignore[operator]


def signed(value: int, bits: int) -> int:
    """Return the signed value of a two's complement field that is ``bits`` wide."""
    return value - (1 << bits) if value >> bits - 1 & 1 else value


def copy(code: int, pc: int) -> Verdict:
    """Return the verdict on an instruction that works unchanged at any address."""
    return Copy()


def refuse(reason: str) -> Callable[[int, int], Verdict]:
    """Return a function whose verdict on every instruction is a refusal for ``reason``."""
    return lambda code, pc: Refuse(reason)
