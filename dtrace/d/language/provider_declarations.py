"""Declarations of providers and their probes, for programs with probes of their own (USDT)."""

from dtrace.d.language import syntax
from dtrace.d.language.declarations import Parameters, check_parameters
from dtrace.d.language.errors import DError, SourcePlace
from dtrace.d.language.types import is_void

LONGEST = 63  # maximum length of the name of a provider or probe
MOST_ARGUMENTS = 255
Prototype = tuple[Parameters, bool]  # parameters, and whether ``...`` follows


def check_provider(name: str, place: SourcePlace) -> None:
    """Check the name of a provider.

    :raises DError: if it is not allowed.
    """
    _check_name("provider", name, place)
    if name[-1].isdigit():
        raise DError("D_PROV_BADNAME", f"provider name may not end with a digit: {name}", place)


def probe_declaration(place: SourcePlace, name: str, native: Prototype, seen: Prototype | None
                      ) -> syntax.ProbeDeclaration:
    """Return a declared probe.

    :param native: what the program passes.
    :param seen: what D programs see; None: the same.
    :raises DError: if the name, or one of the prototypes, is not allowed.
    """
    name = name.replace("__", "-")
    _check_name("probe", name, place)
    passed = _checked(name, "input", native, place)
    if seen is None:
        types = tuple(kind for _name, kind, _place in passed)
        return syntax.ProbeDeclaration(place, name, types, types, tuple(range(len(types))))
    shown = _checked(name, "output", seen, place)
    names = [one for one, _kind, _place in passed]
    mapping = []
    for number, (one, _kind, where) in enumerate(shown, 1):
        if not one:
            raise DError("D_DECL_PROTO_NAME", "parameter declaration requires a name: parameter "
                         f"#{number}", where)
        if one not in names:
            raise DError("D_DECL_PROTO_FORM", "parameter is not declared in probe output "
                         f"prototype: {one}, parameter #{number}", where)
        mapping.append(names.index(one))
    return syntax.ProbeDeclaration(
        place, name, tuple(kind for _name, kind, _place in passed),
        tuple(kind for _name, kind, _place in shown), tuple(mapping))


def _check_name(kind: str, name: str, place: SourcePlace) -> None:
    if "`" in name:
        raise DError("D_PROV_BADNAME", f"{kind} name may not contain scoping operator: {name}",
                     place)
    if len(name) > LONGEST:
        raise DError("D_PROV_BADNAME", f"{kind} name may not exceed {LONGEST} characters: {name}",
                     place)


def _checked(name: str, direction: str, prototype: Prototype, place: SourcePlace) -> Parameters:
    """Return the parameters of a prototype, which are none if it is ``(void)``."""
    parameters, variadic = prototype
    of = f"probe {direction}"
    if direction == "output":  # a parameter may be seen more than once
        for one in parameters:
            check_parameters([one], variadic, of, place)
        parameters_once = [("", kind, where) for _name, kind, where in parameters]
        check_parameters(parameters_once, variadic, of, place)
    else:
        check_parameters(parameters, variadic, of, place)
    if len(parameters) > MOST_ARGUMENTS:
        raise DError("D_PROV_PRARGLEN", f"probe {name} {direction} prototype exceeds "
                     f"{MOST_ARGUMENTS} parameters: {len(parameters)} params used", place)
    return [] if any(is_void(kind) for _name, kind, _place in parameters) else parameters
