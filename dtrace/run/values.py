"""Conversion of records and aggregations to Python values, for JSON, charts and programs."""

import math
import struct
from collections.abc import Sequence

from dtrace.bpf.layout import Aggregate
from dtrace.d.compile.actions import STACKS
from dtrace.d.compile.records import Field
from dtrace.d.language.types import is_string, width
from dtrace.run import render
from dtrace.run.aggregations import Entry, Part, average, bounds, scalar
from dtrace.run.render import Symbols
from dwarf.types import Array, Enumeration, Float, Integer, Structure, Type, strip

Value = int | float | str | list["Value"] | dict[str, "Value"]
DISTRIBUTIONS = (Aggregate.QUANTIZE, Aggregate.LQUANTIZE, Aggregate.LLQUANTIZE)


def text(content: bytes) -> str:
    """Decode a string; bytes that are not valid UTF-8 become escapes such as ``\\xff``."""
    return content.split(b"\0")[0].decode("utf-8", "backslashreplace")


def frames(content: bytes, symbols: Symbols) -> list[Value]:
    """Return the lines of a recorded stack, innermost frame first."""
    return [line.strip() for line in render.stack(content, symbols, 0).splitlines() if line.strip()]


def symbol(how: str, address: int, symbols: Symbols) -> str:
    """Return the name of an address in the output format of ``mod()``, ``sym()`` and so on."""
    return render.symbolic(how, address, symbols).strip()


def typed(content: bytes, kind: Type, bits: tuple[int, int] | None = None) -> Value:
    """Convert a value to a Python value according to its D type.

    A structure becomes a dictionary, which includes the members of its unnamed structures. An array
    of char becomes a string if it contains a NUL. An enumerator is represented by its name, a
    pointer by a number, and a floating-point number that is not finite by its name.

    :param bits: first bit and width of a bit-field.
    """
    if is_string(kind):
        return text(content)
    base = strip(kind)
    match base:
        case Structure():
            return _members(content, base)
        case Array():
            size = width(base.element)
            element = strip(base.element)
            if isinstance(element, Integer) and element.encoding == "char" and b"\0" in content:
                return text(content)
            return [typed(content[n * size : (n + 1) * size], base.element)
                    for n in range(base.count or 0)]
        case Float() if len(content) in (4, 8):
            value = float(struct.unpack("<f" if len(content) == 4 else "<d", content)[0])
            return value if math.isfinite(value) else str(value)
    first, count = (0, 8 * len(content)) if bits is None else bits
    number = int.from_bytes(content, "little") >> first & (1 << count) - 1
    signed = number - (1 << count) if count and number >> count - 1 else number
    if isinstance(base, Enumeration):
        return next((name for name, n in base.values if n in (number, signed)), number)
    return signed if isinstance(base, Integer) and base.signed else number


def _members(content: bytes, kind: Structure) -> dict[str, Value]:
    out: dict[str, Value] = {}
    for member in kind.members:
        value = _member(content, member.offset, member.width, member.type)
        if member.name:
            out[member.name] = value
        elif isinstance(value, dict):
            out |= value
    return out


def _member(content: bytes, offset: int, bits: int | None, kind: Type) -> Value:
    """Convert a member of a structure to a Python value.

    :param offset: offset of the member in bits.
    :param bits: width of a bit-field, or None for any other member.
    """
    at, size = offset // 8, width(kind)
    if bits is None:
        return typed(content[at : at + size], kind)
    first = offset % 8
    return typed(content[at : at + (first + bits + 7) // 8], kind, (first, bits))


def recorded(field: Field, content: bytes, symbols: Symbols) -> Value:
    """Convert a field of a record to a Python value."""
    if field.how in STACKS:
        return frames(content, symbols)
    if field.how != "value":
        return symbol(field.how, int.from_bytes(content, "little"), symbols)
    return typed(content, field.type)


def key(part: Part, kind: Type, symbols: Symbols) -> Value:
    """Convert one element of an aggregation's key to a Python value."""
    if part.how in STACKS:
        return frames(part.content, symbols)
    if part.how != "value":
        return symbol(part.how, part.number, symbols)
    return text(part.content) if part.text else typed(part.content, kind)


def keys(entry: Entry, symbols: Symbols) -> list[Value]:
    """Convert the key of an aggregation's entry to Python values."""
    assert entry.shape is not None
    return [key(part, kind, symbols)
            for part, (kind, _how, _size) in zip(entry.key, entry.shape.parts, strict=True)]


def buckets(entry: Entry, empty: bool = False) -> list[tuple[int | None, int]]:
    """Return the lower bound and the count of each non-empty bucket of a distribution.

    The lower bound of the underflow bucket of ``lquantize()`` and ``llquantize()`` is None.

    :param empty: whether to include the empty buckets between the first and the last of these, and
        one on either side, as DTrace prints them.
    """
    low = bounds(entry)
    below = entry.kind is not Aggregate.QUANTIZE
    counted = [n for n, value in enumerate(entry.values) if value]
    shown = (range(max(counted[0] - 1, 0), min(counted[-1] + 2, len(entry.values)))
             if empty and counted else counted)
    return [(None if below and not n else low[n], entry.values[n]) for n in shown]


def aggregated(entry: Entry, empty: bool = False) -> Value:
    """Convert an aggregation's entry to a number or, for a distribution, to its buckets.

    :param empty: see ``buckets``.
    """
    if entry.kind in DISTRIBUTIONS:
        converted: list[Value] = []
        for bound, count in buckets(entry, empty):
            bucket: dict[str, Value] = {"count": count}
            if bound is not None:
                bucket = {"from": bound, **bucket}
            converted.append(bucket)
        return converted
    return average(entry) if entry.kind is Aggregate.AVG else scalar(entry)


def all_recorded(fields: Sequence[Field], contents: Sequence[bytes], symbols: Symbols
                 ) -> list[Value]:
    """Convert all fields of a record to Python values."""
    return [recorded(f, content, symbols) for f, content in zip(fields, contents, strict=True)]
