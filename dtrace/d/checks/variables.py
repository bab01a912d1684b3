"""Checks of names: program and built-in variables, inlines, enumerators and kernel symbols."""

from dtrace.d.checks.conversions import constant, converted, passed, typed
from dtrace.d.checks.environment import Environment
from dtrace.d.checks.probe_arguments import located_argument
from dtrace.d.language import syntax
from dtrace.d.language.attributes import below
from dtrace.d.language.errors import DError, SourcePlace
from dtrace.d.language.identifiers import (
    CONTEXT,
    FUNCTIONS,
    HOSTED,
    HOSTED_NUMBERS,
    REGISTERS,
    Scope,
    Variable,
)
from dtrace.d.language.types import DYNAMIC, LONG, VOID, is_dynamic, is_scalar, pointer_to
from dwarf.types import Incomplete, Procedure, Type, strip


def check_name(env: Environment, node: syntax.Name) -> syntax.Expression:
    """Resolve a name and return the expression that it denotes.

    :raises DError: if the name is unknown, or names an array or a function.
    """
    name, place = node.name, node.place
    if name in env.bound:
        return env.bound[name]
    if "`" in name:
        return symbol_of(env, node)
    variable = env.variables.get((Scope.GLOBAL, name))
    if variable is not None:
        if variable.keys is not None:
            raise bad_reference(place, variable.kind, name, "scalar")
        return variable_use(place, variable, [])
    inline = env.inlines.get(name)
    if inline is not None:
        if inline.keys is not None:
            raise bad_reference(place, "associative array", name, "scalar")
        return expand_inline(env, place, inline, [])
    enumerator = env.universe.enumerator(name)
    if enumerator is not None:
        return constant(place, *enumerator)
    if name in CONTEXT:
        _permitted(env, name, place)
        if name[:3] == "arg" and (known := located_argument(env, place, int(name[3:]), LONG)):
            return known
        kind, offset = CONTEXT[name]
        use = syntax.ContextUse(place, name, offset)
        use.lvalue = True
        return typed(use, _builtin_type(env, kind, name, place))
    if name in HOSTED:
        _permitted(env, name, place)
        hosted = syntax.HostedUse(place, name, HOSTED_NUMBERS[name])
        hosted.lvalue = True
        return typed(hosted, _builtin_type(env, HOSTED[name], name, place))
    if name in ("self", "this"):
        raise bad_reference(place, "pointer", name, "scalar")
    if name in FUNCTIONS:
        raise bad_reference(place, FUNCTIONS[name].role.value, name, "scalar")
    if name == "args" or name in REGISTERS:
        raise bad_reference(place, "associative array", name, "scalar")
    if name in env.externs:
        return symbol_of(env, node)
    if name in env.created:
        env.refuse_unset(Scope.GLOBAL, name, place)
    raise DError("D_IDENT_UNDEF", f"failed to resolve {name}: Unknown variable name", place)


def _permitted(env: Environment, name: str, place: SourcePlace) -> None:
    attributes = below(name, env.least) if env.least else None
    if attributes is not None:
        raise DError("D_ATTR_MIN", f"attributes for scalar {name} ({attributes}) are less than "
                     "predefined minimum", place)


def bad_reference(place: SourcePlace, kind: str, name: str, wanted: str) -> DError:
    """Return the error for a name that is used as the wrong kind of object."""
    return DError(
        "D_IDENT_BADREF", f"{kind} '{name}' may not be referenced as {wanted}", place)


def _builtin_type(env: Environment, text: str, name: str, place: SourcePlace) -> Type:
    """Return the type of a built-in variable, given the C spelling of the type.

    :raises DError: if it is a kernel type and the kernel's types are not available.
    """
    stars = text.count("*")
    words = [w for w in text.replace("*", " ").split() if w != "const"]
    kind: Type | None
    if words[0] == "struct":
        kind = env.universe.tagged("struct", words[1])
        if kind is None and stars:
            kind = Incomplete("struct", words[1])
    else:
        kind = env.universe.named(" ".join(words))
        if kind is None and words[0] in ("uid_t", "gid_t"):
            kind = env.universe.named("unsigned int")
    if kind is None:
        raise DError("D_UNKNOWN", f"failed to resolve type {text} for identifier {name}: "
                     "Unknown type name", place)
    for _ in range(stars):
        kind = pointer_to(kind)
    return kind


