"""Aggregations as bars, as the page draws them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dtrace.run.structured import Row
from dtrace.run.values import Value

MOST_BARS, MOST_DISTRIBUTIONS = 40, 8  # of an aggregation
MOST_AGGREGATIONS = 40
MOST_EMPTY = 128  # buckets that are drawn one by one: all that quantize() has


@dataclass(frozen=True)
class Bar:
    """:param percent: of the largest."""

    label: str
    value: str
    percent: float


@dataclass(frozen=True)
class AggregationBars:
    """:param pictures: the key of each distribution, None where all keys are in one; its bars.
    :param left_out: what is said when not all rows are drawn.
    """

    name: str
    pictures: list[tuple[str | None, list[Bar]]]
    left_out: str


def aggregations(rows: Sequence[Row]) -> list[AggregationBars]:
    """:param rows: with the empty buckets of distributions."""
    return [_aggregation(row) for row in rows[:MOST_AGGREGATIONS]]


def left_out(rows: Sequence[Row]) -> str:
    """What is said when not all aggregations are drawn."""
    return (f"The first {MOST_AGGREGATIONS} of {len(rows)} aggregations."
            if len(rows) > MOST_AGGREGATIONS else "")


def _aggregation(row: Row) -> AggregationBars:
    name, entries = f"{row['aggregation']} = {row['function']}()", _dicts(row["rows"])
    if any(isinstance(entry["value"], list) for entry in entries):
        most, which = MOST_DISTRIBUTIONS, "last"
        pictures: list[tuple[str | None, list[Bar]]] = [
            (_label(entry["keys"]), _bars(list(_buckets(_dicts(entry["value"])))))
            for entry in entries[-most:]]
    else:
        most, which = MOST_BARS, "largest"
        pictures = [(None, _bars([(_label(entry["keys"]), entry["value"])
                                  for entry in sorted(entries, key=_size)[:most]]))]
    return AggregationBars(name, pictures, f"The {most} {which} of {len(entries)}."
                       if len(entries) > most else "")


def _dicts(value: Value) -> list[dict[str, Value]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _size(row: Mapping[str, Value]) -> float:
    """Orders rows, the largest first."""
    value = row["value"]
    return -float(value) if isinstance(value, int) else 0.0


def _buckets(buckets: Sequence[Mapping[str, Value]]) -> Iterator[tuple[str, Value]]:
    """The label and count of each; of many empty ones in a row, how many there are."""
    at = 0
    while at < len(buckets):
        end = at
        while end < len(buckets) and not buckets[end]["count"]:
            end += 1
        if end - at > MOST_EMPTY:
            yield f"{_bound(buckets[at])} and on, {end - at} buckets", 0
            at = end
        else:
            yield _bound(buckets[at]), buckets[at]["count"]
            at += 1


def _bound(bucket: Mapping[str, Value]) -> str:
    return str(bucket["from"]) if "from" in bucket else "below"


def _bars(bars: Sequence[tuple[str, Value]]) -> list[Bar]:
    most = max((abs(value) for _label, value in bars if isinstance(value, int)), default=0) or 1
    return [Bar(label, str(value), 100 * abs(value) / most) if isinstance(value, int)
            else Bar(label, json.dumps(value), 0) for label, value in bars]


def _label(keys: Value) -> str:
    parts = keys if isinstance(keys, list) else [keys]
    text = ", ".join(" < ".join(map(str, part)) if isinstance(part, list) else str(part)
                     for part in parts)
    return "".join(c if c.isprintable() else "?" for c in text) or ("(empty)" if parts else "all")
