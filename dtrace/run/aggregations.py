"""Aggregations of a trace in the consumer: merged, normalized and sorted.

See "Aggregations" in the DTrace guide.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from dtrace.bpf.interpreter import divide, signed
from dtrace.bpf.layout import QUANTIZE_BUCKETS, QUANTIZE_ZERO, Aggregate
from dtrace.d.compile.actions import SYMBOLS
from dtrace.d.compile.aggregations import value_count
from dtrace.d.language.identifiers import KINDS, AggregationInfo, KeyShape
from dtrace.d.language.types import is_string

U64 = 1 << 64
MAX_KEYS, MAX_VALUES = 1 << 20, 1 << 24  # maximum numbers of keys and values in all aggregations
MAX_KEY_BYTES = 128 << 20


@dataclass(frozen=True)
class Part:
    """One element of an aggregation's key.

    :param content: the bytes in memory; for a string, only the bytes before its NUL.
    :param size: size of the type in bytes.
    :param how: how the element is printed: "value", "stack", "sym" and so on.
    :param text: whether the element is a string.
    """

    content: bytes
    size: int
    how: str
    text: bool

    @property
    def number(self) -> int:
        """Content of the element as an unsigned integer."""
        return int.from_bytes(self.content, "little")

    @property
    def order(self) -> tuple[int, int, bytes]:
        """Sort key of the element: size, then value (an unsigned integer or bytes)."""
        if self.size in (1, 2, 4, 8):  # also strings of these sizes, as in dtrace(1)
            return self.size, self.number, b""
        return self.size, 0, self.content


@dataclass(eq=False)
class Entry:
    """One key of an aggregation, and the values for the key.

    :param normal: divisor of the printed values, set by ``normalize()``.
    :param raw: the key as the executor stores it.
    :param origin: number of the statement that used the key first.
    """

    info: AggregationInfo
    key: tuple[Part, ...]
    values: list[int]
    normal: int = 1
    raw: bytes = b""
    shape: KeyShape | None = None
    origin: int = -1

    @property
    def kind(self) -> Aggregate:
        """Kind of the aggregating function, such as ``Aggregate.SUM``."""
        assert self.info.function is not None
        return KINDS[self.info.function.name]


Start = Callable[[str, int], int]


def _started(shape: KeyShape, key: bytes, start: Start) -> bytes:
    """Replace each address in a key with the start of its function or module; return the key."""
    if all(how not in SYMBOLS for _kind, how, _size in shape.parts):
        return key
    out, offset = bytearray(key), 0
    for kind, how, size in shape.parts:
        if is_string(kind):
            offset += 8 + -(-int.from_bytes(key[offset : offset + 8], "little") // 8) * 8
            continue
        if how in SYMBOLS:
            address = int.from_bytes(key[offset : offset + 8], "little")
            out[offset : offset + 8] = start(how, address).to_bytes(8, "little")
        offset += -(-size // 8) * 8
    return bytes(out)


def decode(shape: KeyShape, key: bytes) -> tuple[Part, ...]:
    """Split a key in the executor's format into its elements."""
    parts, offset = [], 0
    for kind, how, size in shape.parts:
        if is_string(kind):
            length = int.from_bytes(key[offset : offset + 8], "little")
            parts.append(Part(key[offset + 8 : offset + 8 + length], size, how, True))
            offset += 8 + -(-length // 8) * 8
        else:
            parts.append(Part(key[offset : offset + size], size, how, False))
            offset += -(-size // 8) * 8
    return tuple(parts)


def bounds(entry: Entry) -> list[int]:
    """Return the lower bound of each bucket of a distribution.

    An underflow bucket, which has no lower bound, is represented by its largest value.
    """
    if entry.kind is Aggregate.QUANTIZE:
        return [0 if n == QUANTIZE_ZERO else 1 << n - QUANTIZE_ZERO - 1 if n > QUANTIZE_ZERO
                else -(1 << QUANTIZE_ZERO - 1 - n) for n in range(QUANTIZE_BUCKETS)]
    if entry.kind is Aggregate.LQUANTIZE:
        base, step, levels = entry.info.parameters
        return [base - 1, *(base + n * step for n in range(levels)), base + levels * step]
    factor, low, high, steps = entry.info.parameters
    lower_bounds = [factor**low - 1]
    bound = factor**low
    for power in range(low, high + 1):
        end = factor ** (power + 1)
        width = end // steps if end > steps else 1
        while bound < end:
            lower_bounds.append(bound)
            bound += width
    return [*lower_bounds, bound]


def labels(entry: Entry) -> list[str]:
    """Return the row labels of a distribution."""
    lower_bounds = bounds(entry)
    if entry.kind is Aggregate.QUANTIZE:
        return [str(bound) for bound in lower_bounds]
    first = lower_bounds[1] if entry.kind is Aggregate.LQUANTIZE else lower_bounds[0] + 1
    return [f"< {first}", *(str(bound) for bound in lower_bounds[1:-1]), f">= {lower_bounds[-1]}"]


def average(entry: Entry) -> int:
    """Return the normalized average of an ``avg()`` entry, or 0 if the entry has no values."""
    count, total = entry.values
    return divide(divide(total, entry.normal), count) if count else 0


def deviation(entry: Entry) -> int:
    """Return the normalized result of a ``stddev()`` entry, or 0 if the entry has no values."""
    count, total, low, high = entry.values
    if not count:
        return 0
    squares = (low % U64 | (high % U64) << 64) // entry.normal // entry.normal // count
    mean = abs(divide(divide(total, entry.normal), count))
    return math.isqrt(max(squares - mean * mean, 0))


def scalar(entry: Entry) -> int:
    """Return the normalized value of an entry that is not a distribution."""
    if entry.kind is Aggregate.AVG:
        return average(entry)
    if entry.kind is Aggregate.STDDEV:
        return deviation(entry)
    return normalized(entry, 0)


def normalized(entry: Entry, number: int) -> int:
    """Return a value of an entry, divided as ``normalize()`` says."""
    value = entry.values[number]
    return signed(value % U64 // entry.normal) if entry.normal != 1 else value


def weight(entry: Entry) -> tuple[int, ...]:
    """Return the numbers that represent an entry when entries are sorted by value.

    Entries with the same numbers are sorted by their keys.
    """
    values = entry.values
    match entry.kind:
        case Aggregate.AVG:
            return (divide(values[1], values[0]) if values[0] else 0,)
        case Aggregate.STDDEV:
            return (deviation(Entry(entry.info, entry.key, values)),)
        case Aggregate.QUANTIZE:
            total = sum(b * v for b, v in zip(bounds(entry), values, strict=True))
            return total, values[QUANTIZE_ZERO]
        case Aggregate.LQUANTIZE | Aggregate.LLQUANTIZE:
            lower_bounds = bounds(entry)
            linear = entry.kind is Aggregate.LQUANTIZE
            limits = [*lower_bounds[:-1], lower_bounds[-1] + linear]
            total = sum(b * v for b, v in zip(limits, values, strict=False))
            zero = limits.index(0) if linear and 0 in limits else -1 if linear else 0
            return total, values[zero] if zero >= 0 else 0
    return (values[0],)


@dataclass(frozen=True)
class Order:
    """Sort order of entries, as set by the options whose names begin with ``aggsort``."""

    by_key: bool = False
    reverse: bool = False
    key_position: int = 0
    position: int = 0


def _keys_order(entry: Entry, order: Order) -> tuple[object, ...]:
    count = len(entry.key)
    first = order.key_position if order.key_position < count else 0
    rotated = [entry.key[(first + n) % count] for n in range(count)]
    return count, tuple(part.order for part in rotated)


@dataclass
class AggregationTable:
    """All aggregations of a trace.

    The table holds at most ``MAX_KEYS`` keys with ``MAX_KEY_BYTES`` bytes in total, and
    ``MAX_VALUES`` values. A distribution has one value for each bucket.

    :param printed: origins of the keys that an action has already printed; as in dtrace(1), later
        keys of the same origins count as printed, too.
    """

    entries: dict[tuple[int, bytes], Entry] = field(default_factory=dict)
    printed: set[int] = field(default_factory=set)
    _values: int = 0
    _key_bytes: int = 0

    def merge(self, shapes: Sequence[KeyShape], found: Sequence[tuple[int, bytes, list[int]]],
              start: Start = lambda _how, address: address) -> int:
        """Add the values that were aggregated since the previous call.

        :param start: returns the start of the function or module that contains an address; this is
            the key for ``sym()``, ``mod()`` and similar functions.
        :return: number of new keys dropped because the table is full.
        """
        dropped = 0
        for number, stored_key, values in found:
            key = _started(shapes[number], stored_key, start)
            like = shapes[number].like
            first = number if like is None else like
            entry = self.entries.get((first, key))
            if entry is None:
                if (len(self.entries) >= MAX_KEYS or self._values + len(values) > MAX_VALUES
                        or self._key_bytes + len(key) > MAX_KEY_BYTES):
                    dropped += 1
                    continue
                self._values += len(values)
                self._key_bytes += len(key)
                shape = shapes[number]
                self.entries[first, key] = Entry(
                    shape.info, decode(shape, key), values, raw=key, shape=shape, origin=number)
                continue
            kind = entry.kind
            if kind is Aggregate.MIN:
                entry.values[0] = min(entry.values[0], values[0])
            elif kind is Aggregate.MAX:
                entry.values[0] = max(entry.values[0], values[0])
            else:
                carry = kind is Aggregate.STDDEV and entry.values[2] % U64 + values[2] % U64 >= U64
                entry.values = [signed(a + b) for a, b in zip(entry.values, values, strict=True)]
                if carry:  # the sum of the squares has 128 bits
                    entry.values[3] = signed(entry.values[3] + 1)
        return dropped

    def of(self, info: AggregationInfo) -> list[Entry]:
        """Return the entries of an aggregation."""
        return [entry for entry in self.entries.values() if entry.info is info]

    def note_printed(self, infos: Iterable[AggregationInfo]) -> None:
        """Note that an action has printed aggregations."""
        for info in infos:
            self.printed.update(entry.origin for entry in self.of(info))

    def clear(self, info: AggregationInfo) -> None:
        """Set all values of an aggregation to zero, but keep the keys."""
        for entry in self.of(info):
            entry.values = [0] * len(entry.values)

    def truncate(self, info: AggregationInfo, count: int) -> None:
        """Keep only the ``count`` entries with the largest values.

        A negative count keeps the entries with the smallest values; 0 removes all entries.
        """
        entries = self._sorted(self.of(info), Order())
        kept = entries[len(entries) - count :] if count > 0 else entries[: -count]
        if count > len(entries):
            kept = entries
        kept_ids = {id(entry) for entry in kept}
        for key, entry in list(self.entries.items()):
            if entry.info is info and id(entry) not in kept_ids:
                self._values -= len(self.entries.pop(key).values)
                self._key_bytes -= len(key[1])

    def normalize(self, info: AggregationInfo, by: int) -> None:
        """Set the divisor of an aggregation's printed values.

        As in libdtrace, 0 is invalid, and only sets the divisor of the first entry to 1.
        """
        for entry in self.of(info):
            entry.normal = by or 1
            if not by:
                break

    @staticmethod
    def _sorted(entries: list[Entry], order: Order) -> list[Entry]:
        def key(entry: Entry) -> tuple[object, ...]:
            keys = _keys_order(entry, order)
            if order.by_key:
                return entry.info.number, keys
            return entry.info.number, weight(entry), keys

        return sorted(entries, key=functools.cache(key), reverse=order.reverse)

    def sorted(self, order: Order, info: AggregationInfo | None = None) -> list[Entry]:
        """Return all entries, or the entries of one aggregation, in printing order."""
        entries = list(self.entries.values()) if info is None else self.of(info)
        return self._sorted(entries, order)

    def joined(self, infos: Sequence[AggregationInfo], order: Order
               ) -> Iterator[tuple[tuple[Part, ...], list[Entry]]]:
        """Yield rows that join several aggregations by key; missing entries have zero values."""
        rows: dict[bytes, list[Entry | None]] = {}
        for n, info in enumerate(infos):
            for entry in self.of(info):
                rows.setdefault(entry.raw, [None] * len(infos))[n] = entry
        complete_rows = []
        for entries in rows.values():
            present = next(entry for entry in entries if entry is not None)
            complete_rows.append([entry if entry is not None else _zero(info, present)
                                  for entry, info in zip(entries, infos, strict=True)])

        def key(row: list[Entry]) -> tuple[object, ...]:
            first = order.position if order.position < len(row) else 0
            values = tuple(weight(row[(first + n) % len(row)]) for n in range(len(row)))
            keys = _keys_order(row[0], order)
            return (keys,) if order.by_key else (values, keys)

        for row in sorted(complete_rows, key=key, reverse=order.reverse):
            yield row[0].key, row


def _zero(info: AggregationInfo, like: Entry) -> Entry:
    return Entry(info, like.key, [0] * value_count(info), raw=like.raw, shape=like.shape)


# -- bar charts ------------------------------------------------------------------------------------

WIDTH = 40
ZOOM = 1 / 0.95
BLOCK = 0x2588


@dataclass(frozen=True)
class Scale:
    """Scale of the bars in a chart.

    :param total: the value that a full bar represents.
    :param positive: whether any value is positive.
    :param negative: whether any value is negative.
    :param utf8: whether to draw bars with Unicode block characters.
    """

    total: float
    positive: bool
    negative: bool
    utf8: bool = False

    @staticmethod
    def of(values: Sequence[int], zoom: bool, utf8: bool = False) -> "Scale":
        """Compute the scale for a chart's values.

        :param zoom: whether a full bar represents (about) the largest value instead of the sum.
        """
        total: float
        if zoom:
            total = max([abs(v) for v in values], default=0) * ZOOM
        else:
            total = sum(abs(v) for v in values)
        return Scale(total, any(v > 0 for v in values), any(v < 0 for v in values), utf8)

    def bar(self, value: int) -> str:
        """Return the bar of a value, padded to a fixed width: ``|@@@@      ``."""
        both = self.positive and self.negative
        length = WIDTH // 2 if both else WIDTH
        exact = length * abs(value) / self.total if self.total else 0.0
        filled = int(exact + 0.5)
        if both:
            if value <= 0:
                return " " * (length - filled) + "@" * filled + "|" + " " * length
            return " " * length + "|" + "@" * filled + " " * (length - filled)
        if self.negative:
            return " " * (length - filled) + "@" * filled + "|"
        if self.utf8:
            whole = int(exact)
            eighths = int((exact - whole) * 8)
            bar = chr(BLOCK) * whole + (chr(BLOCK + 8 - eighths) if eighths else "")
            return "|" + bar + " " * (length - len(bar))
        return "|" + "@" * filled + " " * (length - filled)


def rows(values: Sequence[int], kind: Aggregate) -> tuple[int, int]:
    """Return the indices of the first and last bucket to print for a distribution."""
    used = [n for n, value in enumerate(values) if value]
    last = len(values) - 1
    if kind is Aggregate.QUANTIZE and (not used or used[0] == last):
        return QUANTIZE_ZERO - 1, QUANTIZE_ZERO + 1
    if not used:
        return 0, min(2 if kind is Aggregate.LQUANTIZE else 1, last)
    return max(used[0] - 1, 0), min(used[-1] + 1, last)


def distribution(entry: Entry, zoom: bool = False, utf8: bool = False) -> str:
    """Format a distribution as a bar chart that begins on a new line."""
    heads = labels(entry)
    values = entry.values[: len(heads)]
    first, last = rows(values, entry.kind)
    scale = Scale.of(values[first : last + 1], zoom, utf8)
    out = [f"\n{'value':>16} {'------------- Distribution -------------':>41} {'count':<9}\n"]
    for n in range(first, last + 1):
        value = normalized(entry, n)
        out.append(f"{heads[n]:>16} {scale.bar(values[n])} {value:<9}\n")
    return "".join(out)


def symbol(value: int, total: float, ascii_only: bool) -> str:
    """Return the character that represents a bucket in the output of ``aggpack``."""
    if not value:
        return " "
    if value < 0:
        return "vvvvVV"[min(int(-value * 5 / total + 0.5), 5)]
    height = min(int(value * 7 / total + 0.5), 7)
    return "__xxxxXX"[height] if ascii_only else chr(0x2581 + height)
