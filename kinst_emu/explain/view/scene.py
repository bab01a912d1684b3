"""Scenes: moments as data that is drawn in a terminal, in a picture or on a page.

A scene has panes of rows with marks, and arrows between rows. Positions are up to the view
(``layout.py`` for pictures).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kinst_emu.explain.steps.step import Step, Value


@dataclass(frozen=True)
class Row:
    """A line of a pane.

    :param cells: a value for each column of the block.
    :param marks: how the row is marked: ``here``, ``changed``, ...
    :param data: the content for programs, by attribute name.
    """

    cells: tuple[Value, ...]
    marks: tuple[str, ...] = ()
    data: Mapping[str, str] = field(default_factory=dict)


# None is an empty line, in the place of a row that only other moments have
Rows = Sequence[Row | None]


@dataclass(frozen=True)
class Pane:
    """A titled part of a scene, such as code, registers or a stack.

    :param head: the title.
    :param blocks: rows of one kind from top to bottom, by the name of the block.
    """

    head: str
    blocks: Mapping[str, Rows]


@dataclass(frozen=True)
class Anchor:
    """Point at which an arrow starts or ends: a row of a pane, or a whole pane.

    :param row: number of a row in the block, or None for the pane as a whole.
    """

    pane: str
    block: str = ""
    row: int | None = None


@dataclass(frozen=True)
class Arrow:
    """An arrow from one row or pane to another.

    :param kind: ``control`` for a transfer of control, ``store`` for a store to memory.
    """

    kind: str
    begin: Anchor
    end: Anchor


@dataclass(frozen=True)
class Scene:
    """One moment as data: panes, arrows and descriptions.

    :param number: number of the moment, from 0.
    :param place: where the machine is, in a few words.
    :param about: description of the moment, in a sentence.
    :param panes: the panes by name; a view may draw only some of them.
    :param about_pane: the pane that the step is about; empty: the scene is not drawn for a step.
    :param data: the content for programs, by attribute name.
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
    """Scenes of all moments of an explanation.

    :ivar moments: the recorded moments.
    :ivar steps: the steps of the explanation, each with the number of its moment.
    """

    moments: Sequence[Moment]
    steps: Sequence[tuple[int, Step]]

    @abstractmethod
    def scene(self, number: int, step: str = "") -> Scene:
        """Return the scene of a moment.

        :param step: name of the step for which the moment is drawn, if it has several steps.
        """

    def step_at(self, number: int, name: str = "") -> tuple[int, Step, bool]:
        """Return a moment's step as (number from 1, step, whether the step begins at this moment).

        The result is the named step if it belongs to the moment, and otherwise the last step up to
        the moment.
        """
        reached = [(at, position, step) for position, (at, step) in enumerate(self.steps, 1)
                   if at <= number]
        at, position, step = max(reached, key=lambda one: (
            one[0] == number and one[2].name == name, one[0], one[1]))
        return position, step, at == number

    def title(self, number: int, name: str = "") -> str:
        """Return the title of a moment's step, preceded by "after" if the step began earlier."""
        which, step, here = self.step_at(number, name)
        return f"{'' if here else 'after '}{which}. {step.title}"

    def moment_of(self, name: str) -> int | None:
        """Return the number of the moment at which a step begins, or None for an unknown step."""
        return next((at for at, step in self.steps if step.name == name), None)


def register_rows(values: Mapping[str, int], changed: frozenset[str]) -> list[Row]:
    """Return a row for each register, with marks on the registers that changed."""
    return [Row((name, value), ("changed",) if name in changed else (),
                {"register": name, "value": f"{value:x}"}) for name, value in values.items()]


def station_rows(stations: Sequence[tuple[str, bool]]) -> list[Row]:
    """Return a row for each part of the path, with a mark on the current part."""
    return [Row((name,), ("at",) if here else (), {"station": name}) for name, here in stations]


def some(lines: list[str], count: int) -> list[str]:
    """Return at most ``count`` lines; the last line gives the number of omitted lines, if any."""
    return lines if len(lines) <= count else [
        *lines[: count - 1], f"({len(lines) - count + 1} more lines in the text)"]


def text_rows(lines: Sequence[str]) -> list[Row]:
    """Return a row for each line of text."""
    return [Row((line,)) for line in lines]
