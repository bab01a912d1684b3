"""Checks of structure members, ``offsetof`` and ``xlate``."""

from dtrace.d.checks.conversions import constant, converted, typed
from dtrace.d.checks.environment import Environment
from dtrace.d.checks.probe_arguments import local_variable
from dtrace.d.checks.translators import translation
from dtrace.d.checks.variables import scoped_variable
from dtrace.d.language import syntax
from dtrace.d.language.errors import DError
from dtrace.d.language.identifiers import Scope
from dtrace.d.language.types import INT, is_array, pointed, spelled
from dwarf.types import (
    Incomplete,
    Member,
    Pointer,
    Procedure,
    Structure,
    find_member,
    strip,
)

LOCALS = "local"  # not in FreeBSD, where a program can define a variable of this name


def check_member(env: Environment, node: syntax.MemberAccess) -> syntax.Expression:
    """Check a member access: ``base.name`` or ``base->name``.

    The base may be ``self``, ``this``, or ``local``, the variables of the probed code.

    :raises DError: if the base has no such member.
    """
    place, name = node.place, node.name
    if isinstance(node.base, syntax.Name) and node.arrow and node.base.name in (
            "self", "this") and node.base.name not in env.bound:
        return scoped_variable(env, node, Scope.THREAD if node.base.name == "self" else Scope.LOCAL)
    if isinstance(node.base, syntax.Name) and node.arrow and node.base.name == LOCALS and not (
            LOCALS in env.bound or env.knows(LOCALS)):
        return local_variable(env, place, name)
    base = env.read(node.base)
    operator = "->" if node.arrow else "."
    if isinstance(base, syntax.Translated):
        return _translated_member(env, base, node)
    if node.arrow:
        if not isinstance(strip(base.kind), Pointer):  # nor does an array decay here
            raise DError("D_OP_PTR", f"operator {operator} must be applied to a pointer", place)
        holder = env.complete(pointed(base.kind))
    else:
        holder = env.complete(base.kind)
    if isinstance(holder, Incomplete):
        raise DError("D_OP_INCOMPLETE", f"operator {operator} cannot be applied to a forward "
                     f"declaration: no {spelled(holder)} definition is available", place)
    if not isinstance(holder, Structure):
        what = "pointer to type" if node.arrow else "type"
        end = " pointer" if node.arrow else ""
        named = strip(pointed(holder))
        shown = (f"{spelled(named.result)} (*)()" if isinstance(named, Procedure)
                 else spelled(holder))
        raise DError("D_OP_SOU", f'operator {operator} cannot be applied to {what} '
                     f'"{shown}"; must be applied to a struct or union{end}', place)
    member = find_member(holder, name)
    if member is None:
        raise DError("D_TYPE_MEMBER", f"{name} is not a member of {spelled(holder)}", place)
    use = syntax.MemberUse(place, base, member.offset, member.width, name)
    use.lvalue = (node.arrow or base.lvalue) and not is_array(member.type)
    use.writable = base.writable
    return typed(use, member.type)


def check_offsetof(env: Environment, node: syntax.OffsetOf) -> syntax.Expression:
    """Return the offset of a member as a constant, in bytes.

    :raises DError: if the structure has no such member, or the member is a bit-field.
    """
    holder = env.complete(node.of)
    if not isinstance(holder, Structure):
        raise DError("D_OFFSETOF_TYPE", "offsetof operand must be a struct or union type",
                     node.place)
    member = find_member(holder, node.member)
    if member is None:
        raise DError("D_UNKNOWN", f"failed to determine offset of {node.member}: Invalid "
                     "member name", node.place)
    if member.width is not None:
        raise DError("D_OFFSETOF_BITFIELD",
                     f"cannot take offset of a bit-field: {node.member}", node.place)
    return constant(node.place, member.offset // 8, INT)


def check_translate(env: Environment, node: syntax.Translate) -> syntax.Expression:
    """Find the translator for ``xlate<type>(operand)``; members are checked where they are used.

    :raises DError: if no translator between the types exists.
    """
    return translation(env, node.place, node.to, env.read(node.operand))


def translated_values(env: Environment, node: syntax.Translated
                      ) -> list[tuple[Member, syntax.Expression]]:
    """Return (member, value) pairs of a translated structure, for assigning the whole structure."""
    to = env.complete(node.translator.to)
    assert isinstance(to, Structure)
    values = []
    for name, _value, place in node.translator.members:
        member = find_member(to, name)
        assert member is not None
        values.append((member, _translated_member(
            env, node, syntax.MemberAccess(place, node, False, name))))
    return values


def _translated_member(env: Environment, base: syntax.Translated, node: syntax.MemberAccess
                       ) -> syntax.Expression:
    translator = base.translator
    for name, value, _place in translator.members:
        if name == node.name:
            to = env.complete(translator.to)
            assert isinstance(to, Structure)
            member = find_member(to, name)
            assert member is not None
            with env.expansion(f"the translation of {name}", "translators are",
                               {translator.parameter: base.operand}, node.place):
                return converted(env.read(syntax.clone(value)), member.type)
    raise DError("D_XLATE_NOCONV", "translator does not define conversion for member: "
                 f"{node.name}", node.place)
