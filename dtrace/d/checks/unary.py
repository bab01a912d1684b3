"""Checks of unary operators, ``sizeof`` and casts."""

from dtrace.d.checks.conversions import constant, shown_type, typed
from dtrace.d.checks.environment import Environment
from dtrace.d.checks.members import translated_values
from dtrace.d.checks.variables import assignment_target, symbol_of
from dtrace.d.language import constants, syntax
from dtrace.d.language.errors import DError, SourcePlace
from dtrace.d.language.identifiers import Scope
from dtrace.d.language.types import (
    DYNAMIC,
    INT,
    STRING,
    UNSIGNED_LONG,
    compatible,
    is_array,
    is_dynamic,
    is_integer,
    is_pointer,
    is_scalar,
    is_string,
    is_text,
    is_vague,
    is_void,
    pointed,
    pointer_to,
    spelled,
)
from dwarf.types import Array, Pointer, Procedure, Type, strip


def check_unary(env: Environment, node: syntax.Unary) -> syntax.Expression:
    """Check a unary expression and set its type; fold it if the operand is a constant.

    :raises DError: if the operator does not accept the operand.
    """
    operator, place = node.operator, node.place
    if operator in ("++", "--", "x++", "x--"):
        return _increment(env, node)
    if operator == "sizeof":
        return _sizeof_expression(env, node)
    literal = constants.is_literal(node.operand)
    operand = (symbol_of(env, node.operand, addressed=True)
               if operator == "&" and isinstance(node.operand, syntax.Name)
               and "`" in node.operand.name else env.check(node.operand))
    if isinstance(operand, syntax.VariableUse) and not operand.variable.known:
        v = operand.variable
        if v.scope is Scope.GLOBAL and v.keys is None:
            raise DError(
                "D_IDENT_UNDEF", f"failed to resolve {v.name}: Unknown variable name", place)
        if is_dynamic(v.type):
            v.type = env.unset
        v.known = True
        operand.type = v.type
    node.operand = operand
    if operator == "&":
        return _address(node, operand)
    if operator == "*":
        return _dereference(env, node, operand)
    if operator == "stringof":
        if isinstance(operand, syntax.Translated) or not (
                is_scalar(operand.kind) or is_pointer(operand.kind) or is_text(operand.kind)):
            raise DError("D_STRINGOF_TYPE", "cannot apply stringof to a value of type "
                         f"{shown_type(operand)}", place)
        return typed(node, STRING)
    kind = operand.kind
    if operator == "!":
        if not is_scalar(kind):
            raise DError(
                "D_OP_SCALAR", "operator ! requires an operand of scalar type", place)
        if isinstance(operand, syntax.Number):
            return constant(place, int(not operand.value), operand.kind if literal else INT)
        return typed(node, INT)
    if not is_integer(kind):
        word, tag = ("integral", "D_OP_INT") if operator == "~" else ("arithmetic",
                                                                      "D_OP_ARITH")
        raise DError(tag, f"operator {operator} requires an operand of {word} type", place)
    if isinstance(operand, syntax.Number):
        return constant(place, constants.unary(operator, operand.value, kind), kind)
    return typed(node, kind)


def _address(node: syntax.Unary, operand: syntax.Expression) -> syntax.Expression:
    place = node.place
    if isinstance(operand, syntax.VariableUse | syntax.AggregationUse):
        raise DError("D_ADDROF_VAR", "cannot take address of dynamic variable", place)
    if isinstance(operand, syntax.Translated) or is_dynamic(operand.kind):
        raise DError("D_ADDROF_VAR", "cannot take address of dynamic object", place)
    if isinstance(operand, syntax.ContextUse | syntax.HostedUse):
        raise DError("D_ADDROF_VAR", "cannot take address of dynamic variable", place)
    if isinstance(operand, syntax.Number) and operand.lvalue:
        return operand
    if not operand.lvalue:
        raise DError("D_ADDROF_LVAL", "unacceptable operand for unary & operator", place)
    if isinstance(operand, syntax.MemberUse) and operand.width is not None:
        raise DError("D_ADDROF_BITFIELD", "cannot take address of bit-field", place)
    return typed(node, pointer_to(operand.kind))


