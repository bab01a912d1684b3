"""Checks of calls to subroutines, actions and aggregating functions."""

from dtrace.d.checks.conversions import converted, fits, passed, shown_type, typed
from dtrace.d.checks.environment import Environment
from dtrace.d.language import syntax
from dtrace.d.language.errors import DError, SourcePlace
from dtrace.d.language.identifiers import CONTEXT, FUNCTIONS, HOSTED, Builtin, Role, Scope
from dtrace.d.language.types import DYNAMIC, pointer_to, spelled
from dwarf.types import Incomplete, Type


def check_call(env: Environment, node: syntax.Call) -> syntax.Expression:
    """Check a call to a subroutine, an action or an aggregating function.

    :raises DError: if the function does not exist or does not accept these arguments.
    """
    place = node.place
    if not isinstance(node.function, syntax.Name):
        raise DError(
            "D_FUNC_IDENT", "function designator is not of function type", place)
    name, place = node.function.name, node.function.place
    function = FUNCTIONS.get(name)
    if function is None:
        variable = env.variables.get((Scope.GLOBAL, name))
        kind = None
        if variable is not None:
            kind = variable.kind
        elif name in CONTEXT or name in HOSTED or name in env.inlines:
            kind = "scalar"
        elif name in env.externs:
            kind = "external symbol reference"
        elif env.universe.enumerator(name) is not None:
            kind = "enumerator"
        if kind is not None:
            raise DError("D_FUNC_IDKIND",
                         f"{kind} '{name}' may not be referenced as a function", place)
        raise DError("D_FUNC_UNDEF", f"undefined function name: {name}", place)
    arguments = [env.read(argument) for argument in node.arguments]
    return _applied(env, function, arguments, place)


def _applied(env: Environment, function: Builtin, arguments: list[syntax.Expression],
             place: SourcePlace
             ) -> syntax.Expression:
    name = function.name
    formals: list[tuple[str, Type | None]] = []
    for text in function.parameters:
        plain = text.strip("[]")
        if plain == "...":
            break
        if plain == "@":
            formals.append((plain, None))
            continue
        kind = _type_of(env, plain, name, len(formals) + 1, place)
        formals.append((spelled(kind), kind))
    least = function.least
    hold_arguments(f"{name}( )", formals, least, function.most, arguments, place, "arg")
    converted_arguments = [
        value if formal is None else (
            passed if function.role is Role.SUBROUTINE else converted)(value, formal)
        for value, (_text, formal) in zip(
            arguments, [*formals, *[("", None)] * len(arguments)], strict=False)]
    call = syntax.FunctionCall(place, function, converted_arguments)
    if function.role is Role.AGGREGATING:
        return typed(call, DYNAMIC)
    result = _type_of(env, function.result, name, 0, place)
    return typed(call, result)


def _type_of(env: Environment, text: str, function: str, number: int, place: SourcePlace) -> Type:
    stars = text.count("*")
    words = [w for w in text.replace("*", " ").split() if w != "const"]
    kind: Type | None
    if words[0] == "struct":
        kind = env.universe.tagged("struct", words[1]) or Incomplete("struct", words[1])
    elif words[0] == "in_addr_t":
        kind = env.universe.named("in_addr_t") or env.universe.named("uint32_t")
    else:
        kind = env.universe.named(" ".join(words))
    if kind is None:
        which = f"arg#{number} " if number else ""
        raise DError("D_UNKNOWN", f"failed to resolve type of {function} {which}({text}): "
                     "Unknown type name", place)
    for _ in range(stars):
        kind = pointer_to(kind)
    return kind


def hold_arguments(called: str, formals: list[tuple[str, Type | None]], least: int,
                   most: int | None, given: list[syntax.Expression], place: SourcePlace, what: str
                   ) -> None:
    """Check arguments or keys against a prototype.

    :param formals: the spelling for messages and the type of each parameter; a type of None
        accepts anything.
    :param what: "arg" or "key".
    :raises DError: if the number or the types of the arguments differ from the prototype.
    """
    if len(given) < least or (most is not None and len(given) > most):
        some = "at least " if most is not None and most != least else ""
        plural = " " if len(given) == 1 else "s "
        raise DError("D_PROTO_LEN", f"{called} prototype mismatch: {len(given)} {what}{plural}"
                     f"passed, {some}{least} expected", place)
    long = "argument" if what == "arg" else "key"
    for number, (value, (text, kind)) in enumerate(zip(given, formals, strict=False), 1):
        if kind is not None and not fits(kind, value):
            raise DError(
                "D_PROTO_ARG", f"{called} {long} #{number} is incompatible with prototype:\n\t"
                f"prototype: {text}\n\t{long:>9}: {shown_type(value)}", place)
