"""Plots of aggregations: bars, histograms, and heat maps over time."""

import io
import itertools
import math
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtrace.run.structured import Row
from dtrace.run.values import Value
from emu.host.atomic_file import replacing
from emu.host.errors import KinstError
from emu.host.extras import need
from kinst_emu.report.time_units import exact, unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = ("svg", "png")
MOST_BARS = 40
MOST_HISTOGRAMS = 8  # maximum number of histograms for one aggregation
MOST_PICTURES = 24
MOST_CELLS = 200  # maximum number of columns of a heat map
LABEL = 60  # maximum length of a label in characters
CLIP = re.compile(rb"\bp[0-9a-f]{10}\b")
WIDTH, HEIGHT, BAR = 9.0, 3.2, 0.22  # sizes in inches; BAR is the height of one bar
MARGIN = 1.2


def check(path: str) -> None:
    """Check that a plot can be written to a path.

    :raises KinstError: when the suffix is unsupported, the directory does not exist, or matplotlib
        is not installed.
    """
    if Path(path).suffix.lstrip(".") not in SUFFIXES:
        raise KinstError(f"--plot {path}: the name must end with .svg or .png")
    if not Path(path).absolute().parent.is_dir():
        raise KinstError(f"--plot {path}: the directory does not exist")
    need("plot", "--plot")


def draw(aggregations: Sequence[Row], timed: Mapping[str, int], path: str) -> None:
    """Draw aggregations in one file, one below the other; titles state what was left out.

    :param aggregations: as ``kdtrace --json`` prints them.
    :param timed: for each aggregation whose key is a time, by name, the unit of the key in
        nanoseconds; 0 if it has no plain unit.
    :raises KinstError: when the file cannot be written.
    """
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "kinst"  # a fixed salt makes the file reproducible
    pictures = [picture for row in aggregations for picture in _pictures(row, timed)]
    shown = pictures[:MOST_PICTURES]
    heights = [HEIGHT if rows is None else MARGIN + BAR * rows
               for _kind, _title, rows, _data in shown]
    figure = Figure(figsize=(WIDTH, max(1.0, sum(heights))), layout="constrained")
    if not shown:
        figure.text(0.5, 0.5, "nothing was aggregated", ha="center")
    elif len(pictures) > len(shown):
        figure.suptitle(f"the first {len(shown)} of {len(pictures)} plots")
    axes: Any = []
    if shown:
        axes = figure.subplots(len(shown), 1, squeeze=False, height_ratios=heights)
    for (kind, title, _rows, data), (axis,) in zip(shown, axes, strict=True):
        axis.set_title(title, loc="left", fontsize=9, parse_math=False)
        axis.tick_params(labelsize=8)
        KINDS[kind](axis, data)
    out = io.BytesIO()
    suffix = Path(path).suffix.lstrip(".")
    with warnings.catch_warnings():
        # matplotlib warns about characters that its font lacks.
        warnings.simplefilter("ignore", UserWarning)
        figure.savefig(out, format=suffix, metadata={"Date": None} if suffix == "svg" else {})
    try:
        with replacing(Path(path)) as file:
            file.write(_renamed(out.getvalue()) if suffix == "svg" else out.getvalue())
    except OSError as error:
        raise KinstError(f"--plot {path}: {error.strerror}") from None


def _renamed(svg: bytes) -> bytes:
    """Name the clip paths of an SVG by their order of appearance, to make the file reproducible.

    matplotlib names clip paths by hashes of numbers whose last bits differ from run to run.
    """
    names: dict[bytes, bytes] = {}
    return CLIP.sub(lambda found: names.setdefault(found[0], b"clip%d" % len(names)), svg)


Picture = tuple[str, str, int | None, Any]


def _pictures(aggregation: Row, timed: Mapping[str, int]) -> list[Picture]:
    """Return (kind, title, bars, data) for each plot of an aggregation."""
    name, function = str(aggregation["aggregation"]), str(aggregation["function"])
    given = aggregation["rows"]
    assert isinstance(given, list)
    rows = [row for row in given if isinstance(row, dict)]
    title = f"{name} = {function}()"
    if not any(isinstance(row["value"], list) for row in rows):
        kept = rows[-MOST_BARS:]  # The last rows have the largest values.
        more = f", the last {len(kept)} of {len(rows)}" if len(kept) < len(rows) else ""
        bars = [(_label(row["keys"]), row["value"]) for row in kept]
        return [("bars", title + more, len(bars), bars)]
    if name in timed and len(rows) > 1 and any(row["value"] for row in rows):
        return [("heat", f"{title} over time", None, (function, rows, timed[name]))]
    kept = rows[-MOST_HISTOGRAMS:]
    more = f" (the last {len(kept)} of {len(rows)})" if len(kept) < len(rows) else ""
    return [("histogram", f"{title} {_label(row['keys'])}{more}", None, (function, row["value"]))
            for row in kept]


