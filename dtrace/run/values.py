"""What a record or an aggregation holds as values of Python: for JSON, pictures and programs."""

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
    """A string; bytes that are no UTF-8 are told apart as ``\\xff``."""
    return content.split(b"\0")[0].decode("utf-8", "backslashreplace")


def frames(content: bytes, symbols: Symbols) -> list[Value]:
    """The lines of a stack, inner ones first."""
    return [line.strip() for line in render.stack(content, symbols, 0).splitlines() if line.strip()]


def symbol(how: str, address: int, symbols: Symbols) -> str:
    """What ``mod()``, ``sym()`` and the like stand for."""
    return render.symbolic(how, address, symbols).strip()


def typed(content: bytes, kind: Type, bits: tuple[int, int] | None = None) -> Value:
    """A value by its type: a structure as its members (those of one without a name among its own),
    an array of char as its text where it has an end, an enumerator's name, a pointer as a number, a
    floating-point number that is none as its name.

    :param bits: of a bit-field: its first bit, and how many.
    """
    if is_string(kind):
        return text(content)
    found = strip(kind)
    match found:
        case Structure():
            return _members(content, found)
        case Array():
            size = width(found.element)
            element = strip(found.element)
            if isinstance(element, Integer) and element.encoding == "char" and b"\0" in content:
                return text(content)
            return [typed(content[n * size : (n + 1) * size], found.element)
                    for n in range(found.count or 0)]
        case Float() if len(content) in (4, 8):
            value = float(struct.unpack("<f" if len(content) == 4 else "<d", content)[0])
            return value if math.isfinite(value) else str(value)
    first, count = (0, 8 * len(content)) if bits is None else bits
    number = int.from_bytes(content, "little") >> first & (1 << count) - 1
    signed = number - (1 << count) if count and number >> count - 1 else number
    if isinstance(found, Enumeration):
        return next((name for name, n in found.values if n in (number, signed)), number)
    return signed if isinstance(found, Integer) and found.signed else number


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
    """:param offset: in bits."""
    at, size = offset // 8, width(kind)
    if bits is None:
        return typed(content[at : at + size], kind)
    first = offset % 8
    return typed(content[at : at + (first + bits + 7) // 8], kind, (first, bits))


def recorded(field: Field, content: bytes, symbols: Symbols) -> Value:
    """A field of a record."""
    if field.how in STACKS:
        return frames(content, symbols)
    if field.how != "value":
        return symbol(field.how, int.from_bytes(content, "little"), symbols)
    return typed(content, field.type)


def key(part: Part, kind: Type, symbols: Symbols) -> Value:
    """A part of a key."""
    if part.how in STACKS:
        return frames(part.content, symbols)
    if part.how != "value":
        return symbol(part.how, part.number, symbols)
    return text(part.content) if part.text else typed(part.content, kind)


def keys(entry: Entry, symbols: Symbols) -> list[Value]:
    """An entry's whole key."""
    assert entry.shape is not None
    return [key(part, kind, symbols)
            for part, (kind, _how, _size) in zip(entry.key, entry.shape.parts, strict=True)]


def buckets(entry: Entry, empty: bool = False) -> list[tuple[int | None, int]]:
    """Those of a distribution that are not empty: (lower bound, None below the first; count).

    :param empty: also the empty ones between the first and the last of these, and the one on either
        side, as DTrace prints them.
    """
    low = bounds(entry)
    below = entry.kind is not Aggregate.QUANTIZE
    counted = [n for n, value in enumerate(entry.values) if value]
    shown = (range(max(counted[0] - 1, 0), min(counted[-1] + 2, len(entry.values)))
             if empty and counted else counted)
    return [(None if below and not n else low[n], entry.values[n]) for n in shown]


def aggregated(entry: Entry, empty: bool = False) -> Value:
    """An entry's value: a number, or the buckets of a distribution.

    :param empty: as of ``buckets``.
    """
    if entry.kind in DISTRIBUTIONS:
        found: list[Value] = []
        for bound, count in buckets(entry, empty):
            bucket: dict[str, Value] = {"count": count}
            if bound is not None:
                bucket = {"from": bound, **bucket}
            found.append(bucket)
        return found
    return average(entry) if entry.kind is Aggregate.AVG else scalar(entry)


def all_recorded(fields: Sequence[Field], contents: Sequence[bytes], symbols: Symbols
                 ) -> list[Value]:
    return [recorded(f, content, symbols) for f, content in zip(fields, contents, strict=True)]
