"""``args[]``, and ``arg0`` and the like where an inline function's probes have them."""

from dtrace.d import locations, syntax
from dtrace.d.checks.conversions import typed
from dtrace.d.checks.environment import Environment
from dtrace.d.checks.translators import translation
from dtrace.d.errors import DError, SourcePlace
from dtrace.d.identifiers import CONTEXT
from dtrace.d.spelled_types import spelled_type
from dtrace.d.types import INT, LONG, is_scalar, spelled, width
from dwarf.locations import Location
from dwarf.types import Type
from emu.errors import KinstError


def probe_argument(env: Environment, place: SourcePlace,
                   key: syntax.Expression) -> syntax.Expression:
    """``args[key]``.

    :raises DError: when the clause's probes have no such argument.
    """
    if not isinstance(key, syntax.Number):
        raise DError("D_PROTO_ARG", "args[ ] argument #1 is incompatible with prototype:\n\t"
                     f"prototype: integer constant\n\t argument: {spelled(key.kind)}", place)
    if 0 <= key.value < 10 and (located := argument_at_copies(env, place, key.value, None)):
        return located
    kind = env.surroundings.argument(key.value) if 0 <= key.value < 10 else None
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
    """An argument that the firing's context holds."""
    _type, offset = CONTEXT[f"arg{index}"]
    use = syntax.ContextUse(place, f"arg{index}", offset)
    use.lvalue = True
    use.type = INT if width(kind) == 4 else LONG
    return typed(syntax.Cast(place, kind, use), kind) if is_scalar(kind) else \
        typed(use, kind)


def argument_at_copies(env: Environment, place: SourcePlace, index: int, kind: Type | None
                       ) -> syntax.Expression | None:
    """An argument where some of a clause's probes stand for inline copies.

    :param kind: what it is taken as; None: its own type.
    :raises DError: when the function has no such parameter.
    """
    try:
        found = env.surroundings.located(index)
    except KinstError as error:
        if kind is not None:
            return None
        raise DError("D_ARGS_IDX", str(error), place) from None
    if found is None:
        return None
    values: dict[Location | None, tuple[list[int], syntax.Expression | None]] = {}
    registers = env.surroundings.registers
    for number, location in found.places.items():
        if location not in values:
            try:
                values[location] = [], None if location is None else locations.value(
                    place, location, found.type, registers)
            except locations.Unreadable:
                values[location] = [], None
        values[location][0].append(number)
    kept = sum(len(numbers) for numbers, value in values.values() if value is not None)
    what = f"args[{index}] ('{found.name}' of {found.function})"
    nowhere = not kept and not found.others
    if not nowhere and kept < len(found.places):
        found.partly(f"{what} is kept by the compiler at {kept} of {len(found.places)} inline "
                     "copies; at the others a clause that reads it ends with an error")
    chosen: syntax.Expression = typed(syntax.ByProbe(
        place, list(values.values()), _in_context(place, index, found.type),
        f"{what} is kept by the compiler at none of its {len(found.places)} inline copies"
        if nowhere else ""), found.type)
    if kind is not None:
        return typed(syntax.Cast(place, kind, chosen), kind)
    chosen.lvalue = not is_scalar(found.type)
    return chosen
