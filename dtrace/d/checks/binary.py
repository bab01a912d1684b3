"""Checks of the binary operators and the conditional operator ``?:``."""

from dtrace.d.checks.conversions import constant, decayed, incompatible, is_zero, typed
from dtrace.d.checks.environment import Environment
from dtrace.d.language import constants, syntax
from dtrace.d.language.errors import DError
from dtrace.d.language.identifiers import Role, Scope
from dtrace.d.language.types import (
    INT,
    STRING,
    arithmetic,
    compatible,
    is_dynamic,
    is_indirect,
    is_integer,
    is_pointer,
    is_scalar,
    is_string,
    is_text,
    is_vague,
    is_void,
    pointed,
    pointers_compatible,
    spelled,
)
from dwarf.types import Enumeration, Type, strip

INTEGRAL = ("&", "^", "|", "<<", ">>", "%")
LOGICAL = ("&&", "||", "^^")
RELATIONS = ("==", "!=", "<", ">", "<=", ">=")


def check_binary(env: Environment, node: syntax.Binary) -> syntax.Expression:
    """Check a binary expression and set its type; fold it if both operands are constants.

    :raises DError: if the operator does not accept operands of these types.
    """
    operator, place = node.operator, node.place
    if operator in ("/", "%") and isinstance(node.right, syntax.Number) \
            and not node.right.value:
        raise DError("D_DIV_ZERO", "expression contains division by zero", place)
    left = node.left = env.read(node.left)
    right = node.right = env.read(_enumerated(env, node, left))
    if operator == ",":
        return _comma(node)
    both = is_integer(left.kind) and is_integer(right.kind)
    if both and isinstance(left, syntax.Number) and isinstance(right, syntax.Number):
        value, kind = constants.fold(
            operator, left.value, left.kind, right.value, right.kind, place)
        return constant(place, value, kind)
    if operator in ("/", "%") and is_zero(right):
        raise DError("D_DIV_ZERO", "expression contains division by zero", place)
    if operator in INTEGRAL:
        if not both:
            raise DError("D_OP_INT", f"operator {operator} requires operands of integral type",
                         place)
        return typed(node, left.kind if operator in ("<<", ">>")
                     else arithmetic(left.kind, right.kind))
    if operator in ("*", "/"):
        if not both:
            raise DError(
                "D_OP_ARITH", f"operator {operator} requires operands of arithmetic type",
                place)
        return typed(node, arithmetic(left.kind, right.kind))
    if operator in LOGICAL:
        if not (is_scalar(left.kind) and is_scalar(right.kind)):
            raise DError("D_OP_SCALAR",
                         f"operator {operator} requires operands of scalar type", place)
        return typed(node, INT)
    if operator in RELATIONS:
        if not _comparable(left, right):
            raise incompatible(left, operator, right, place)
        return typed(node, INT)
    return _additive(env, node, left, right)


def _enumerated(env: Environment, node: syntax.Binary, left: syntax.Expression
                ) -> syntax.Expression:
    """Return the right operand; resolve it as an enumerator if the left is an enumeration."""
    right = node.right
    kind = strip(left.kind)
    if node.operator in RELATIONS and isinstance(kind, Enumeration) and isinstance(
            right, syntax.Name):
        for name, value in kind.values:
            if name == right.name:
                variable = env.variables.get((Scope.GLOBAL, name))
                if variable is not None:
                    raise DError("D_IDENT_AMBIG", f"ambiguous use of operator {node.operator}: "
                                 f"{name} is both a {spelled(left.kind)} enum tag and a global "
                                 f"{variable.kind}", node.place)
                return constant(right.place, value, left.kind)
    return right


def _comma(node: syntax.Binary) -> syntax.Expression:
    for side in (node.left, node.right):
        if isinstance(side, syntax.FunctionCall) and side.function.role is not \
                Role.SUBROUTINE and not is_dynamic(side.kind):
            raise DError("D_OP_ACT", "operator , operands cannot be actions", node.place)
        if is_dynamic(side.kind):
            raise DError(
                "D_OP_DYN", "operator , operands cannot be of dynamic type", node.place)
    node.writable = node.right.writable
    return typed(node, node.right.kind)


def _comparable(left: syntax.Expression, right: syntax.Expression) -> bool:
    first, second = left.kind, right.kind
    if is_dynamic(first) or is_dynamic(second):
        return False
    if compatible(first, second) and not is_void(first):
        return True
    if is_integer(first) and is_integer(second):
        return True
    if is_text(first) and is_text(second) and (is_string(first) or is_string(second)):
        return True
    if is_indirect(first) and is_integer(second):
        return is_zero(right)
    if is_integer(first) and is_indirect(second):
        return is_zero(left)
    return pointers_compatible(first, second)


def _additive(env: Environment, node: syntax.Binary, left: syntax.Expression,
              right: syntax.Expression) -> syntax.Expression:
    def counts(kind: Type) -> bool:
        return is_string(kind) or (is_pointer(kind) and not is_vague(kind))

    first, second = left.kind, right.kind
    if not (is_dynamic(first) or is_dynamic(second)):
        if is_integer(first) and is_integer(second):
            return typed(node, arithmetic(first, second))
        if counts(first) and is_integer(second):
            return typed(node, first if is_string(first) else decayed(first))
        if node.operator == "+" and is_integer(first) and counts(second):
            return typed(node, second if is_string(second) else decayed(second))
        if node.operator == "-" and counts(first) and counts(second) and pointers_compatible(
                decayed(first), decayed(second)):
            difference = env.universe.own("ptrdiff_t")
            assert difference is not None
            return typed(node, difference)
    raise incompatible(left, node.operator, right, node.place)


def check_ternary(env: Environment, node: syntax.Ternary) -> syntax.Expression:
    """Check a conditional expression and set its type.

    If the condition is a constant, return the operand that it selects.

    :raises DError: if the operands have no common type.
    """
    place = node.place
    condition = env.read(node.condition)
    if isinstance(condition, syntax.Number):
        return env.read(node.then if condition.value else node.otherwise)
    then, otherwise = env.read(node.then), env.read(node.otherwise)
    node.condition, node.then, node.otherwise = condition, then, otherwise
    if not is_scalar(condition.kind):
        raise DError(
            "D_OP_SCALAR", "operator ?: expression must be of scalar type", place)
    if is_dynamic(then.kind) or is_dynamic(otherwise.kind):
        raise DError("D_OP_DYN", "operator ?: operands cannot be of dynamic type", place)
    first, second = then.kind, otherwise.kind
    kind: Type
    if compatible(first, second):
        kind = first
    elif is_integer(first) and is_integer(second):
        kind = arithmetic(first, second)
    elif is_text(first) and is_text(second) and (is_string(first) or is_string(second)):
        kind = STRING
    elif is_indirect(first) and is_integer(second) and is_zero(otherwise):
        kind = first
    elif is_integer(first) and is_indirect(second) and is_zero(then):
        kind = second
    elif pointers_compatible(first, second):
        kind = second if is_void(pointed(first)) else first
    else:
        raise DError(
            "D_OP_INCOMPAT", "operator ?: operands must have compatible types", place)
    for side in (then, otherwise):
        if isinstance(side, syntax.FunctionCall) and side.function.role is Role.ACTION:
            raise DError(
                "D_OP_ACT", "action cannot be used in a conditional context", place)
    return typed(node, kind)
