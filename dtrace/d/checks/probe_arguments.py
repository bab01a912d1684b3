"""``args[]``, and ``arg0`` and the like where an inline function's probes have them."""

from dtrace.d.checks import locations
from dtrace.d.checks.conversions import typed
from dtrace.d.checks.environment import Environment
from dtrace.d.checks.translators import translation
from dtrace.d.language import syntax
from dtrace.d.language.errors import DError, SourcePlace
from dtrace.d.language.identifiers import CONTEXT
from dtrace.d.language.spelled_types import spelled_type
from dtrace.d.language.types import LONG, is_scalar, spelled
from dwarf.locations import Place
from dwarf.types import Type
from emu.host.errors import KinstError

HELD = 10  # arguments that a firing's context has room for
MOST = 256  # parameters of a function


def probe_argument(env: Environment, place: SourcePlace,
                   key: syntax.Expression) -> syntax.Expression:
    """``args[key]``.

    :raises DError: when the clause's probes have no such argument.
    """
    if not isinstance(key, syntax.Number):
        raise DError("D_PROTO_ARG", "args[ ] argument #1 is incompatible with prototype:\n\t"
                     f"prototype: integer constant\n\t argument: {spelled(key.kind)}", place)
    if 0 <= key.value < MOST and (located := located_argument(env, place, key.value, None)):
        return located
    kind = env.surroundings.argument(key.value) if 0 <= key.value < HELD else None
    if kind is None:
        raise DError("D_ARGS_IDX", f"index {key.value} is out of range for args[ ]", place)
    given = _in_context(place, key.value, kind)
    wanted = env.surroundings.translated(key.value)
    if not wanted:
        return given
    named = spelled_type(wanted, env.universe)
    if named is None:
        raise _no_translator(key.value, kind, wanted, place)
    try:
        return translation(env, place, named, given)
    except DError as error:
        if error.tag != "D_XLATE_NONE":
            raise
        raise _no_translator(key.value, kind, wanted, place) from None


def _no_translator(index: int, kind: Type, wanted: str, place: SourcePlace) -> DError:
    return DError("D_ARGS_XLATOR", f"translator for args[{index}] from {spelled(kind)} to {wanted} "
                  f"is not defined (arg{index} has it as it is)", place)


def _in_context(place: SourcePlace, index: int, kind: Type) -> syntax.Expression:
    """An argument that the firing's context holds; where none does, in place of it."""
    name = f"arg{min(index, HELD - 1)}"
    _type, offset = CONTEXT[name]
    use = syntax.ContextUse(place, name, offset)
    use.lvalue = True
    use.type = LONG  # whatever is above a narrow one in its word
    return typed(syntax.Cast(place, kind, use), kind) if is_scalar(kind) else \
        typed(use, kind)


def located_argument(env: Environment, place: SourcePlace, index: int, kind: Type | None
                     ) -> syntax.Expression | None:
    """An argument that the contexts of some of the clause's probes do not hold.

    :param kind: what ``argN`` is taken as; None: ``args[index]``, of its own type.
    :raises DError: when the function has no such parameter, or it is known at no probe.
    """
    try:
        found = env.surroundings.located(index, kind is None)
    except KinstError as error:
        if kind is not None:
            return None
        raise DError("D_ARGS_IDX", str(error), place) from None
    if found is None:
        return None
    values: dict[Place | None, tuple[list[int], syntax.Expression | None]] = {}
    registers = env.surroundings.registers
    for number, where in found.places.items():
        if where not in values:
            try:
                values[where] = [], None if where is None else locations.value(
                    place, where, found.type, registers)
            except locations.Unreadable:
                values[where] = [], None
        values[where][0].append(number)
    kept = sum(len(numbers) for numbers, value in values.values() if value is not None)
    nowhere = not kept and not found.others
    if not nowhere and kept < len(found.places):
        found.partly(kept, len(found.places))
    chosen: syntax.Expression
    only = list(values.values())
    if (is_scalar(found.type) and len(only) == 1 and only[0][1] is not None
            and not found.others):
        chosen = only[0][1]
    else:
        chosen = typed(syntax.ByProbe(
            place, only, _in_context(place, index, found.type),
            found.nowhere if nowhere else ""), found.type)
    if kind is not None:
        return typed(syntax.Cast(place, kind, chosen), kind)
    chosen.lvalue = not is_scalar(found.type)
    return chosen
