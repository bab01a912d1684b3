"""Locations of ``local->NAME``, a variable of the kernel's code, at the probes of a clause."""

import difflib
from collections.abc import Callable, Sequence

from dtrace.d.compile.program import ListedProbe
from dtrace.d.language.surroundings import Located
from dtrace.debug.variable_scopes import VariableScopes
from dtrace.run.kernel_probes import KernelProbes
from dwarf.dwarf_types import DwarfTypes
from dwarf.linked_types import LinkedTypes
from dwarf.locations import Place
from dwarf.scopes import Variable
from dwarf.types import Types, declare
from emu.host.errors import KinstError
from emu.host.progress import PROGRESS
from kinst.probes.arguments import Arguments

MOST_PLACES = 200_000  # maximum number of probes at which a clause may read a variable
MOST_NAMES = 20  # maximum number of names in a message


class LocalVariables:
    """Variables of the kernel's code that clauses can read.

    :param types: the kernel's types, or None if it has none.
    :param once: prints a message, unless it was printed before.
    """

    def __init__(self, probes: KernelProbes, arguments: Arguments, types: Types | None,
                 once: Callable[[str], None]) -> None:
        self._probes, self._arguments, self._types, self._once = probes, arguments, types, once
        self._scopes: VariableScopes | None = None

    def scopes(self) -> VariableScopes:
        """Return the reader for the variables in scope at the kernel's instructions.

        :raises KinstError: if the kernel has no DWARF.
        """
        if self._scopes is None:
            breakpoints = self._probes.breakpoints
            if not isinstance(self._types, DwarfTypes | LinkedTypes) or self._probes.index is None:
                raise KinstError(f"{breakpoints.image.path}: local variables need DWARF debug data")
            self._scopes = VariableScopes(
                breakpoints.arch, breakpoints.image.symbols, self._types, self._probes.index(),
                self._arguments.follower)
        return self._scopes

    def located(self, name: str, clause: Sequence[ListedProbe]) -> Located:
        """Return the locations of a variable at the probes of a clause.

        :raises KinstError: if no probe has such a variable, or it is optimized out at all of them,
            or its type is not the same at all of them.
        """
        scopes, what = self.scopes(), f"local->{name}"
        places: dict[int, Place | None] = {}
        found: dict[str, Variable] = {}
        reasons, others = set[str](), 0
        with PROGRESS.working(f"locating {what}"):
            for probe in clause:
                address = self._address(probe)
                variable = None if address is None else scopes.find(name, address)
                if variable is not None:
                    found[declare(variable.type, name)] = variable
                    reasons.add(variable.reason)
                others += address is None
                places[probe.number] = None if variable is None else variable.place
                if len(places) > MOST_PLACES:
                    raise KinstError(f"{what} is read at more than {MOST_PLACES} probes; probe "
                                     "fewer instructions")
        if not found:
            raise KinstError(self._unknown(name, clause, others == len(clause)))
        if len(found) > 1:
            raise KinstError(f"{what} has different types at the probes: "
                             f"{', '.join(sorted(found)[:MOST_NAMES])}")
        (variable,) = found.values()
        reason = reasons.pop() if len(reasons) == 1 else "optimized out"
        return Located(
            what, variable.type, places, False,
            f"{what} is {reason} at {_at(clause)}" if reason == "optimized out" else
            f"{what} is not available at {_at(clause)}: {reason}",
            lambda kept, count: self._once(
                f"{what} is available at {kept} of {count} probes; a clause that reads it at "
                "another probe ends with an error"))

    def _address(self, probe: ListedProbe) -> int | None:
        """Return the address of a probe's instruction, or None if it has none in the kernel."""
        number = self._probes.kernel_number(probe.number)
        if number is None or self._probes.breakpoints.function(number) is None:
            return None
        return self._probes.breakpoints.probe(number).instruction.address

    def _unknown(self, name: str, clause: Sequence[ListedProbe], nowhere: bool) -> str:
        if nowhere:
            return (f"local->{name}: {_at(clause)} is not at an instruction of the kernel's "
                    "functions; use a kinst, fbt or inline probe")
        scopes, names, all_names = self.scopes(), set[str](), set[str]()
        for probe in clause[:MOST_PLACES]:
            address = self._address(probe)
            if address is not None:
                names |= {v.name for scope in scopes.at(address) for v in scope.variables}
                all_names |= scopes.names(address)
        if name in all_names:
            return (f"local->{name}: the variable is not in scope at {_at(clause)}, or it is "
                    "optimized out")
        near = difflib.get_close_matches(name, names, 1)
        known = ", ".join(sorted(names)[:MOST_NAMES]) or "none"
        return (f"local->{name}: {_at(clause)} has no such variable"
                + (f"; did you mean {near[0]}?" if near else f"; in scope: {known}"))


def _at(clause: Sequence[ListedProbe]) -> str:
    """Return the name of a clause's probe, or how many there are."""
    if len(clause) != 1:
        return f"all {len(clause)} probes" if clause else "the probe"
    probe = clause[0]
    return f"{probe.provider}:{probe.module}:{probe.function}:{probe.name}"
