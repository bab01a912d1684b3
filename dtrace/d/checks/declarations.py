"""Checks of declarations: variables, inlines and translators."""

from dtrace.d.checks.conversions import assigned_type, fits
from dtrace.d.checks.environment import Environment
from dtrace.d.language import syntax
from dtrace.d.language.errors import DError
from dtrace.d.language.identifiers import CONTEXT, FUNCTIONS, HOSTED, Scope, Variable
from dtrace.d.language.types import compatible, is_undefined, is_void, pointer_to, spelled
from dwarf.types import Incomplete, Procedure, Structure, find_member, strip


def declare(env: Environment, node: syntax.Declaration) -> None:
    """Declare a variable, or an external object (``extern``).

    :raises DError: if the name is already in use, or a variable cannot have this type.
    """
    name, kind, place = node.name, node.type, node.place
    if node.storage == "extern" or isinstance(strip(kind), Procedure):
        _extern(env, node)
        return
    scope = {"self": Scope.THREAD, "this": Scope.LOCAL}.get(node.storage, Scope.GLOBAL)
    if scope is Scope.GLOBAL and env.builtin(name) and name not in env.hidden:
        raise DError("D_DECL_IDRED", f"built-in identifier redeclared: {name}", place)
    if env.universe.own(name) is not None:
        raise DError("D_DECL_IDRED", f"typedef identifier redeclared: {name}", place)
    if scope is Scope.LOCAL and node.keys is not None:
        raise DError("D_DECL_LOCASSC", "associative arrays may not be declared as local "
                     f"variables: {name}", place)
    if scope is Scope.GLOBAL and (name in env.inlines
                                  or env.universe.enumerator(name) is not None):
        raise DError("D_DECL_IDRED", f"identifier redeclared: {name}", place)
    known = env.variables.get((scope, name))
    if known is not None:
        _redeclared(known, node)
        return
    if is_void(kind):
        raise DError("D_DECL_VOIDOBJ", f"cannot have void object: {name}", place)
    if is_undefined(kind):
        raise DError(
            "D_DECL_INCOMPLETE", f"incomplete struct/union/enum {spelled(kind)}: {name}", place)
    env.new(Variable(name, scope, kind, node.keys, known=True))


def _extern(env: Environment, node: syntax.Declaration) -> None:
    before = env.externs.get(node.name)
    if before is not None and not compatible(before, node.type):
        raise DError("D_DECL_IDRED", f"identifier redeclared: D`{node.name}\n\t current: "
                     f"{spelled(node.type)}\n\tprevious: {spelled(before)}", node.place)
    env.externs[node.name] = node.type


def _redeclared(known: Variable, node: syntax.Declaration) -> None:
    name, place = node.name, node.place
    kind = "scalar" if node.keys is None else "associative array"
    start = f"identifier redeclared: {name}"
    if known.kind != kind or not compatible(known.type, node.type):
        raise DError("D_DECL_IDRED", f"{start}\n\t current: {kind} {spelled(node.type)}\n\t"
                     f"previous: {known.kind} {spelled(known.type)}", place)
    if node.keys is None or known.keys is None:
        return
    if len(node.keys) != len(known.keys):
        raise DError(
            "D_DECL_IDRED", f"{start}\n\t current: {kind} of {spelled(node.type)}, tuple "
            f"length {len(node.keys)}\n\tprevious: {known.kind} of {spelled(known.type)}, "
            f"tuple length {len(known.keys)}", place)
    for number, (new, old) in enumerate(zip(node.keys, known.keys, strict=True), 1):
        if not compatible(new, old):
            raise DError(
                "D_DECL_IDRED", f"{start}\n\t current: {kind}, key #{number} of type "
                f"{spelled(new)}\n\tprevious: {known.kind}, key #{number} of type "
                f"{spelled(old)}", place)


def define_inline(env: Environment, node: syntax.Inline) -> None:
    """Define an inline: ``inline type name = value;``, with or without keys.

    :raises DError: if the name is already in use, or for the first error in the value.
    """
    name, place = node.name, node.place
    previous = None
    if name in env.inlines:
        previous = "inline definition"
    elif (Scope.GLOBAL, name) in env.variables:
        previous = env.variables[Scope.GLOBAL, name].kind + " "
    elif name in FUNCTIONS:
        previous = FUNCTIONS[name].role.value + " "
    elif name in CONTEXT or name in HOSTED:
        previous = "scalar "
    elif env.universe.enumerator(name) is not None:
        previous = "enumerator "
    if previous is not None:
        raise DError("D_DECL_IDRED", f"identifier redefined: {name}\n\t current: inline "
                     f"definition\n\tprevious: {previous}", place)
    bound = dict(env.bound)
    for key, kind in node.keys or ():
        stand_in = syntax.ContextUse(place, key, 0)
        stand_in.type = kind
        bound[key] = stand_in
    with env.binding(bound):
        value = env.read(syntax.clone(node.value))
    given = assigned_type(value)
    if isinstance(value, syntax.Translated) and value.pointer:
        # The inline is a pointer to the translated structure.
        given = pointer_to(value.translator.to)
    if not (fits(node.type, value) if value.kind is given
            else compatible(node.type, given)):
        raise DError("D_OP_INCOMPAT", f"inline {name} definition uses incompatible types: "
                     f'"{spelled(node.type)}" = "{spelled(value.kind)}"', node.value.place)
    env.inlines[name] = node


def define_translator(env: Environment, node: syntax.Translator) -> None:
    """Define a translator: ``translator to < source parameter > { members }``.

    :raises DError: if a translator between these types exists, or for the first error in a member.
    """
    place = node.place
    to = env.complete(node.to)
    for other in env.translators:
        if compatible(other.to, node.to) and compatible(other.source, node.source):
            raise DError("D_XLATE_REDECL", f"translator from {spelled(node.source)} to "
                         f"{spelled(node.to)} has already been declared", place)
    if isinstance(to, Incomplete):
        raise DError("D_XLATE_SOU", f"incomplete struct/union/enum {spelled(node.to)}", place)
    if not isinstance(to, Structure):
        raise DError(
            "D_XLATE_SOU", "translator output type must be a struct or union", place)
    stand_in = syntax.ContextUse(place, node.parameter, 0)
    stand_in.type = node.source
    stand_in.lvalue = True
    for name, value, where in node.members:
        member = find_member(to, name)
        if member is None:
            raise DError("D_XLATE_MEMB", f"translator member {name} is not a member of "
                         f"{spelled(node.to)}", where)
        with env.binding({**env.bound, node.parameter: stand_in}):
            checked = env.read(syntax.clone(value))
        if not fits(member.type, checked):
            raise DError(
                "D_XLATE_INCOMPAT", f"translator member {name} definition uses incompatible "
                f'types: "{spelled(member.type)}" = "{spelled(checked.kind)}"', where)
    env.translators.append(node)
