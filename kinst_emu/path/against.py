"""Two paths side by side: where they part and why, and which calls are in one of them only."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from dtrace.flow.path_difference import Comparison, Match, MatchedCall, Split
from dtrace.flow.thread_path import ThreadPath
from kinst_emu.path.window import Window
from kinst_emu.why.explainer import Explainer, Place, Reason
from kinst_emu.why.text import compared_text

MOST_SPLITS = 12  # maximum number of places at which the paths part in an answer
SIGNS = {Match.SAME: " ", Match.DIFFERENT: "~", Match.FIRST: "-", Match.SECOND: "+"}
RETURNS = "returns"


@dataclass(frozen=True)
class Side:
    """One of the two paths.

    :param thread: name of its thread.
    :param explainer: of its recording.
    """

    path: ThreadPath
    window: Window
    thread: str
    explainer: Explainer

    def time(self, frame: int | None) -> int | None:
        """Return the virtual time of a call in ns, or None if the path does not have it."""
        if frame is None:
            return None
        if not self.path.frames:
            return self.path.time(len(self.path.pcs)) - self.path.time(0)
        row = self.path.frames[frame]
        return self.path.time(row.end) - self.path.time(row.begin)


@dataclass(frozen=True)
class Parted:
    """Where calls of a function part.

    :param branch: the last branch before that in each path; None if none is known.
    :param to: the instruction that each path executes next; None if the call returns.
    """

    function: str
    branch: tuple[Reason | None, Reason | None]
    to: tuple[Place | None, Place | None]


def parted(sides: tuple[Side, Side], splits: Sequence[Split]) -> list[Parted]:
    """Return the places at which two paths part, with the values that decided it.

    A place is named once, even if several calls part there.
    """
    found: list[Parted] = []
    seen = set[tuple[str, int, int]]()
    for split in splits:
        nexts = [None if returns else _place(side, moment) for side, moment, returns in
                 zip(sides, split.moments, split.returns, strict=True)]
        pcs = [0 if place is None else place.pc for place in nexts]
        key = split.name, pcs[0], pcs[1]
        if key in seen:
            continue
        seen.add(key)
        if len(found) == MOST_SPLITS:
            break
        branches = [_branch(side, moment) for side, moment in
                    zip(sides, split.moments, strict=True)]
        found.append(Parted(split.name, (branches[0], branches[1]), (nexts[0], nexts[1])))
    return found


def _place(side: Side, moment: int) -> Place:
    return side.explainer.place(side.path.position(moment), side.path.pcs[moment])


def _branch(side: Side, moment: int) -> Reason | None:
    """Return the branch that was executed just before a moment, or None if there was none."""
    path = side.path
    if moment == 0 or moment == len(path.pcs):
        return None
    condition = side.explainer.conditions.executed_branch(
        path.position(moment - 1), path.pcs[moment])
    return None if condition is None else side.explainer.reason(condition)


# -- text -----------------------------------------------------------------------------------------


def lines(sides: tuple[Side, Side], comparison: Comparison, depth: int | None) -> Iterator[str]:
    """Yield the text of a comparison."""
    for mark, side in zip("-+", sides, strict=True):
        duration = side.path.time(len(side.path.pcs)) - side.path.time(0)
        yield f"{mark} {side.window.title}: {len(side.path.pcs)} instructions, {duration} ns"
    if not comparison.splits:
        yield "both execute the same instructions"
    found = parted(sides, comparison.splits)
    for number, place in enumerate(found, 1):
        yield from _parted_lines(number, place)
    left = len(comparison.splits) - len(found)
    if left:
        yield f"{left} more calls part there or elsewhere; --json lists their functions"
    yield f"{'- ns':>12} {'+ ns':>12}"
    for call, count in grouped(comparison.calls, depth):
        times = [side.time(frame) for side, frame in zip(sides, call.frames, strict=True)]
        shown = ["" if one is None else str(one) for one in times]
        more = f" x{count}" if count > 1 else ""
        yield (f"{shown[0]:>12} {shown[1]:>12} {SIGNS[call.match]} {'  ' * call.depth}"
               f"{call.name}{more}")


def _parted_lines(number: int, place: Parted) -> Iterator[str]:
    branch = place.branch[0] or place.branch[1]
    where = "" if branch is None else f" {line_text(branch.branch)}"
    yield f"{number}. {place.function} parts{where}"
    if branch is not None and branch.branch.source:
        yield f"       {branch.branch.source}"
    for mark, values, to in zip("-+", values_of(place), place.to, strict=True):
        goes = RETURNS if to is None else f"goes on {line_text(to)}"
        yield f"   {mark} {', '.join([*values, goes])}"
        if to is not None and to.source:
            yield f"       {to.source}"


def values_of(place: Parted) -> tuple[list[str], list[str]]:
    """Return the values that the branch of each path compared; those that differ, if any do."""
    differing = _differing(*place.branch)
    first, second = ([] if reason is None else list(dict.fromkeys(
        compared_text(one) for one in reason.compared
        if not one.constant and (not differing or one.text in differing)))
        for reason in place.branch)
    return first, second


def _differing(one: Reason | None, other: Reason | None) -> set[str]:
    """Return the operands of a comparison that have different values on both sides."""
    if one is None or other is None or one.test.pc != other.test.pc:
        return set()
    return {a.text for a, b in zip(one.compared, other.compared, strict=False)
            if a.text == b.text and a.value != b.value}


def line_text(place: Place) -> str:
    """Return where an instruction is, as ``at FILE:LINE (FUNCTION)``."""
    if not place.line and not place.after:
        return f"at {place.where}"
    return f"{f'at {place.line}' if place.line else f'after {place.after}'} ({place.function})"


def grouped(calls: Sequence[MatchedCall], depth: int | None) -> Iterator[tuple[MatchedCall, int]]:
    """Yield the calls, and how many consecutive calls look like them; only the same are joined."""
    shown = [call for call in calls if depth is None or call.depth <= depth]
    at = 0
    while at < len(shown):
        call, count = shown[at], 1
        while (call.match is Match.SAME and at + count < len(shown)
               and (shown[at + count].match, shown[at + count].name, shown[at + count].depth)
               == (call.match, call.name, call.depth)):
            count += 1
        yield call, count
        at += count


# -- JSON -----------------------------------------------------------------------------------------


def to_json(sides: tuple[Side, Side], comparison: Comparison) -> dict[str, object]:
    """Return a comparison as JSON data; positions are instruction counts."""
    return {
        "paths": [{
            "title": side.window.title, "thread": side.thread,
            "begin": side.path.begin.instructions, "end": side.path.end.instructions,
            "instructions": len(side.path.pcs),
            "ns": side.path.time(len(side.path.pcs)) - side.path.time(0),
        } for side in sides],
        "partings": [{
            "function": place.function,
            "branches": [None if reason is None else asdict(reason) for reason in place.branch],
            "next": [None if to is None else asdict(to) for to in place.to],
        } for place in parted(sides, comparison.splits)],
        "parting_calls": [{
            "function": split.name,
            "positions": [side.path.position(moment)
                          for side, moment in zip(sides, split.moments, strict=True)],
        } for split in comparison.splits],
        "calls": [{
            "match": call.match.value, "name": call.name, "depth": call.depth,
            "ns": [side.time(frame) for side, frame in zip(sides, call.frames, strict=True)],
        } for call in comparison.calls],
    }
