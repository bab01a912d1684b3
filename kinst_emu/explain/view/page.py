"""HTML pages of explanations: single files without external resources, usable without scripts."""

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
SPEEDS = (1, 2, 4, 8, 16)  # selectable speeds in moments per second
# width of a character in a table and gap between columns, in CSS pixels
LETTER, GAP = 7.9, 9.6
# (label, part) pairs; the label of a paragraph is empty
Parts = list[tuple[str, str | Table]]


@dataclass(frozen=True)
class StepSection:
    """Section of a page that shows one step.

    :param parts: paragraphs and tables of the step.
    :param beside: for explanations side by side, the name of each column and its parts, or None if
        the column lacks this step.
    :param picture: SVG of the step's moment; empty if the step has no picture.
    :param pictures: SVG for each column, by the name of the column.
    :param terms: terms that this step is the first to use, with their definitions.
    :param needs: width in pixels that the tables need in a column.
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
    """Return the HTML page of one explanation.

    :param about: a sentence below the title.
    :param pictures: SVG pictures, by the name of the step.
    :param showing: the animated pictures, or None for a page without animation.
    :param moving: title of the animation.
    """
    sections = [StepSection(step.name, step.title, _parts(step, step.title), [],
                            picture=pictures.get(step.name, ""), terms=terms)
                for step, terms in zip(steps, first_terms(steps), strict=True)]
    return filled(TEMPLATE, title, about, sections=sections, columns=0,
                  **movable(showing, moving))


def movable(showing: Showing | None, moving: str, views: Mapping[str, Sequence[str]] = VIEWS
            ) -> dict[str, object]:
    """Return the template variables for playing an animation.

    The data of the animation is JSON that can be embedded in HTML, since it contains no ``<``. For
    the parameters, see ``page_beside``.
    """
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
    """Return an HTML page that shows several explanations, with a column for each architecture.

    :param pictures: SVG pictures, by the name of the step, then by the name of the column.
    :param showing: the animated pictures, or None for a page without animation.
    :param views: the panes that a picture shows at a time, by name of the view; empty for all.
    :param moving: title of the animation.
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
    """Return (label, part) for each part of a step; the labels of several tables are numbered."""
    tables = [part for part in step.parts if isinstance(part, Table)]
    labels = iter([title] if len(tables) == 1 else
                  [f"{title}, table {number}" for number in range(1, len(tables) + 1)])
    return [(next(labels) if isinstance(part, Table) else "", part) for part in step.parts]


def _needs(table: Table) -> int:
    """Return the minimum width in pixels at which a table fits without breaking a word."""
    rows = [table.heads, *table.rows]
    words = [max((len(word) for row in rows for word in row[column].split()), default=0)
             for column in range(len(table.heads))]
    return round(sum(words) * LETTER + len(words) * GAP)
