"""Text and JSON of a path: its functions in order, with times."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dtrace.flow.thread_path import PathFrame, ThreadPath
from dtrace.flow.walk import INLINE, INTERRUPT

MARKS = {INLINE: " [inlined]", INTERRUPT: " [exception]"}


@dataclass
class Row:
    """Consecutive calls of a function from the same place in the tree.

    :param total: virtual time in ns, including the functions that it called.
    :param own: number of instructions that it executed itself.
    """

    name: str
    how: str
    depth: int
    calls: int = 0
    total: int = 0
    own: int = 0
    frames: list[int] = field(default_factory=list)


def rows(path: ThreadPath, depth: int | None = None) -> Iterator[Row]:
    """Yield the functions in the order of their entry; consecutive calls are one row.

    :param depth: number of levels below the function with which the path begins; None for all.
    """
    below: dict[int, list[int]] = {}
    for number, frame in enumerate(path.frames):
        below.setdefault(frame.parent, []).append(number)
    waiting = list(reversed(_grouped(path, _tops(path), 0)))
    while waiting:
        row = waiting.pop()
        yield row
        if depth is None or row.depth < depth:
            children = [child for number in row.frames for child in below.get(number, ())]
            waiting += reversed(_grouped(path, children, row.depth + 1))


def _tops(path: ThreadPath) -> list[int]:
    """Return the outermost functions whose code the path executes."""
    frames = path.frames
    first = max(path.outer - 1, 0)
    level = min((frame.depth for frame in frames[first:]), default=0)
    around = first
    while frames and frames[around].depth > level:
        around = frames[around].parent
    return [number for number in (around, *range(first + 1, len(frames)))
            if number < len(frames) and frames[number].depth == level]


def _grouped(path: ThreadPath, numbers: Sequence[int], depth: int) -> list[Row]:
    found: list[Row] = []
    for number in numbers:
        frame = path.frames[number]
        if not found or (found[-1].name, found[-1].how) != (frame.name, frame.how):
            found.append(Row(frame.name, frame.how, depth))
        row = found[-1]
        row.calls += 1
        row.total += path.time(frame.end) - path.time(frame.begin)
        row.own += frame.own
        row.frames.append(number)
    return found


def lines(path: ThreadPath, depth: int | None = None) -> Iterator[str]:
    """Yield the text: virtual time in ns, instructions of the function itself, and the function."""
    yield f"{'ns':>12} {'self':>9}"
    for row in rows(path, depth):
        calls = f" x{row.calls}" if row.calls > 1 else ""
        yield (f"{row.total:>12} {row.own:>9} {'  ' * row.depth}{row.name}"
               f"{MARKS.get(row.how, '')}{calls}")
    for moment, gap, others in breaks(path):
        yield f"after {moment} instructions: {others} instructions of other threads, {gap} ns"


def breaks(path: ThreadPath) -> Iterator[tuple[int, int, int]]:
    """Yield where the thread did not run: (moment, time in ns, instructions of other threads)."""
    for before, (moment, position, time) in zip(path.runs, path.runs[1:], strict=False):
        length = moment - before[0]
        yield moment, time - before[2] - length, position - before[1] - length


def to_json(path: ThreadPath) -> dict[str, object]:
    """Return the path as JSON data; ``begin`` and ``end`` are instruction counts."""
    return {
        "begin": path.begin.instructions, "end": path.end.instructions,
        "instructions": len(path.pcs), "other_instructions": path.others,
        "ns": path.time(len(path.pcs)) - path.time(0),
        "functions": [_frame(path, frame) for frame in path.frames],
        "breaks": [{"instruction": path.position(moment), "ns": gap, "other_instructions": others}
                   for moment, gap, others in breaks(path)],
    }


def _frame(path: ThreadPath, frame: PathFrame) -> dict[str, object]:
    return {"name": frame.name, "how": frame.how, "depth": frame.depth,
            "begin": path.position(frame.begin), "end": path.position(frame.end),
            "ns": path.time(frame.end) - path.time(frame.begin), "own": frame.own}
