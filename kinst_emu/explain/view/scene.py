"""A moment as data: what every view draws, a terminal, a picture, a page or a film.

A scene says what is to be seen, not where: panes of rows, which row is marked and how, and arrows
from row to row.  Where it goes is a view's (``layout.py`` for pictures).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kinst_emu.explain.steps.step import Step, Value


@dataclass(frozen=True)
class Row:
    """A line of a pane.

    :param cells: a value for each column of its block.
    :param marks: in which ways it is marked: ``here``, ``changed``, ...
    :param data: the same for programs, by name.
    """

    cells: tuple[Value, ...]
    marks: tuple[str, ...] = ()
    data: Mapping[str, str] = field(default_factory=dict)


Rows = Sequence[Row | None]  # None: nothing is there, where another moment has a row


@dataclass(frozen=True)
class Pane:
    """A part of a scene with a title: code, registers, a stack.

    :param head: its title.
    :param blocks: by their names, rows of one kind, from top to bottom.
    """

    head: str
    blocks: Mapping[str, Rows]


@dataclass(frozen=True)
class Anchor:
    """An end of an arrow.

    :param row: the number of a row of the block; None: the pane as a whole.
    """

    pane: str
    block: str = ""
    row: int | None = None


@dataclass(frozen=True)
class Arrow:
    """From one row or pane to another.

    :param kind: ``control``: where control has gone; ``store``: what was stored.
    """

    kind: str
    begin: Anchor
    end: Anchor


@dataclass(frozen=True)
class Scene:
    """One moment.

    :param number: of the moment, from 0.
    :param place: where that is, in a few words.
    :param about: what it shows, in a sentence.
    :param panes: by their names; a view may have room for some of them only.
    :param about_pane: the pane that a step is about; empty: it is not shown for a step.
    :param data: the same for programs, by name.
    """

    number: int
    title: str
    place: str
    about: str
    panes: Mapping[str, Pane]
    arrows: Sequence[Arrow] = ()
    about_pane: str = ""
    data: Mapping[str, str] = field(default_factory=dict)


Moment = TypeVar("Moment")


class Scenes(ABC, Generic[Moment]):
    """All moments of one thing that happened.

    :ivar moments: what was recorded of each.
    :ivar steps: the steps of its explanation, with the numbers of the moments that they are about.
    """

    moments: Sequence[Moment]
    steps: Sequence[tuple[int, Step]]

    @abstractmethod
    def scene(self, number: int, step: str = "") -> Scene:
        """A moment.

        :param step: the name of the step that it is shown for, of those that are about it.
        """

    def step_at(self, number: int, name: str = "") -> tuple[int, Step, bool]:
        """The step that a moment belongs to: the one of that name, or the last that is not behind
        it.

        :return: its number from 1, the step, whether it is about this very moment.
        """
        found = [(at, which, step) for which, (at, step) in enumerate(self.steps, 1)
                 if at <= number]
        at, which, step = max(found, key=lambda one: (
            one[0] == number and one[2].name == name, one[0], one[1]))
        return which, step, at == number

    def title(self, number: int, name: str = "") -> str:
        which, step, here = self.step_at(number, name)
        return f"{'' if here else 'after '}{which}. {step.title}"

    def moment_of(self, name: str) -> int | None:
        """The number of the moment that a step is about; None: there is no such step."""
        return next((at for at, step in self.steps if step.name == name), None)


def register_rows(values: Mapping[str, int], changed: frozenset[str]) -> list[Row]:
    """A row for each register; those that have changed are marked."""
    return [Row((name, value), ("changed",) if name in changed else (),
                {"register": name, "value": f"{value:x}"}) for name, value in values.items()]


def station_rows(stations: Sequence[tuple[str, bool]]) -> list[Row]:
    """The stations of a way, and at which of them control is."""
    return [Row((name,), ("at",) if here else (), {"station": name}) for name, here in stations]


def some(lines: list[str], count: int) -> list[str]:
    """So many; where that is not all, the last says so."""
    return lines if len(lines) <= count else [
        *lines[: count - 1], f"({len(lines) - count + 1} more lines in the text)"]


def text_rows(lines: Sequence[str]) -> list[Row]:
    return [Row((line,)) for line in lines]
