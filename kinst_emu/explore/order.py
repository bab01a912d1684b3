"""The order in which several runs are executed, as a short text: ``A120 B A`` has A execute 120
instructions, then B go on to its end, then A."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from emu.host.errors import KinstError

TURN = re.compile(r"([A-H])([0-9]{1,12})?")
MAX_TURNS = 1000
MAX_TEXT = 16_000
MAX_TITLE = 400  # characters of the runs, and of their order
LETTERS = "ABCDEFGH"


@dataclass(frozen=True)
class OrderTurn:
    """:param run: its number, from 0.
    :param count: instructions that the machine executes before it is the next one's turn; None: the
        run goes on to its end.
    """

    run: int
    count: int | None = None

    def __str__(self) -> str:
        return f"{LETTERS[self.run]}{'' if self.count is None else self.count}"


Order = tuple[OrderTurn, ...]


def order_text(order: Sequence[OrderTurn]) -> str:
    return " ".join(map(str, order))


def order_title(runs: Sequence[str], order: Sequence[OrderTurn]) -> str:
    """What a recording of the order, and a page of it, say that it is."""
    return f"{' | '.join(runs)[:MAX_TITLE]} by '{order_text(order)[:MAX_TITLE]}'"


def read_order(text: str, runs: int) -> Order:
    """:param runs: how many there are.
    :raises KinstError: when the text is none, naming the place.
    """
    if len(text) > MAX_TEXT:
        raise KinstError(f"--schedule: has more than {MAX_TEXT} characters")
    found = []
    for number, word in enumerate(text.split(), 1):
        match = TURN.fullmatch(word)
        if match is None:
            raise KinstError(f"--schedule: turn {number}, {word[:20]!r}, is no letter of a run "
                             "with a count of instructions: give some like 'A120 B A'")
        run = LETTERS.index(match[1])
        if run >= runs:
            raise KinstError(f"--schedule: turn {number} is of run {match[1]}, and the last is "
                             f"{LETTERS[runs - 1]}")
        found.append(OrderTurn(run, None if match[2] is None else int(match[2])))
    if not found:
        raise KinstError("--schedule: is empty; give turns, like 'A120 B A'")
    if len(found) > MAX_TURNS:
        raise KinstError(f"--schedule: has {len(found)} turns; {MAX_TURNS} are possible")
    return tuple(found)
