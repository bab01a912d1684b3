"""Scenes of runs under a schedule: a lane for each run, and a pane of shared memory."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from kinst_emu.explain.steps.step import Step
from kinst_emu.explain.view.layout import MARGIN, TOP, Band, Column, Frame, Grid, Layout
from kinst_emu.explain.view.pictures import Pictures
from kinst_emu.explain.view.scene import Anchor, Arrow, Pane, Row, Scene, Scenes

LANES, HEIGHT, LINE = 560, 560, 16  # LANES is the total width of all lanes, in pixels
SHARED = 240  # width of the pane of shared memory, in pixels
LETTER = 7.9  # width of a character in pixels
# maximum numbers of lines in a row, of shared values shown, and of characters in a title
MOST_LINES, MOST_SHARED, MOST_TITLE = 3, 14, 58
ROWS = 10  # maximum number of rows visible at a time
PITCH = MOST_LINES * LINE - 6
# distances in pixels between the lines of a row, and between shared values
BETWEEN, SHARED_PITCH = 13, 34
BEGIN, END = "begin", "end"  # names of the steps


@dataclass(frozen=True)
class LaneRow:
    """An action of a run, shown as a row in the run's lane.

    :param said: lines that describe the action.
    :param shared: names and new values of the shared memory that changes.
    """

    run: int
    said: tuple[str, ...]
    shared: tuple[tuple[str, str], ...] = ()


class LaneScenes(Scenes[LaneRow]):
    """Scenes of several runs that execute under a schedule.

    :param runs: names of the runs.
    :param outcome: outcome of the schedule, in words.
    """

    def __init__(self, runs: Sequence[str], rows: Sequence[LaneRow], outcome: str) -> None:
        self._runs = runs
        self._letters = int((lane_width(len(runs)) - 16) / LETTER)
        end = LaneRow(rows[-1].run if rows else 0, (outcome,))
        self.moments = [self._wrapped(row) for row in (*rows, end)]
        self._outcome = outcome
        self.steps = [(0, Step(BEGIN, "The runs begin", ())),
                      (len(self.moments) - 1, Step(END, "Outcome", ()))]
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

    def scene(self, number: int, step: str = "") -> Scene:
        """Return the scene of a moment; ``step`` is ignored."""
        first = max(0, number - ROWS + 1)
        seen = self.moments[first : number + 1]
        values = dict[str, str]()
        for row in self.moments[: number + 1]:
            values |= dict(row.shared)
        now, before = self.moments[number], self.moments[max(0, number - 1)]
        changed = {name for name, _value in now.shared}
        letters = int(SHARED / LETTER) - 3
        what = (f"Outcome: {self._outcome}" if number == len(self.moments) - 1 else
                f"{self._runs[now.run]}: {', '.join(line for line in now.said if line)}")
        panes = {f"lane{run}": Pane(name[: self._letters], {"rows": [
            Row(row.said, ("here",) if row is seen[-1] else ()) if row.run == run else None
            for row in seen]}) for run, name in enumerate(self._runs)}
        panes["shared"] = Pane("Shared memory", {"values": [
            Row((name[:letters], values.get(name, "")[:letters]),
                ("changed",) if name in changed else ()) for name in self._names]})
        return Scene(
            number, what, f"{number + 1} of {len(self.moments)}",
            f"{number + 1} of {len(self.moments)}: {what}.", panes,
            [] if now.run == before.run else [Arrow(  # an arrow to the run that continues
                "control", Anchor(f"lane{before.run}"),
                Anchor(f"lane{now.run}", "rows", len(seen) - 1))], f"lane{now.run}")


class LaneLayout(Layout):
    """Layout whose arrows lead from a row of one lane to the next row of another lane."""

    def path(self, arrow: Arrow) -> tuple[str, str]:
        """Return the curve and the head of an arrow as SVG path data."""
        begin, end = (self.frames[anchor.pane] for anchor in (arrow.begin, arrow.end))
        assert arrow.end.row is not None
        y = TOP + 46 + arrow.end.row * PITCH
        right = end.x > begin.x
        x1, x2 = ((begin.x + begin.width - 24, end.x + 6) if right
                  else (begin.x + 6, end.x + end.width - 6))
        return (f"M{x1} {y - PITCH}C{x1} {y} {x1} {y} {x2} {y}",
                f"M{x2} {y}l{-9 if right else 9} -5v10z")


def lane_pictures(runs: Sequence[str], rows: Sequence[LaneRow], outcome: str) -> Pictures[LaneRow]:
    """Return the pictures of runs under a schedule; for the parameters, see ``LaneScenes``."""
    scenes = LaneScenes(runs, rows, outcome)
    width = lane_width(len(runs))
    lane = Grid("code", tuple(Column(10, dy=n * BETWEEN) for n in range(MOST_LINES)), y=41,
                pitch=PITCH, rows=ROWS, band=Band(4, -12, width - 8, PITCH))
    frames = {f"lane{n}": Frame(MARGIN + n * (width + MARGIN), TOP, width, HEIGHT - TOP - MARGIN,
                                {"rows": lane}) for n in range(len(runs))}
    frames["shared"] = Frame(MARGIN * 2 + LANES, TOP, SHARED, HEIGHT - TOP - MARGIN, {
        "values": Grid("register", (Column(10), Column(22, dy=15)), y=41, pitch=SHARED_PITCH,
                       band=Band(4, -13, SHARED - 8, SHARED_PITCH - 1, ("changed",)))})
    return Pictures(scenes, LaneLayout("picture lanes", MARGIN * 3 + LANES + SHARED, HEIGHT,
                                       frames, MOST_TITLE))


def lane_width(runs: int) -> int:
    """Return the width of each lane in pixels, for a given number of runs."""
    return (LANES - MARGIN * (runs - 1)) // runs


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: letters - 1] + "\N{HORIZONTAL ELLIPSIS}"
