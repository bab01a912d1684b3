"""Steps as a page: one file, nothing from elsewhere, readable without scripts, which step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from kinst_emu.explain.beside import Beside
from kinst_emu.explain.steps import Step, Table
from kinst_emu.page_file import page as filled

TEMPLATE = "explanation.html"
LETTER, GAP = 7.9, 9.6  # pixels in the style: a letter of a table, between two of its columns
Parts = list[tuple[str, str | Table]]  # what it is called, where it is a table; the part


@dataclass(frozen=True)
class StepSection:
    """A step.

    :param parts: what it says.
    :param beside: what it says in each column: the column's name; None, where it has no such step.
    :param picture: of the moment that it is about, as SVG; empty: there is none.
    :param needs: how wide a column must be, pixels, for its tables' words.
    """

    name: str
    title: str
    parts: Parts
    beside: list[tuple[str, Parts | None]]
    needs: int = 0
    picture: str = ""


def page(title: str, about: str, steps: Sequence[Step],
         pictures: Mapping[str, str] = MappingProxyType({})) -> str:
    """:param about: a sentence below the title.
    :param pictures: SVG, by the names of steps.
    """
    sections = [StepSection(step.name, step.title, _parts(step, step.title), [],
                            picture=pictures.get(step.name, "")) for step in steps]
    return filled(TEMPLATE, title, about, sections=sections, columns=0)


def page_beside(title: str, about: str, names: Sequence[str], found: Beside) -> str:
    """Steps in columns, one for each architecture."""
    sections = []
    for step_name, steps in found:
        titles = "; ".join(dict.fromkeys(step.title for step in steps if step is not None))
        sections.append(StepSection(step_name, titles, [], [
            (name, None if step is None else _parts(step, f"{name}: {step.title}"))
            for name, step in zip(names, steps, strict=True)],
            max((_needs(part) for step in steps if step is not None for part in step.parts
                 if isinstance(part, Table)), default=0)))
    return filled(TEMPLATE, title, about, sections=sections, columns=len(names))


def _parts(step: Step, title: str) -> Parts:
    """The parts of a step; several tables of one are called by their number."""
    tables = [part for part in step.parts if isinstance(part, Table)]
    labels = iter([title] if len(tables) == 1 else
                  [f"{title}, table {number}" for number in range(1, len(tables) + 1)])
    return [(next(labels) if isinstance(part, Table) else "", part) for part in step.parts]


def _needs(table: Table) -> int:
    """The least width of a table that no word is broken in."""
    rows = [table.heads, *table.rows]
    words = [max((len(word) for row in rows for word in row[column].split()), default=0)
             for column in range(len(table.heads))]
    return round(sum(words) * LETTER + len(words) * GAP)
