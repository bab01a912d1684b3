"""Types of values, and the conversion of a value to another type."""

from dtrace.d.language import constants, syntax
from dtrace.d.language.errors import DError, SourcePlace
from dtrace.d.language.types import (
    DYNAMIC,
    assignable,
    compatible,
    is_integer,
    is_scalar,
    pointer_to,
    spelled,
)
from dwarf.types import Array, Type, strip


def typed(node: syntax.Expression, kind: Type) -> syntax.Expression:
    """Set the type of a node and return the node."""
    node.type = kind
    return node


def constant(place: SourcePlace, value: int, kind: Type) -> syntax.Number:
    """Return a number node for a value that is known at compile time."""
    node = syntax.Number(place, value)
    node.type = kind
    return node


def is_zero(node: syntax.Expression) -> bool:
    """Return whether an expression is the constant 0, which is also a null pointer."""
    return isinstance(node, syntax.Number) and node.value == 0


def fits(to: Type, value: syntax.Expression) -> bool:
    """Return whether a value may be assigned to an object of a type."""
    return assignable(to, value.kind, is_zero(value))


def converted(value: syntax.Expression, to: Type) -> syntax.Expression:
    """Return a scalar value converted to another type: truncated or extended."""
    if compatible(value.kind, to) or not is_scalar(to) or not is_scalar(value.kind):
        return value
    if isinstance(value, syntax.Number) and is_integer(to):
        return constant(
            value.place, constants.converted(value.value, value.kind, to), to)
    return typed(syntax.Cast(value.place, to, value), to)


def passed(value: syntax.Expression, to: Type) -> syntax.Expression:
    """Return an argument or a key converted to another type.

    A constant is converted at run time, too: one that was cast may not fit in its type.
    """
    if not (isinstance(value, syntax.Number) and is_scalar(to) and is_scalar(value.kind)):
        return converted(value, to)
    return typed(syntax.Cast(value.place, to, value), to)


def decayed(kind: Type) -> Type:
    """Return a pointer to an array's element type; return any other type unchanged."""
    stripped = strip(kind)
    return pointer_to(stripped.element) if isinstance(stripped, Array) else kind


def assigned_type(right: syntax.Expression) -> Type:
    """Return the type of a variable that an assignment creates."""
    if isinstance(right, syntax.Translated):
        return right.translator.to if not right.pointer else DYNAMIC
    return right.kind


def shown_type(value: syntax.Expression) -> str:
    """Return the name of a value's type for error messages."""
    if isinstance(value, syntax.AggregationUse):
        return "aggregation"
    if isinstance(value, syntax.Translated):
        return "pointer to translated data" if value.pointer else "translated data"
    return spelled(value.kind)


def incompatible(left: syntax.Expression, operator: str, right: syntax.Expression,
                 place: SourcePlace) -> DError:
    """Return the error for two operands whose types an operator cannot combine."""
    return DError("D_OP_INCOMPAT", f'operands have incompatible types: "{shown_type(left)}" '
                  f'{operator} "{shown_type(right)}"', place)
