"""Checks of assignments: ``=``, ``+=`` and the other assignment operators."""

from dtrace.d.checks.aggregations import check_aggregate
from dtrace.d.checks.binary import INTEGRAL
from dtrace.d.checks.conversions import (
    assigned_type,
    constant,
    fits,
    incompatible,
    is_zero,
    shown_type,
    typed,
)
from dtrace.d.checks.environment import Environment
from dtrace.d.checks.members import translated_values
from dtrace.d.checks.variables import assignment_target, fresh_name
from dtrace.d.language import constants, syntax
from dtrace.d.language.errors import DError, SourcePlace
from dtrace.d.language.identifiers import Scope, Variable
from dtrace.d.language.types import (
    compatible,
    is_array,
    is_dynamic,
    is_integer,
    is_pointer,
    is_string,
    is_vague,
    is_void,
    pointers_compatible,
    spelled,
)
from dwarf.types import Procedure, strip


def check_assign(env: Environment, node: syntax.Assign) -> syntax.Expression:
    """Check an assignment and set its type; an unknown name on the left becomes a variable.

    :raises DError: if the value cannot be assigned to the left side.
    """
    if isinstance(node.left, syntax.Aggregation):
        return check_aggregate(env, node)
    if node.operator:
        return _modify(env, node)
    place = node.place
    fresh = fresh_name(env, node.left)
    if fresh is not None:
        with env.creating(fresh):
            right = env.read(node.right)
        kind = assigned_type(right)
        still_fresh = fresh_name(env, node.left)  # None if the right side has created the variable
        if still_fresh is None:
            left = env.check(node.left)
        else:
            if isinstance(strip(kind), Procedure) or is_array(kind):
                raise DError("D_OP_ARRFUN", "operator = may not be applied to operand of type "
                             f'"{spelled(kind)}"', place)
            if is_void(kind) or is_dynamic(kind):
                first = "scalar" if is_dynamic(kind) else "void"
                raise DError("D_OP_INCOMPAT", "operands have incompatible types: "
                             f'"{first}" = "{shown_type(right)}"', place)
            left = assignment_target(env, node.left, kind)
    else:
        left = env.check(node.left)
        right = env.read(node.right)
        kind = assigned_type(right)
        if isinstance(left, syntax.VariableUse) and not left.variable.known:
            if is_array(kind) or isinstance(strip(kind), Procedure):
                raise DError("D_OP_ARRFUN", "operator = may not be applied to operand of type "
                             f'"{spelled(kind)}"', place)
            if is_dynamic(left.variable.type):
                left.variable.type = kind
            left.variable.known = True
            left.type = left.variable.type
    node.left, node.right = left, right
    if is_array(left.kind) or isinstance(strip(left.kind), Procedure):
        raise DError("D_OP_ARRFUN", "operator = may not be applied to operand of type "
                     f'"{spelled(left.kind)}"', place)
    if isinstance(right, syntax.Translated):
        if not compatible(left.kind, kind):
            raise incompatible(left, "=", right, place)
        right.values = translated_values(env, right)
    elif not fits(left.kind, right) or is_void(right.kind):
        raise incompatible(left, "=", right, place)
    _writable(left, "=", place)
    node.right, node.writable = _held(left, right), True
    return typed(node, left.kind)


def _held(left: syntax.Expression, right: syntax.Expression) -> syntax.Expression:
    """Return the right side of an assignment; a constant is converted to the type on the left.

    As in DTrace, a narrower type takes the low bits as an unsigned number: ``v *= -1`` multiplies a
    variable of 8 bits by 255.
    """
    if not isinstance(right, syntax.Number):
        return right
    value = constants.converted(right.value, right.kind, left.kind)
    return constant(right.place, value, right.kind)


def _modify(env: Environment, node: syntax.Assign) -> syntax.Expression:
    place, operator = node.place, node.operator
    shown = f"{operator}="
    fresh = fresh_name(env, node.left)
    if operator in ("/", "%") and isinstance(node.right, syntax.Number) \
            and not node.right.value:
        raise DError("D_DIV_ZERO", "expression contains division by zero", place)
    if fresh is not None:
        env.new(Variable(fresh, Scope.GLOBAL, env.unset))
    left = env.check(node.left)
    if isinstance(left, syntax.VariableUse) and not left.variable.known:
        env.refuse_unset(left.variable.scope, left.variable.name, place)
    right = env.read(node.right)
    node.left, node.right = left, right
    both = is_integer(left.kind) and is_integer(right.kind)
    if operator in INTEGRAL and not both:
        raise DError("D_OP_INT", f"operator {shown} requires operands of integral type", place)
    if operator in ("*", "/") and not both:
        raise DError(
            "D_OP_ARITH", f"operator {shown} requires operands of arithmetic type", place)
    if operator in ("/", "%") and is_zero(right):
        raise DError("D_DIV_ZERO", "expression contains division by zero", place)
    if operator in ("+", "-") and not both:
        if is_string(left.kind) or is_string(right.kind):
            raise incompatible(left, shown, right, place)
        if not is_pointer(left.kind) or is_vague(left.kind):
            raise DError("D_OP_VFPTR", f"operator {shown} requires left-hand scalar operand of "
                         "known size", place)
        if not is_integer(right.kind) and not pointers_compatible(left.kind, right.kind):
            raise incompatible(left, shown, right, place)
    _writable(left, shown, place)
    node.right, node.writable = _held(left, right), True
    return typed(node, left.kind)


def _writable(left: syntax.Expression, operator: str, place: SourcePlace) -> None:
    if not left.lvalue:
        raise DError("D_OP_LVAL",
                     f"operator {operator} requires modifiable lvalue as an operand", place)
    if not left.writable:
        raise DError("D_OP_WRITE",
                     f"operator {operator} can only be applied to a writable variable", place)