Bound = int | None  # lower bound of a bucket, or None for the bucket below the first bound


def _between(function: str, bounds: Collection[Bound]) -> list[Bound]:
    """Return the lower bounds of all buckets of a distribution, including empty buckets."""
    known = sorted(bound for bound in bounds if bound is not None)
    all_bounds: set[int] = set(known)
    if function == "quantize":
        powers = [0, *(sign << n for n in range(64) for sign in (1, -1))]
        all_bounds |= {bound for bound in powers if known and known[0] <= bound <= known[-1]}
    elif function == "lquantize" and len(known) > 1:
        step = math.gcd(*(b - a for a, b in itertools.pairwise(known)))
        if (known[-1] - known[0]) // step <= MOST_CELLS:
            all_bounds |= set(range(known[0], known[-1], step))
    below: list[Bound] = [None] if None in bounds else []
    return [*below, *sorted(all_bounds)]


def _label(keys: Value) -> str:
    assert isinstance(keys, list)
    text = ", ".join(" < ".join(map(str, key)) if isinstance(key, list) else str(key)
                     for key in keys)
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= LABEL else text[: LABEL - 3] + "..."


def _bars(axes: "Axes", bars: list[tuple[str, int]]) -> None:
    places = range(len(bars))
    axes.barh(places, [float(value) for _label, value in bars])
    axes.set_yticks(places, [label for label, _value in bars], parse_math=False)


def _bound(bound: Bound) -> str:
    return "below" if bound is None else str(bound)


def _histogram(axes: "Axes", data: tuple[str, list[dict[str, Any]]]) -> None:
    function, buckets = data
    counts = {bucket.get("from"): _count(bucket) for bucket in buckets}
    bounds = _between(function, counts)
    axes.bar(range(len(bounds)), [counts.get(bound, 0.0) for bound in bounds])
    axes.set_xticks(range(len(bounds)), [_bound(bound) for bound in bounds],
                    rotation=90 if len(bounds) > MOST_BARS // 4 else 0)


def _count(bucket: Mapping[str, Value]) -> float:
    count = bucket["count"]
    return float(count) if isinstance(count, int) else 0.0


def _heat(axes: "Axes", data: tuple[str, list[dict[str, Any]], int]) -> None:
    """Draw a heat map: time from left to right, buckets upward, counts as colors."""
    function, rows, nanoseconds = data
    times = sorted(int(row["keys"][0]) for row in rows)
    first, span = times[0], max(1, times[-1] - times[0])
    step = max(1, -(-(span + 1) // MOST_CELLS))
    names = _between(function, {bucket.get("from") for row in rows for bucket in row["value"]})
    place = {bound: n for n, bound in enumerate(names)}
    cells = [[0.0] * (span // step + 1) for _ in names]
    for row in rows:
        for bucket in row["value"]:
            column = (int(row["keys"][0]) - first) // step
            cells[place[bucket.get("from")]][column] += _count(bucket)
    image = axes.imshow(cells, aspect="auto", origin="lower", interpolation="nearest",
                        extent=(0, step * len(cells[0]), -0.5, len(names) - 0.5))
    if nanoseconds:
        name, size = unit_of(span * nanoseconds)
        axes.xaxis.set_major_formatter(lambda x, _place: f"{x * nanoseconds / size:g} {name}")
        axes.set_xlabel(f"since {exact(first * nanoseconds)}", fontsize=8)
    else:
        axes.set_xlabel(f"key, counted from {first}", fontsize=8)
    axes.set_yticks(range(len(names)), [_bound(bound) for bound in names])
    axes.figure.colorbar(image, ax=axes)


KINDS: dict[str, Callable[["Axes", Any], None]] = {
    "bars": _bars, "histogram": _histogram, "heat": _heat}
