"""Timeline for the page of a trace: firings of each function over virtual time."""

from collections import Counter
from dataclasses import dataclass

from kinst_emu.report.time_units import along_axis, exact
from kinst_emu.trace_page.collected import Collected
from kinst_emu.trace_page.heat import HEATS, heat

COLUMNS, FEWEST, ROWS = 160, 8, 24  # maximum and minimum number of columns; maximum number of rows
TICKS = 4  # number of intervals on the time axis
LEAST = 0.2  # minimum opacity of a cell


@dataclass(frozen=True)
class TimelineRow:
    """Firings of one function.

    :param paths: opacities, each with the SVG path of its cells, which are one unit wide and high.
    """

    name: str
    paths: list[tuple[float, str]]


@dataclass(frozen=True)
class Tick:
    """Tick on the time axis.

    :param kind: CSS class: ``first``, ``middle``, ``last``, or ``between`` for a tick that narrow
        screens hide.
    """

    kind: str
    percent: int
    text: str


@dataclass(frozen=True)
class Timeline:
    """Timeline of a trace.

    :param functions: number of functions that had firings.
    :param first: time of the first firing; ``span``: time between the first and the last.
    """

    rows: list[TimelineRow]
    functions: int
    columns: int
    first: str
    span: str
    ticks: list[Tick]


def timeline(trace: Collected) -> Timeline:
    """Return the timeline of a trace that has at least one stored firing time."""
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
    """Choose a number of columns close to ``wanted``, preferably one that divides the time span.

    If possible, each column spans a whole number of nanoseconds; otherwise some columns would
    cover one nanosecond more than others, and therefore show more firings.
    """
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
