"""Steps as a page: one file, nothing from elsewhere, readable without scripts, which step."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from kinst_emu.explain.steps.beside import Beside
from kinst_emu.explain.steps.step import Step, Table
from kinst_emu.explain.steps.terms import first_terms
from kinst_emu.explain.view.film import Showing
from kinst_emu.explain.view.firing_picture import PANES, VIEWS
from kinst_emu.explain.view.layout import box
from kinst_emu.report.page_file import page as filled

TEMPLATE = "explanation.html"
SPEEDS = (1, 2, 4, 8, 16)  # moments a second
LETTER, GAP = 7.9, 9.6  # pixels in the style: a letter of a table, between two of its columns
Parts = list[tuple[str, str | Table]]  # what it is called, where it is a table; the part


@dataclass(frozen=True)
class StepSection:
    """A step.

    :param parts: what it says.
    :param beside: what it says in each column: the column's name; None, where it has no such step.
    :param picture: of the moment that it is about, as SVG; empty: there is none.
    :param pictures: those of the columns, by their names.
    :param terms: that no step before it has used, and what they mean.
    :param needs: how wide a column must be, pixels, for its tables' words.
    """

    name: str
    title: str
    parts: Parts
    beside: list[tuple[str, Parts | None]]
    needs: int = 0
    picture: str = ""
    pictures: Mapping[str, str] = field(default_factory=dict)
    terms: Mapping[str, str] = field(default_factory=dict)


def page(title: str, about: str, steps: Sequence[Step],
         pictures: Mapping[str, str] = MappingProxyType({}), showing: Showing | None = None,
         moving: str = "The firing, instruction by instruction") -> str:
    """:param about: a sentence below the title.
    :param pictures: SVG, by the names of steps.
    :param showing: of all moments; None: nothing moves; ``moving`` what it is of.
    """
    sections = [StepSection(step.name, step.title, _parts(step, step.title), [],
                            picture=pictures.get(step.name, ""), terms=terms)
                for step, terms in zip(steps, first_terms(steps), strict=True)]
    return filled(TEMPLATE, title, about, sections=sections, columns=0,
                  **movable(showing, moving))


def movable(showing: Showing | None, moving: str, views: Mapping[str, Sequence[str]] = VIEWS
            ) -> dict[str, object]:
    """What a page needs to play; its data is JSON that can stand in it: no element begins or ends
    in it.  Parameters as ``page_beside`` has them."""
    if showing is None:
        return {"showing": None}
    data = {**showing.for_script(), "names": list(showing.films),
            "views": {view: box(PANES, *panes) for view, panes in views.items()}}
    return {"showing": showing, "several": len(showing.films) > 1, "speeds": SPEEDS,
            "moving": moving, "views": views,
            "data": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")}


def page_beside(title: str, about: str, names: Sequence[str], found: Beside,
                pictures: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
                showing: Showing | None = None, views: Mapping[str, Sequence[str]] = VIEWS,
                moving: str = "The firings, instruction by instruction") -> str:
    """Steps in columns, one for each architecture.

    :param pictures: SVG, by the names of steps, then by those of the columns.
    :param showing: of all moments; None: nothing moves; ``moving`` what it is of.
    :param views: panes that are to be seen of a picture at a time; empty: all.
    """
    sections = []
    for step_name, steps in found:
        titles = "; ".join(dict.fromkeys(step.title for step in steps if step is not None))
        sections.append(StepSection(step_name, titles, [], [
            (name, None if step is None else _parts(step, f"{name}: {step.title}"))
            for name, step in zip(names, steps, strict=True)],
            max((_needs(part) for step in steps if step is not None for part in step.parts
                 if isinstance(part, Table)), default=0), pictures=pictures.get(step_name, {})))
    return filled(TEMPLATE, title, about, sections=sections, columns=len(names),
                  **movable(showing, moving, views))


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