def _dereference(env: Environment, node: syntax.Unary, operand: syntax.Expression
                 ) -> syntax.Expression:
    place = node.place
    if isinstance(operand, syntax.Translated) and operand.pointer:
        structure = syntax.Translated(place, operand.translator, operand.operand, False)
        structure.values = translated_values(env, structure)
        return typed(structure, DYNAMIC)
    stripped = strip(operand.kind)
    if not isinstance(stripped, Pointer | Array):
        raise DError("D_DEREF_NONPTR", "cannot dereference non-pointer type", place)
    inner = pointed(stripped)
    if is_void(inner):
        raise DError("D_DEREF_VOID", "cannot dereference pointer to void", place)
    if isinstance(strip(inner), Procedure):
        raise DError("D_DEREF_FUNC", "cannot dereference pointer to function", place)
    node.lvalue = not is_array(inner)
    # As in DTrace, ``*(a + i)``, which is ``a[i]``, is writable if ``a`` is; the sum itself is not.
    base = operand.left if isinstance(operand, syntax.Binary) and operand.operator == "+" else None
    node.writable = operand.writable or (base is not None and base.writable)
    return typed(node, inner)


def _increment(env: Environment, node: syntax.Unary) -> syntax.Expression:
    place, shown = node.place, node.operator.lstrip("x")
    operand = assignment_target(env, node.operand, env.unset)
    kind = operand.kind
    if not is_scalar(kind):
        raise DError(
            "D_OP_SCALAR", f"operator {shown} requires operand of scalar type", place)
    if is_vague(kind):
        raise DError(
            "D_OP_VFPTR", f"operator {shown} requires an operand of known size", place)
    if not operand.lvalue:
        raise DError("D_OP_LVAL",
                     f"operator {shown} requires modifiable lvalue as an operand", place)
    if not operand.writable:
        raise DError("D_OP_WRITE",
                     f"operator {shown} can only be applied to a writable variable", place)
    node.operand, node.writable = operand, True
    return typed(node, kind)


def _sizeof_expression(env: Environment, node: syntax.Unary) -> syntax.Expression:
    if isinstance(node.operand, syntax.Text):
        return constant(node.place, len(node.operand.content) + 1, UNSIGNED_LONG)
    operand = env.check(node.operand)
    if isinstance(operand, syntax.VariableUse) and not operand.variable.known:
        if operand.variable.scope is Scope.GLOBAL and operand.variable.keys is None:
            raise DError("D_IDENT_UNDEF", f"failed to resolve {operand.variable.name}: Unknown "
                         "variable name", node.place)
        operand.variable.type, operand.variable.known = env.unset, True
        operand.type = env.unset
    if isinstance(operand, syntax.MemberUse) and operand.width is not None:
        raise DError(
            "D_SIZEOF_BITFIELD", "cannot apply sizeof to a bit-field", node.place)
    return check_sizeof(env, node.place, operand.kind)


def check_sizeof(env: Environment, place: SourcePlace, kind: Type) -> syntax.Expression:
    """Return the size of a type in bytes, as a constant of type ``size_t``.

    :raises DError: if the size is unknown.
    """
    size = env.universe.width(kind if is_string(kind) else env.complete(kind))
    if not size:
        raise DError(
            "D_SIZEOF_TYPE", "cannot apply sizeof to an operand of unknown size", place)
    return constant(place, size, _size_type(env))


def _size_type(env: Environment) -> Type:
    size_type = env.universe.own("size_t")
    assert size_type is not None
    return size_type


def check_cast(env: Environment, node: syntax.Cast) -> syntax.Expression:
    """Check a cast and set its type; fold it if it converts a constant to an integer type.

    :raises DError: if the value cannot be cast to the type.
    """
    to, operand = node.to, env.read(node.operand)
    given = operand.kind
    node.operand = operand
    legal = not is_dynamic(given) and (
        compatible(to, given) or is_void(to)
        or (is_scalar(to) and (is_scalar(given) or isinstance(strip(given), Procedure)))
        or (isinstance(strip(to), Pointer) and (is_pointer(given) or is_string(given)))
        or (is_string(to) and (is_scalar(given) or is_pointer(given) or is_text(given))))
    if not legal:
        raise DError("D_CAST_INVAL", f'invalid cast expression: "{shown_type(operand)}" to '
                     f'"{spelled(to)}"', node.place)
    if isinstance(operand, syntax.Number) and is_integer(to):
        return constant(
            node.place, constants.converted(operand.value, given, to), to)
    node.writable = isinstance(strip(to), Pointer)
    return typed(node, to)
