"""Two paths side by side as an HTML page."""

from collections.abc import Sequence
from dataclasses import dataclass

from dtrace.debug.source_text import SourceText
from dtrace.flow.path_difference import Comparison, Match
from kinst_emu.path.against import (
    RETURNS,
    SIGNS,
    Parted,
    Side,
    grouped,
    line_text,
    parted,
    values_of,
)
from kinst_emu.report.page_file import page as filled
from kinst_emu.report.time_units import exact
from kinst_emu.why.explainer import Place as Executed
from kinst_emu.why.page import source_around

MAX_ROWS = 5000  # maximum number of calls in a page
WORDS = {Match.SAME: "same", Match.DIFFERENT: "differs", Match.FIRST: "first only",
         Match.SECOND: "second only"}
Source = tuple[tuple[int, str, bool], ...]


@dataclass(frozen=True)
class Way:
    """How one of the paths goes on where they part.

    :param values: what its branch compared.
    :param goes: where it goes on.
    :param source: the source there, as ``source_around`` returns it; empty if it is that of the
        branch.
    """

    sign: str
    values: tuple[str, ...]
    goes: str
    source: Source
    count: int | None


@dataclass(frozen=True)
class Place:
    """A place at which the paths part.

    :param where: the branch; empty if none is known.
    """

    function: str
    where: str
    instruction: str
    source: Source
    ways: tuple[Way, ...]


@dataclass(frozen=True)
class Row:
    """A call, or several consecutive ones that are the same.

    :param times: virtual time in each path in ns; empty where the path does not have it.
    """

    sign: str
    word: str
    name: str
    depth: int
    times: tuple[str, str]
    count: int


def page(sides: tuple[Side, Side], comparison: Comparison, text: SourceText | None) -> str:
    """Return the page of a comparison."""
    found = parted(sides, comparison.splits)
    rows = _rows(sides, comparison)
    notes = [] if len(rows) <= MAX_ROWS else [
        f"The page has the first {MAX_ROWS:,} of {len(rows):,} calls."]
    left = len(comparison.splits) - len(found)
    titles = [f"{side.window.title}: {len(side.path.pcs):,} instructions, "
              f"{exact(side.path.time(len(side.path.pcs)) - side.path.time(0))}"
              for side in sides]
    return filled("against.html", "Two paths", f"- {titles[0]}. + {titles[1]}.", notes=notes,
                  places=[_place(one, text) for one in found], left=left, rows=rows[:MAX_ROWS])


def _place(one: Parted, text: SourceText | None) -> Place:
    branch = one.branch[0] or one.branch[1]
    source = () if branch is None else source_around(branch.branch, text)

    def at(to: Executed | None) -> Source:
        found = () if to is None else source_around(to, text)
        return () if found == source else found

    ways = tuple(
        Way(sign, tuple(values), RETURNS if to is None else f"goes on {line_text(to)}", at(to),
            None if to is None else to.count)
        for sign, values, to in zip("-+", values_of(one), one.to, strict=True))
    if branch is None:
        return Place(one.function, "", "", (), ways)
    return Place(one.function, line_text(branch.branch), branch.branch.instruction, source, ways)


def _rows(sides: tuple[Side, Side], comparison: Comparison) -> Sequence[Row]:
    rows = list[Row]()
    for call, count in grouped(comparison.calls, None):
        first, second = (side.time(frame) for side, frame in zip(sides, call.frames, strict=True))
        rows.append(Row(SIGNS[call.match], WORDS[call.match], call.name,
                        call.depth, ("" if first is None else str(first),
                                     "" if second is None else str(second)), count))
    return rows