def symbol_of(env: Environment, node: syntax.Name, addressed: bool = False) -> syntax.Expression:
    """Return a variable or function of the kernel.

    :param addressed: whether only its address is needed; it has a type then in any case.
    :raises DError: if it is unknown, or has no type.
    """
    module, mark, name = node.name.rpartition("`")
    symbol = env.surroundings.symbol(module, name)
    if symbol is None:
        why = "Unknown symbol name" if not module else "Module is no longer loaded"
        raise DError(
            "D_IDENT_UNDEF", f"failed to resolve {module}{mark}{name}: {why}", node.place)
    address, kind, where = symbol
    if kind is None:
        if not addressed:
            raise DError("D_SYM_NOTYPES", "no symbolic type information is available for "
                         f"{where}`{name}: No type information available for symbol", node.place)
        kind = VOID
    use = syntax.SymbolUse(node.place, name, address)
    use.lvalue = True
    if isinstance(strip(kind), Procedure):
        function = constant(node.place, address, pointer_to(kind))
        function.lvalue = True  # ``function`` and ``&function`` have the same value
        return function
    return typed(use, kind)


def variable_use(place: SourcePlace, variable: Variable, keys: list[syntax.Expression]
                 ) -> syntax.VariableUse:
    """Return an expression that reads or assigns a program variable."""
    use = syntax.VariableUse(place, variable, keys)
    use.type, use.lvalue, use.writable = variable.type, True, True
    return use


def scoped_variable(env: Environment, node: syntax.MemberAccess, scope: Scope) -> syntax.Expression:
    """Check ``self->name`` or ``this->name``.

    :raises DError: if the variable is an associative array.
    """
    variable = env.variables.get((scope, node.name))
    if variable is None:
        variable = env.new(Variable(node.name, scope, DYNAMIC))
    if variable.keys is not None:
        raise bad_reference(node.place, variable.kind, node.name, "scalar")
    return variable_use(node.place, variable, [])


def expand_inline(env: Environment, place: SourcePlace, inline: syntax.Inline,
                  arguments: list[syntax.Expression]) -> syntax.Expression:
    """Return the value of an inline with its parameters bound to arguments.

    :raises DError: for the first error in the value, or if it expands too many inlines.
    """
    bound = dict(env.bound)
    for (name, kind), argument in zip(inline.keys or (), arguments, strict=True):
        bound[name] = passed(argument, kind)
    what = f"inline {inline.name}"
    with env.expansion(what, f"{what} is", bound, place):
        value = env.read(syntax.clone(inline.value))
    if isinstance(value, syntax.Translated) or is_dynamic(value.kind) or (
            isinstance(value, syntax.Number) and not inline.keys):
        return value
    result = converted(value, inline.type)
    if result is value and is_scalar(value.kind):  # also if the types are equal, as in DTrace
        result = typed(syntax.Cast(place, inline.type, value), inline.type)
    # As in DTrace, only another name of a variable can be written.
    written = isinstance(value, syntax.VariableUse | syntax.Alias) and value.writable
    if result is not value:
        if written:
            result = typed(syntax.Alias(place, inline.type, value), inline.type)
        result.lvalue = value.lvalue
    result.writable = written
    return result


def assignment_target(env: Environment, node: syntax.Expression, kind: Type) -> syntax.Expression:
    """Check the left side of an assignment; an unknown name becomes a variable of type ``kind``."""
    if isinstance(node, syntax.Name) and "`" not in node.name and node.name not in \
            env.bound and not env.knows(node.name):
        variable = env.new(Variable(node.name, Scope.GLOBAL, kind, known=True))
        return variable_use(node.place, variable, [])
    target = env.check(node)
    if isinstance(target, syntax.VariableUse) and not target.variable.known:
        if is_dynamic(target.variable.type):
            target.variable.type = kind
        target.variable.known = True
        target.type = target.variable.type
    return target


def fresh_name(env: Environment, node: syntax.Expression) -> str | None:
    """Return the name of the variable that an assignment to an expression creates, or None."""
    if isinstance(node, syntax.Name) and "`" not in node.name and node.name not in \
            env.bound and not env.knows(node.name):
        return node.name
    return None
