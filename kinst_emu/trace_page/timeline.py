"""The firings of functions over virtual time, as the page draws them."""

from collections import Counter
from dataclasses import dataclass

from kinst_emu.report.time_units import along_axis, exact
from kinst_emu.trace_page.collected import Collected
from kinst_emu.trace_page.heat import HEATS, heat

COLUMNS, FEWEST, ROWS = 160, 8, 24
TICKS = 4  # between them and at both ends
LEAST = 0.2  # opacity


@dataclass(frozen=True)
class TimelineRow:
    """A function.

    :param paths: opacity, and the cells that have it, one unit wide and high.
    """

    name: str
    paths: list[tuple[float, str]]


@dataclass(frozen=True)
class Tick:
    """:param kind: which of them can be left away where there is little room."""

    kind: str
    percent: int
    text: str


@dataclass(frozen=True)
class Timeline:
    """:param functions: how many had firings.
    :param first: when the first was, and ``span`` how long they took.
    """

    rows: list[TimelineRow]
    functions: int
    columns: int
    first: str
    span: str
    ticks: list[Tick]


def timeline(trace: Collected) -> Timeline:
    """Of a trace that has times."""
    first, last = min(trace.times), max(trace.times)
    span = last - first + 1
    columns = _columns(span, max(FEWEST, min(COLUMNS, len(trace.times) // 4)))
    totals = Counter[str]()
    cells: dict[str, Counter[int]] = {}
    for time, probe in zip(trace.times, trace.probes, strict=True):
        name = trace.functions[probe]
        totals[name] += 1
        cells.setdefault(name, Counter())[(time - first) * columns // span] += 1
    most = max(max(found.values()) for found in cells.values())
    rows = [TimelineRow(name, _paths(cells[name], most)) for name,
            _count in totals.most_common(ROWS)]
    return Timeline(rows, len(totals), columns, exact(first), exact(span), _ticks(span))


def _columns(span: int, wanted: int) -> int:
    """About as many as are wanted; of whole nanoseconds where that can be, since in some of a few
    and a fraction there would be a firing more than in others."""
    near = range(max(FEWEST, wanted // 2), min(COLUMNS, 3 * wanted) + 1)
    return min((n for n in near if span % n == 0), key=lambda n: abs(n - wanted), default=wanted)


def _paths(cells: Counter[int], most: int) -> list[tuple[float, str]]:
    by_heat: dict[int, list[str]] = {}
    for column, count in sorted(cells.items()):
        by_heat.setdefault(heat(count, most), []).append(f"M{column} 0h1v1h-1z")
    return [(LEAST + (1 - LEAST) * number / HEATS, "".join(paths))
            for number, paths in by_heat.items()]


def _ticks(span: int) -> list[Tick]:
    texts = along_axis([span * part / TICKS for part in range(TICKS + 1)])
    kinds = {0: "first", TICKS // 2: "middle", TICKS: "last"}
    return [Tick(kinds.get(part, "between"), 100 * part // TICKS, text)
            for part, text in enumerate(texts)]
