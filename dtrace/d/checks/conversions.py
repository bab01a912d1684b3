"""What type a value has, and what it is taken as where another type is wanted."""

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
    """The node, which has its type now."""
    node.type = kind
    return node


def constant(place: SourcePlace, value: int, kind: Type) -> syntax.Number:
    """A number that is known before the program runs."""
    node = syntax.Number(place, value)
    node.type = kind
    return node


def is_zero(node: syntax.Expression) -> bool:
    """Whether it is the number that every pointer may be."""
    return isinstance(node, syntax.Number) and node.value == 0


def fits(to: Type, value: syntax.Expression) -> bool:
    """Whether a value may be assigned to what is of a type."""
    return assignable(to, value.kind, is_zero(value))


def converted(value: syntax.Expression, to: Type) -> syntax.Expression:
    """A value passed as another type: cut or extended to it."""
    if compatible(value.kind, to) or not is_scalar(to) or not is_scalar(value.kind):
        return value
    if isinstance(value, syntax.Number) and is_integer(to):
        return constant(
            value.place, constants.converted(value.value, value.kind, to), to)
    return typed(syntax.Cast(value.place, to, value), to)


def decayed(kind: Type) -> Type:
    """An array, as the pointer to its first element."""
    found = strip(kind)
    return pointer_to(found.element) if isinstance(found, Array) else kind


def assigned_type(right: syntax.Expression) -> Type:
    """The type that an assignment gives to a new variable."""
    if isinstance(right, syntax.Translated):
        return right.translator.to if not right.pointer else DYNAMIC
    return right.kind


def shown_type(value: syntax.Expression) -> str:
    """A type in a message; what is dynamic, by its name's kind."""
    if isinstance(value, syntax.AggregationUse):
        return "aggregation"
    if isinstance(value, syntax.Translated):
        return "pointer to translated data" if value.pointer else "translated data"
    return spelled(value.kind)


def incompatible(left: syntax.Expression, operator: str, right: syntax.Expression,
                 place: SourcePlace) -> DError:
    """Operands that an operator does not take together."""
    return DError("D_OP_INCOMPAT", f'operands have incompatible types: "{shown_type(left)}" '
                  f'{operator} "{shown_type(right)}"', place)
