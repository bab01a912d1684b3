"""Where a compiler keeps a value, as an expression of D: of ``regs[]``, numbers and memory."""

from collections.abc import Mapping

from dtrace.d import syntax
from dtrace.d.errors import SourcePlace
from dtrace.d.identifiers import REGISTERS
from dtrace.d.types import INT, LONG, UNSIGNED_LONG, is_scalar, pointer_to
from dwarf.locations import Constant, Load, Location, Operation, Register, Term
from dwarf.types import Integer, Type

UNSIGNED = {size: Integer("", size, False, "integer") for size in (1, 2, 4)} | {8: UNSIGNED_LONG}


class Unreadable(Exception):
    """A register that ``regs[]`` does not have, or a structure in registers."""


def value(place: SourcePlace, location: Location, kind: Type, numbers: Mapping[int, int]
          ) -> syntax.Expression:
    """A value of a type; of a structure, its address.

    :param numbers: of registers in ``regs[]``, by DWARF's.
    :raises Unreadable: when it cannot be had.
    """
    found = _term(place, location.term, numbers)
    if not is_scalar(kind):
        if not location.memory:
            raise Unreadable
        return found
    if location.memory:
        return _at(place, found, kind)
    return _typed(syntax.Cast(place, kind, found), kind)


def _typed(node: syntax.Expression, kind: Type) -> syntax.Expression:
    node.type = kind
    return node


def _at(place: SourcePlace, address: syntax.Expression, kind: Type) -> syntax.Expression:
    pointer = pointer_to(kind)
    whole = _typed(syntax.Cast(place, pointer, address), pointer)
    return _typed(syntax.Unary(place, "*", whole), kind)


def _term(place: SourcePlace, term: Term, numbers: Mapping[int, int]) -> syntax.Expression:
    match term:
        case Constant(value=number):
            signed = number - (1 << 64) if number >> 63 else number
            return _typed(syntax.Number(place, signed), UNSIGNED_LONG)
        case Register(number=number):
            if number not in numbers:
                raise Unreadable
            index = _typed(syntax.Number(place, numbers[number]), INT)
            return _typed(syntax.HostedUse(place, "regs", REGISTERS["regs"], index), UNSIGNED_LONG)
        case Load(address=address, size=size):
            found = _at(place, _term(place, address, numbers), UNSIGNED[size])
            return _typed(syntax.Cast(place, UNSIGNED_LONG, found), UNSIGNED_LONG)
        case Operation(operator=operator, signed=signed):
            kind = LONG if signed else UNSIGNED_LONG
            left, right = (_typed(syntax.Cast(place, kind, _term(place, t, numbers)), kind)
                           for t in (term.left, term.right))
            return _typed(syntax.Binary(place, operator, left, right), kind)
