"""Integer constants: their types, and the values of constant expressions."""

from collections.abc import Callable

from dtrace.bpf.interpreter import divide
from dtrace.d.language import syntax
from dtrace.d.language.errors import DError, SourcePlace
from dtrace.d.language.types import (
    INT,
    LONG,
    LONG_LONG,
    UNSIGNED_INT,
    UNSIGNED_LONG,
    UNSIGNED_LONG_LONG,
    Universe,
    arithmetic,
    is_integer,
    is_signed,
    width,
)
from dwarf.types import Integer, Structure, Type, find_member, strip

MASK = (1 << 64) - 1

_LADDER: tuple[Integer, ...] = (
    INT, UNSIGNED_INT, LONG, UNSIGNED_LONG, LONG_LONG, UNSIGNED_LONG_LONG)


def number_type(node: syntax.Number) -> Type:
    """Return the first type that can hold a constant, starting with the one its suffix selects.

    :raises DError: if no type can hold it.
    """
    if node.type is not None:
        return node.type
    suffix = node.suffix
    start = suffix.lower().count("u") + 2 * suffix.lower().count("l")
    step = 2 if node.decimal or suffix[:1] == "u" else 1
    for kind in _LADDER[start::step]:
        if node.value < 1 << (8 * kind.size - kind.signed):
            return kind
    raise DError("D_INT_OFLOW", f"integer constant {node.value:#x} cannot be represented in any "
                 "built-in integral type", node.place)


def wrap(value: int, kind: Type) -> int:
    """Reduce a value to the range of an integer type, as an assignment does."""
    bits = 8 * (width(kind) or 8)
    value &= (1 << bits) - 1
    return value - (1 << bits) if is_signed(kind) and value >> bits - 1 else value


OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y,
    "/": divide, "%": lambda x, y: x - divide(x, y) * y,
    "&": lambda x, y: x & y, "|": lambda x, y: x | y, "^": lambda x, y: x ^ y,
    "<<": lambda x, y: x << (y & 63), ">>": lambda x, y: (x & MASK) >> (y & 63),
    "==": lambda x, y: x == y, "!=": lambda x, y: x != y, "<": lambda x, y: x < y,
    ">": lambda x, y: x > y, "<=": lambda x, y: x <= y, ">=": lambda x, y: x >= y,
    "&&": lambda x, y: bool(x and y), "||": lambda x, y: bool(x or y),
    "^^": lambda x, y: bool(x) != bool(y),
}
COMPARISONS = ("==", "!=", "<", ">", "<=", ">=", "&&", "||", "^^")


def fold(operator: str, left: int, first: Type, right: int, second: Type, place: SourcePlace
         ) -> tuple[int, Type]:
    """Return the value and the type of an operation on two constants.

    The value has 64 bits: it is not reduced to the range of the type.

    :raises DError: for a division by zero.
    """
    if operator in ("/", "%") and right == 0:
        raise DError("D_DIV_ZERO", "expression contains division by zero", place)
    kind = first if operator in ("<<", ">>") else arithmetic(first, second)
    bits = LONG if is_signed(kind) else UNSIGNED_LONG
    value = OPERATIONS[operator](wrap(left, bits), wrap(right, bits))
    if operator in COMPARISONS:
        return int(value), INT
    return wrap(value, bits), kind


def converted(value: int, kind: Type, to: Type) -> int:
    """Convert a constant to an integer type.

    A narrower type takes its low bits as an unsigned number; a wider one extends a signed constant
    by its sign, and takes the low bits of an unsigned one.
    """
    size, wanted = width(kind) or 8, width(to) or 8
    if wanted < size:
        return value & (1 << 8 * wanted) - 1
    if wanted > size and is_signed(kind):
        return wrap(value, kind) & (1 << 8 * wanted) - 1 if wanted < 8 else wrap(value, kind)
    return value & (1 << 8 * size) - 1 if wanted > size else value


def unary(operator: str, value: int, kind: Type) -> int:
    """Return the value of ``-``, ``+`` or ``~`` applied to a constant."""
    if operator == "-":
        return wrap(-value, kind if not is_signed(kind) else LONG)
    return wrap(~value if operator == "~" else value,
                LONG if is_signed(kind) else UNSIGNED_LONG)


def is_literal(node: syntax.Expression) -> bool:
    """Return whether an expression consists of literal numbers and sizes only.

    Such an expression has a value before the names of the program are known.
    """
    match node:
        case syntax.Number() | syntax.SizeOf() | syntax.OffsetOf():
            return True
        case syntax.Unary(operator="-" | "+" | "~" | "!", operand=operand):
            return is_literal(operand)
        case syntax.Binary(operator=operator, left=left, right=right) if operator in OPERATIONS:
            return is_literal(left) and is_literal(right)
        case syntax.Ternary(condition=condition, then=then, otherwise=otherwise):
            if not is_literal(condition):
                return False
            value, _kind = _value(condition, Universe())
            return is_literal(then if value else otherwise)
        case syntax.Cast(to=to, operand=operand):
            return is_integer(to) and is_literal(operand)
    return False


class _NoConstant(Exception):
    """Error raised if a part of an expression is known only at run time."""


def _value(node: syntax.Expression, universe: Universe) -> tuple[int, Type]:
    match node:
        case syntax.Number():
            return node.value, number_type(node)
        case syntax.Name(name=name):
            constant = universe.enumerator(name)
            if constant is None:
                raise _NoConstant
            return constant
        case syntax.SizeOf(of=of):
            return width(of), UNSIGNED_LONG
        case syntax.OffsetOf(of=of, member=name):
            inner = strip(of)
            member = find_member(inner, name) if isinstance(inner, Structure) else None
            if member is None or member.width is not None:
                raise _NoConstant
            return member.offset // 8, UNSIGNED_LONG
        case syntax.Unary(operator="-" | "+" | "~" | "!" as operator, operand=operand):
            value, kind = _value(operand, universe)
            if operator == "!":
                return int(not value), INT
            return unary(operator, value, kind), kind
        case syntax.Binary(operator=operator, left=left, right=right) if operator in OPERATIONS:
            value, first = _value(left, universe)
            other, second = _value(right, universe)
            return fold(operator, value, first, other, second, node.place)
        case syntax.Ternary(condition=condition, then=then, otherwise=otherwise):
            value, _kind = _value(condition, universe)
            return _value(then if value else otherwise, universe)
        case syntax.Cast(to=to, operand=operand) if is_integer(to):
            value, _kind = _value(operand, universe)
            return converted(value, _kind, to), to
    raise _NoConstant


def integer(node: syntax.Expression, universe: Universe, tag: str, text: str) -> int:
    """Return the value of an integral constant expression.

    :raises DError: with ``tag`` and ``text``, if the expression is not constant.
    """
    try:
        return _value(node, universe)[0]
    except _NoConstant:
        raise DError(tag, text, node.place) from None
