"""Bar charts of aggregations for the page of a trace."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dtrace.run.structured import Row
from dtrace.run.values import Value

# Maximum numbers of bars and of distributions drawn for one aggregation.
MOST_BARS, MOST_DISTRIBUTIONS = 40, 8
MOST_AGGREGATIONS = 40
MOST_EMPTY = 128  # maximum number of empty buckets drawn one by one; quantize() has fewer buckets


@dataclass(frozen=True)
class Bar:
    """A bar of an aggregation.

    :param percent: length in percent of the longest bar.
    """

    label: str
    value: str
    percent: float


@dataclass(frozen=True)
class AggregationBars:
    """Bars of one aggregation.

    :param pictures: for each distribution, its key and its bars; without distributions, the key
        None and the bars of all keys.
    :param left_out: sentence to show if not all rows are drawn; otherwise empty.
    """

    name: str
    pictures: list[tuple[str | None, list[Bar]]]
    left_out: str


def aggregations(rows: Sequence[Row]) -> list[AggregationBars]:
    """Return the bars of the aggregations.

    :param rows: the aggregations, with the empty buckets of distributions.
    """
    return [_aggregation(row) for row in rows[:MOST_AGGREGATIONS]]


def left_out(rows: Sequence[Row]) -> str:
    """Return a note if not all aggregations are drawn, otherwise an empty string."""
    return (f"Only the first {MOST_AGGREGATIONS} of {len(rows)} aggregations are shown."
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
    return AggregationBars(name, pictures, f"Only the {which} {most} of {len(entries)} are shown."
                       if len(entries) > most else "")


def _dicts(value: Value) -> list[dict[str, Value]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _size(row: Mapping[str, Value]) -> float:
    """Return a sort key that orders rows by value, from the largest to the smallest."""
    value = row["value"]
    return -float(value) if isinstance(value, int) else 0.0


def _buckets(buckets: Sequence[Mapping[str, Value]]) -> Iterator[tuple[str, Value]]:
    """Yield the label and count of each bucket; a long series of empty buckets is one entry."""
    at = 0
    while at < len(buckets):
        end = at
        while end < len(buckets) and not buckets[end]["count"]:
            end += 1
        if end - at > MOST_EMPTY:
            yield f"{_bound(buckets[at])} and up: {end - at} empty buckets", 0
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
