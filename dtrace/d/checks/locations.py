"""Conversion of DWARF locations to D expressions that read ``regs[]``, constants and memory."""

from collections.abc import Mapping

from dtrace.bpf.layout import ENTERED
from dtrace.d.language import syntax
from dtrace.d.language.errors import SourcePlace
from dtrace.d.language.identifiers import REGISTERS
from dtrace.d.language.types import INT, LONG, UNSIGNED_LONG, is_scalar, pointer_to, width
from dwarf.locations import Constant, Entered, Load, Operation, Pieces, Place, Register, Term
from dwarf.types import Integer, Type

MAX_PART = 8  # size of a register in bytes
UNSIGNED = {size: Integer("", size, False, "integer") for size in (1, 2, 4)} | {8: UNSIGNED_LONG}


class Unreadable(Exception):
    """Error for a value whose location cannot be expressed in D."""


def value(place: SourcePlace, where: Place, kind: Type, numbers: Mapping[int, int]
          ) -> syntax.Expression:
    """Return an expression for the value at a location; a structure's value is its address.

    :param numbers: the indexes in ``regs[]`` by DWARF register number.
    :raises Unreadable: if the value cannot be expressed.
    """
    if isinstance(where, Pieces):
        return _pieces(place, where, kind, numbers)
    term = _term(place, where.term, numbers)
    if not is_scalar(kind):
        if not where.memory:
            size = width(kind)
            if not 0 < size <= MAX_PART:
                raise Unreadable
            return syntax.Assembled(place, [(term, size)])
        return term
    if where.memory:
        return _at(place, term, kind)
    return _typed(syntax.Cast(place, kind, term), kind)


def _pieces(place: SourcePlace, where: Pieces, kind: Type, numbers: Mapping[int, int]
            ) -> syntax.Expression:
    parts = [(_term(place, term, numbers), size) for term, size in where.parts]
    known = sum(size for _part, size in parts)
    if known < width(kind):
        raise Unreadable  # the debug data describes only a part of the value
    if not is_scalar(kind):
        return syntax.Assembled(place, parts)
    if known > MAX_PART:
        raise Unreadable
    combined: syntax.Expression = _typed(syntax.Number(place, 0), UNSIGNED_LONG)
    shift = 0
    for part, size in parts:
        low = _typed(syntax.Cast(place, UNSIGNED[size], part), UNSIGNED[size])
        wide = _typed(syntax.Cast(place, UNSIGNED_LONG, low), UNSIGNED_LONG)
        amount = _typed(syntax.Number(place, 8 * shift), INT)
        moved = _typed(syntax.Binary(place, "<<", wide, amount), UNSIGNED_LONG)
        combined = _typed(syntax.Binary(place, "|", combined, moved), UNSIGNED_LONG)
        shift += size
    return _typed(syntax.Cast(place, kind, combined), kind)


def _typed(node: syntax.Expression, kind: Type) -> syntax.Expression:
    node.type = kind
    return node


def _at(place: SourcePlace, address: syntax.Expression, kind: Type) -> syntax.Expression:
    pointer = pointer_to(kind)
    cast = _typed(syntax.Cast(place, pointer, address), pointer)
    return _typed(syntax.Unary(place, "*", cast), kind)


def _term(place: SourcePlace, term: Term, numbers: Mapping[int, int]) -> syntax.Expression:
    match term:
        case Constant(value=number):
            signed = number - (1 << 64) if number >> 63 else number
            return _typed(syntax.Number(place, signed), UNSIGNED_LONG)
        case Entered(number=number):
            index = _typed(syntax.Number(place, number), INT)
            return _typed(syntax.HostedUse(place, "entered", ENTERED, index), UNSIGNED_LONG)
        case Register(number=number):
            if number not in numbers:
                raise Unreadable
            index = _typed(syntax.Number(place, numbers[number]), INT)
            return _typed(syntax.HostedUse(place, "regs", REGISTERS["regs"], index), UNSIGNED_LONG)
        case Load(address=address, size=size):
            loaded = _at(place, _term(place, address, numbers), UNSIGNED[size])
            return _typed(syntax.Cast(place, UNSIGNED_LONG, loaded), UNSIGNED_LONG)
        case Operation(operator=operator, signed=signed):
            kind = LONG if signed else UNSIGNED_LONG
            left, right = (_typed(syntax.Cast(place, kind, _term(place, t, numbers)), kind)
                           for t in (term.left, term.right))
            return _typed(syntax.Binary(place, operator, left, right), kind)
