"""Schedules of several runs, and their form as short texts.

For example, ``A120 B A`` lets A execute 120 instructions, then B run to its end, then A.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from emu.host.errors import KinstError

TURN = re.compile(r"([A-H])([0-9]{1,12})?")
MAX_TURNS = 1000
MAX_TEXT = 16_000
MAX_TITLE = 400  # maximum number of characters in each part of a title
LETTERS = "ABCDEFGH"


@dataclass(frozen=True)
class ScheduleTurn:
    """Part of a schedule in which one run executes.

    :param run: number of the run, from 0.
    :param count: number of instructions before the next turn, or None to run to the end.
    """

    run: int
    count: int | None = None

    def __str__(self) -> str:
        return f"{LETTERS[self.run]}{'' if self.count is None else self.count}"


Schedule = tuple[ScheduleTurn, ...]


def schedule_text(schedule: Sequence[ScheduleTurn]) -> str:
    """Return the text of a schedule, e.g. ``A120 B A``."""
    return " ".join(map(str, schedule))


def schedule_title(runs: Sequence[str], schedule: Sequence[ScheduleTurn]) -> str:
    """Return the title of a schedule for recordings and pages."""
    return f"{' | '.join(runs)[:MAX_TITLE]} by '{schedule_text(schedule)[:MAX_TITLE]}'"


def read_schedule(text: str, runs: int) -> Schedule:
    """Parse the text of a schedule.

    :param runs: number of runs.
    :raises KinstError: invalid text; the message names the turn.
    """
    if len(text) > MAX_TEXT:
        raise KinstError(f"--schedule: longer than {MAX_TEXT} characters")
    turns = []
    for number, word in enumerate(text.split(), 1):
        match = TURN.fullmatch(word)
        if match is None:
            raise KinstError(f"--schedule: turn {number}, {word[:20]!r}: must be the letter of a "
                             "run and an optional number of instructions, as in 'A120 B A'")
        run = LETTERS.index(match[1])
        if run >= runs:
            raise KinstError(f"--schedule: turn {number} is for run {match[1]}, but the last run "
                             f"is {LETTERS[runs - 1]}")
        turns.append(ScheduleTurn(run, None if match[2] is None else int(match[2])))
    if not turns:
        raise KinstError("--schedule: is empty; give turns, e.g. 'A120 B A'")
    if len(turns) > MAX_TURNS:
        raise KinstError(f"--schedule: {len(turns)} turns; at most {MAX_TURNS} are allowed")
    return tuple(turns)
