"""Checks of ``args[]``, of ``argN`` outside the firing's context, and of ``local->NAME``."""

from dtrace.d.checks import locations
from dtrace.d.checks.conversions import typed
from dtrace.d.checks.environment import Environment
from dtrace.d.checks.translators import translation
from dtrace.d.language import syntax
from dtrace.d.language.errors import DError, SourcePlace
from dtrace.d.language.identifiers import CONTEXT
from dtrace.d.language.spelled_types import spelled_type
from dtrace.d.language.surroundings import Located
from dtrace.d.language.types import LONG, is_scalar, spelled
from dwarf.locations import Place
from dwarf.types import Integer, Type, strip
from emu.host.errors import KinstError

SIZES = (1, 2, 4, 8)  # sizes of integers in bytes
HELD = 10  # number of arguments in the context of a firing
MOST = 256  # maximum number of parameters of a function


def probe_argument(env: Environment, place: SourcePlace,
                   key: syntax.Expression) -> syntax.Expression:
    """Check ``args[key]``.

    :raises DError: if the clause's probes do not have this argument.
    """
    if not isinstance(key, syntax.Number):
        raise DError("D_PROTO_ARG", "args[ ] argument #1 is incompatible with prototype:\n\t"
                     f"prototype: integer constant\n\t argument: {spelled(key.kind)}", place)
    if 0 <= key.value < MOST and (located := located_argument(env, place, key.value, None)):
        return located
    try:
        kind = env.surroundings.argument(key.value) if 0 <= key.value < HELD else None
    except KinstError as error:
        raise DError("D_ARGS_TYPE", str(error), place) from None
    if kind is None:
        raise DError("D_ARGS_IDX", f"index {key.value} is out of range for args[ ]", place)
    argument = _in_context(place, key.value, kind)
    wanted = env.surroundings.translated(key.value)
    if not wanted:
        return argument
    target = spelled_type(wanted, env.universe)
    if target is None:
        raise _no_translator(key.value, kind, wanted, place)
    try:
        return translation(env, place, target, argument)
    except DError as error:
        if error.tag != "D_XLATE_NONE":
            raise
        raise _no_translator(key.value, kind, wanted, place) from None


def _no_translator(index: int, kind: Type, wanted: str, place: SourcePlace) -> DError:
    return DError("D_ARGS_XLATOR", f"translator for args[{index}] from {spelled(kind)} to {wanted} "
                  f"is not defined (arg{index} has the untranslated value)", place)


def _in_context(place: SourcePlace, index: int, kind: Type) -> syntax.Expression:
    """Return an expression that reads an argument from the firing's context.

    An index beyond the context yields its last argument, as a placeholder.
    """
    name = f"arg{min(index, HELD - 1)}"
    inner = strip(kind)
    if isinstance(inner, Integer) and inner.size not in SIZES:
        raise DError("D_ARGS_TYPE", f"args[{index}] ({spelled(kind)}) has {inner.size} bytes, "
                     "which a D program cannot read", place)
    _type, offset = CONTEXT[name]
    use = syntax.ContextUse(place, name, offset)
    use.lvalue = True
    use.type = LONG  # the upper bits of the word are undefined for a narrower type
    return typed(syntax.Cast(place, kind, use), kind) if is_scalar(kind) else \
        typed(use, kind)


def located_argument(env: Environment, place: SourcePlace, index: int, kind: Type | None
                     ) -> syntax.Expression | None:
    """Return an expression for an argument that is missing from some probes' firing contexts.

    Return None if the argument can only be read from the context.

    :param kind: the type of ``argN``; None for ``args[index]``, which has its own type.
    :raises DError: if the function has no such parameter, or its location is not known at any
        probe.
    """
    try:
        located = env.surroundings.located(index, kind is None)
    except KinstError as error:
        if kind is not None:
            return None
        raise DError("D_ARGS_IDX", str(error), place) from None
    if located is None:
        return None
    chosen = _by_probe(env, place, located, _in_context(place, index, located.type))
    if kind is not None:
        return typed(syntax.Cast(place, kind, chosen), kind)
    chosen.lvalue = not is_scalar(located.type)
    return chosen


def local_variable(env: Environment, place: SourcePlace, name: str) -> syntax.Expression:
    """Return an expression for ``local->name``, a variable of the probed code.

    :raises DError: if the variable is not in scope, or not available, at any probe of the clause.
    """
    try:
        located = env.surroundings.local(name)
    except KinstError as error:
        raise DError("D_LOCAL", str(error), place) from None
    chosen = _by_probe(env, place, located, _in_context(place, 0, located.type))
    if isinstance(chosen, syntax.ByProbe) and chosen.refusal:
        raise DError("D_LOCAL", chosen.refusal, place)
    chosen.lvalue = not is_scalar(located.type)
    return chosen


def _by_probe(env: Environment, place: SourcePlace, located: Located,
              otherwise: syntax.Expression) -> syntax.Expression:
    """Return an expression that reads a value where each probe has it.

    :param otherwise: the expression to use at probes that ``located`` does not cover.
    """
    values: dict[Place | None, tuple[list[int], syntax.Expression | None]] = {}
    registers = env.surroundings.registers
    for number, where in located.places.items():
        if where not in values:
            try:
                values[where] = [], None if where is None else locations.value(
                    place, where, located.type, registers)
            except locations.Unreadable:
                values[where] = [], None
        values[where][0].append(number)
    kept = sum(len(numbers) for numbers, value in values.values() if value is not None)
    nowhere = not kept and not located.others
    if not nowhere and kept < len(located.places):
        located.partly(kept, len(located.places))
    chosen: syntax.Expression
    alternatives = list(values.values())
    if (is_scalar(located.type) and len(alternatives) == 1 and alternatives[0][1] is not None
            and not located.others):
        chosen = alternatives[0][1]
    else:
        chosen = typed(syntax.ByProbe(
            place, alternatives, otherwise,
            located.nowhere if nowhere else ""), located.type)
    return chosen
