"""A step of an explanation: paragraphs, and tables of values."""

from dataclasses import dataclass
from functools import cached_property


class Count(int):
    """A number that is counted; others are registers, addresses or words."""


Value = str | int | bytes  # bytes are code


def shown(value: Value) -> str:
    """A value as text: code byte by byte, words and addresses in hexadecimal."""
    match value:
        case str():
            return value
        case bytes():
            return value.hex(" ")
        case Count():
            return str(int(value))
        case _:
            return f"{value:#x}"


@dataclass(frozen=True)
class Table:
    """Rows of values below their heads.

    :param values: of its rows, a value for each head.
    :param marked: numbers of the rows that the text is about: what has changed.
    """

    heads: tuple[str, ...]
    values: tuple[tuple[Value, ...], ...]
    marked: frozenset[int] = frozenset()

    @cached_property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """The values as text."""
        return tuple(tuple(map(shown, row)) for row in self.values)


@dataclass(frozen=True)
class Step:
    """One step of an explanation.

    :param name: one word, to go to it by.
    :param row: the number of the recorded row that the machine is at then.
    :param handles: the number of the trap frame whose handler has been called then; None: an
        instruction of the kernel is about to be executed.
    :param wrong: whether it is the firing that was done wrong.
    """

    name: str
    title: str
    parts: tuple[str | Table, ...]
    row: int = 0
    handles: int | None = None
    wrong: bool = False
