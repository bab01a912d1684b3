"""Comparison of two paths: which calls are the same, and where calls of a function part.

Calls are compared by the instructions that they execute, inlined functions as part of the function
around them.  Exceptions and interrupts are left out, because they come at other times in each run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from enum import StrEnum

from dtrace.flow.thread_path import ThreadPath
from dtrace.flow.walk import INLINE, INTERRUPT

MOST_CALLS = 2000  # more calls are matched only up to the first that differs


class Match(StrEnum):
    """How a call of one path relates to the other path."""

    SAME = "same"
    DIFFERENT = "different"  # both have it, but it executes other instructions
    FIRST = "first"  # only the first path has it
    SECOND = "second"


@dataclass(frozen=True)
class MatchedCall:
    """A call in one path or in both.

    :param frames: its index in the frames of each path; None where the path does not have it.
    :param depth: number of calls around it.
    """

    match: Match
    name: str
    frames: tuple[int | None, int | None]
    depth: int


@dataclass(frozen=True)
class Split:
    """Where matching calls part for the first time.

    :param name: the function.
    :param moments: moment of each path before the first instruction that differs; the end of the
        call if it returns there.
    :param returns: whether the call of each path returns there.
    """

    name: str
    moments: tuple[int, int]
    returns: tuple[bool, bool]


@dataclass
class Comparison:
    """Result of a comparison.

    :param calls: calls in order, those of the first path before those of the second; what a call
        that is the same calls is left out.
    :param splits: in the order of the first path.
    """

    calls: list[MatchedCall] = field(default_factory=list)
    splits: list[Split] = field(default_factory=list)


def compare(one: ThreadPath, other: ThreadPath) -> Comparison:
    """Compare two paths of the same kernel."""
    bodies = _Bodies(one), _Bodies(other)
    result = Comparison()
    # Pairs of calls to compare, and calls of one path to list, the next one last.
    waiting: list[tuple[int | None, int | None, int]] = [(bodies[0].root, bodies[1].root, 0)]
    while waiting:
        left, right, depth = waiting.pop()
        if left is None or right is None:
            side = 0 if right is None else 1
            number = left if right is None else right
            assert number is not None
            result.calls.append(MatchedCall((Match.FIRST, Match.SECOND)[side],
                                            bodies[side].name(number), (left, right), depth))
            inner = bodies[side].calls(number)
            waiting += [(None, child, depth + 1) if side else (child, None, depth + 1)
                        for child in reversed(inner)]
            continue
        name = bodies[0].name(left)
        if bodies[0].digests[left] == bodies[1].digests[right]:
            result.calls.append(MatchedCall(Match.SAME, name, (left, right), depth))
            continue
        result.calls.append(MatchedCall(Match.DIFFERENT, name, (left, right), depth))
        split = _first_difference(bodies, left, right)
        if split is not None:
            result.splits.append(split)
        waiting += [(a, b, depth + 1) for a, b in reversed(list(_pairs(bodies, left, right)))]
    result.splits.sort(key=lambda split: split.moments)
    return result


class _Bodies:
    """What each call of a path executes: its own instructions, and the calls that it makes.

    :param digests: digest of a call's instructions, with those of its calls, by index of the frame.
    """

    def __init__(self, path: ThreadPath) -> None:
        self._path = path
        self.root = max(path.outer - 1, 0)
        # (address of an instruction, or ~index of the frame of a call; moment)
        self.bodies: dict[int, list[tuple[int, int]]] = {self.root: []}
        self._fill()
        self.digests: dict[int, int] = {}
        for number in sorted(self.bodies, reverse=True):
            self.digests[number] = hash(tuple(
                entry if entry >= 0 else (path.frames[~entry].name, self.digests[~entry])
                for entry, _moment in self.bodies[number]))

    def _fill(self) -> None:
        frames, bodies = self._path.frames, self.bodies
        # (end, frame whose body its instructions belong to; None for those of exceptions)
        stack: list[tuple[int, int | None]] = []
        following = self.root + 1
        for moment, pc in enumerate(self._path.pcs):
            while stack and stack[-1][0] <= moment:
                stack.pop()
            while following < len(frames) and frames[following].begin <= moment:
                frame, owner = frames[following], stack[-1][1] if stack else self.root
                if frame.end > moment:
                    if frame.how == INTERRUPT or owner is None:
                        owner = None
                    elif frame.how != INLINE:
                        bodies[owner].append((~following, moment))
                        bodies[following] = []
                        owner = following
                    stack.append((frame.end, owner))
                following += 1
            owner = stack[-1][1] if stack else self.root
            if owner is not None:
                bodies[owner].append((pc, moment))

    def name(self, number: int) -> str:
        """Return the name of a call's function."""
        frames = self._path.frames
        return frames[number].name if frames else ""

    def calls(self, number: int) -> list[int]:
        """Return the indexes of the frames of the calls that a call makes."""
        return [~entry for entry, _moment in self.bodies[number] if entry < 0]

    def end(self, number: int) -> int:
        """Return the moment at which a call ends."""
        frames = self._path.frames
        return frames[number].end if number < len(frames) and number != self.root else len(
            self._path.pcs)


def _first_difference(bodies: tuple[_Bodies, _Bodies], left: int, right: int) -> Split | None:
    """Return where two calls of a function part, or None if only the calls that they make do."""
    name = bodies[0].name(left)
    ours, theirs = bodies[0].bodies[left], bodies[1].bodies[right]
    for (a, at), (b, on) in zip(ours, theirs, strict=False):
        if a < 0 and b < 0:
            if bodies[0].name(~a) != bodies[1].name(~b):
                return Split(name, (at, on), (False, False))
        elif a != b:
            return Split(name, (at, on), (False, False))
    if len(ours) == len(theirs):
        return None
    short = min(len(ours), len(theirs))
    returns = short == len(ours), short == len(theirs)
    return Split(name, (bodies[0].end(left) if returns[0] else ours[short][1],
                        bodies[1].end(right) if returns[1] else theirs[short][1]), returns)


def _pairs(bodies: tuple[_Bodies, _Bodies], left: int, right: int
           ) -> Iterator[tuple[int | None, int | None]]:
    """Yield the calls that two calls of a function make, matched by the names of the functions."""
    ours, theirs = bodies[0].calls(left), bodies[1].calls(right)
    for equal, begin, end, first, last in _runs([bodies[0].name(n) for n in ours],
                                                [bodies[1].name(n) for n in theirs]):
        if equal:
            yield from zip(ours[begin:end], theirs[first:last], strict=True)
        else:
            yield from ((number, None) for number in ours[begin:end])
            yield from ((None, number) for number in theirs[first:last])


def _runs(ours: Sequence[str], theirs: Sequence[str]) -> Iterator[tuple[bool, int, int, int, int]]:
    """Yield runs of names: (whether they are equal, range of the first, range of the second).

    Names that are equal at the beginning are matched in any case, so that the first difference
    between two calls is found.
    """
    same = 0
    while same < min(len(ours), len(theirs)) and ours[same] == theirs[same]:
        same += 1
    yield True, 0, same, 0, same
    if max(len(ours), len(theirs)) - same > MOST_CALLS:
        yield False, same, len(ours), same, len(theirs)
        return
    matcher = SequenceMatcher(None, ours[same:], theirs[same:], autojunk=False)
    for tag, begin, end, first, last in matcher.get_opcodes():
        yield tag == "equal", same + begin, same + end, same + first, same + last
