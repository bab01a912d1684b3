"""Runs in an order, as moments that can be drawn: a lane for each run, and what they share."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from emu.host.templates import templates
from kinst_emu.explain.steps.steps import Step
from kinst_emu.explain.view.drawing import MARGIN, NO_XML, Pane

TEMPLATE = "lanes.svg"
TOP, LANES, HEIGHT, LINE = 64, 560, 560, 16  # LANES: how wide all are
SHARED = 240
LETTER = 7.9  # pixels of one
MOST_LINES, MOST_SHARED = 3, 14  # of a row, of what is shared
ROWS = 10  # that are seen
PITCH = MOST_LINES * LINE - 6
BEGIN, END = "begin", "end"  # names of steps


@dataclass(frozen=True)
class LaneRow:
    """What a run does.

    :param said: in lines.
    :param shared: what is otherwise from now on of what the runs share: names and values.
    """

    run: int
    said: tuple[str, ...]
    shared: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class LanesDrawing:
    """:param rows: those that are seen: None, where there is none; ``here``, which is the last.
    :param shared: name, value, whether it has just changed.
    """

    number: int
    count: int
    title: str
    about: str
    rows: tuple[LaneRow | None, ...]
    here: int
    shared: tuple[tuple[str, str, bool], ...]
    arrow: str
    tip: str
    about_pane: str


class LanePictures:
    """All pictures of an order.

    :param runs: their names.
    :param outcome: what came of it.
    """

    def __init__(self, runs: Sequence[str], rows: Sequence[LaneRow], outcome: str) -> None:
        self._runs = runs
        self._width = (LANES - MARGIN * (len(runs) - 1)) // len(runs)
        self._letters = int((self._width - 16) / LETTER)
        end = LaneRow(rows[-1].run if rows else 0, (outcome,))
        self.moments = [self._wrapped(row) for row in (*rows, end)]
        self._outcome = outcome
        self.steps: list[tuple[int, Step]] = [
            (0, Step(BEGIN, "The runs begin", ())),
            (len(self.moments) - 1, Step(END, "What comes of it", ()))]
        self._names = list(dict.fromkeys(name for row in rows for name, _value in row.shared))
        self._names = self._names[-MOST_SHARED:]

    def _wrapped(self, row: LaneRow) -> LaneRow:
        lines = (textwrap.wrap(row.said[0], self._letters) if len(row.said) == 1 else
                 [_cut(said, self._letters) for said in row.said])
        if len(lines) > MOST_LINES:
            more = len(lines) - MOST_LINES + 1
            lines = [*lines[: MOST_LINES - 1], f"({more} more)" if len(row.said) > 1 else
                     lines[MOST_LINES - 1] + "\N{HORIZONTAL ELLIPSIS}"]
        return LaneRow(row.run, (*lines, *[""] * (MOST_LINES - len(lines))), row.shared)

    def svg(self, number: int, step: str = "", styled: bool = True, every: bool = False) -> str:
        """As ``kinst_emu.explain.view.drawing.Pictures.svg``; a step has nothing of its own."""
        panes = {f"lane{n}": Pane(MARGIN + n * (self._width + MARGIN), TOP, self._width,
                                  HEIGHT - TOP - MARGIN) for n in range(len(self._runs))}
        panes["shared"] = Pane(MARGIN * 2 + LANES, TOP, SHARED, HEIGHT - TOP - MARGIN)
        return NO_XML.sub("\N{REPLACEMENT CHARACTER}", templates("kinst_emu").get_template(
            TEMPLATE).render(
            d=self.drawing(number, step, panes), runs=self._runs, panes=panes, box="", bare=False,
            width=MARGIN * 3 + LANES + SHARED, height=HEIGHT, margin=MARGIN, line=LINE,
            pitch=PITCH, letters=self._letters, shared_letters=int(SHARED / LETTER) - 3,
            styled=styled, every=every))

    def drawing(self, number: int, step: str, panes: dict[str, Pane]) -> LanesDrawing:
        first = max(0, number - ROWS + 1)
        seen = self.moments[first : number + 1]
        values = dict[str, str]()
        for row in self.moments[: number + 1]:
            values |= dict(row.shared)
        now, before = self.moments[number], self.moments[max(0, number - 1)]
        changed = {name for name, _value in now.shared}
        arrow = tip = ""
        if now.run != before.run:  # where the other one goes on
            at = [panes[f"lane{one.run}"] for one in (before, now)]
            y = TOP + 46 + (len(seen) - 1) * PITCH
            right = now.run > before.run
            x1, x2 = ((at[0].x + at[0].width - 24, at[1].x + 6) if right
                      else (at[0].x + 6, at[1].x + at[1].width - 6))
            arrow = f"M{x1} {y - PITCH}C{x1} {y} {x1} {y} {x2} {y}"
            tip = f"M{x2} {y}l{-9 if right else 9} -5v10z"
        last = number == len(self.moments) - 1
        what = (f"What comes of it: {self._outcome}" if last else
                f"{self._runs[now.run]}: {', '.join(line for line in now.said if line)}")
        return LanesDrawing(
            number, len(self.moments), what,
            f"{number + 1} of {len(self.moments)}: {what}.",
            (*seen, *[None] * (ROWS - len(seen))), len(seen) - 1,
            tuple((name, values.get(name, ""), name in changed) for name in self._names),
            arrow, tip, f"lane{now.run}")


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: letters - 1] + "\N{HORIZONTAL ELLIPSIS}"
