"""Tables of instructions: rows of (mask, value, ...), of which the first that fits counts."""

from collections.abc import Iterable
from typing import TypeVar

#: (mask, value) of a row -> those of earlier rows that take some of what it would
Overlaps = dict[tuple[int, int], tuple[tuple[int, int], ...]]
Row = TypeVar("Row", bound=tuple[object, ...])


def possible(rows: Iterable[Row], bits: int, value: int) -> tuple[Row, ...]:
    """The rows that an instruction can fit whose ``bits`` are ``value``, in their order."""
    return tuple(row for row in rows if not (row[1] ^ value) & row[0] & bits)  # type: ignore[operator]
