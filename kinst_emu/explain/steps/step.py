"""Steps of an explanation, which consist of paragraphs and tables of values."""

from dataclasses import dataclass
from functools import cached_property


class Count(int):
    """A number that is shown in decimal, unlike registers, addresses and memory words."""


Value = str | int | bytes  # values of type bytes are machine code


def shown(value: Value) -> str:
    """Format a value: code byte by byte, memory words and addresses in hexadecimal."""
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
    """A table of values with column headings.

    :param heads: the column headings.
    :param values: the rows, with one value for each heading.
    :param marked: numbers of the rows that are highlighted, such as those that changed.
    """

    heads: tuple[str, ...]
    values: tuple[tuple[Value, ...], ...]
    marked: frozenset[int] = frozenset()

    @cached_property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """Rows of the table, with all values formatted as text."""
        return tuple(tuple(map(shown, row)) for row in self.values)


@dataclass(frozen=True)
class Step:
    """One step of an explanation.

    :param name: one word by which the step is chosen.
    :param row: number of the recorded row at which the machine is.
    :param handles: number of the trap frame whose handler is running; None if an instruction of the
        kernel is about to be executed.
    :param wrong: whether the step is about the firing with the deliberate mistake.
    """

    name: str
    title: str
    parts: tuple[str | Table, ...]
    row: int = 0
    handles: int | None = None
    wrong: bool = False
