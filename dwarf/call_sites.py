"""Values that calls pass in registers, from the caller's call sites (DWARF 5, 3.4).

A call site names the instruction after the call, the function called, and for each argument the
register and an expression for its value that the caller can still evaluate after the call.
"""

from collections.abc import Iterator

from elftools.dwarf.die import DIE

from dwarf.entries import MAX_CHILDREN, Entries
from dwarf.index import MAX_NAME, DebugIndex, Function, shown
from dwarf.locations import Location, Locations, Register, Term, Unkept

SITES = ("DW_TAG_call_site", "DW_TAG_GNU_call_site")
PARAMETERS = ("DW_TAG_call_site_parameter", "DW_TAG_GNU_call_site_parameter")
VALUES = ("DW_AT_call_value", "DW_AT_GNU_call_site_value")
AROUND = ("DW_TAG_inlined_subroutine", "DW_TAG_lexical_block")
TARGETS = ("DW_AT_call_target", "DW_AT_GNU_call_site_target")
LINKS = ("DW_AT_abstract_origin", "DW_AT_specification")
ORIGINS = ("DW_AT_call_origin", "DW_AT_abstract_origin")
BACK = ("DW_AT_call_return_pc", "DW_AT_low_pc")
MAX_STEPS = 64  # maximum length of a chain of references


class CallSites:
    """Call sites in one file.

    :raises DebugDataError: from every method, if the data is damaged.
    """

    def __init__(self, entries: Entries, index: DebugIndex, locations: Locations) -> None:
        self._entries, self._index, self._locations = entries, index, locations
        self._known: dict[int, dict[int, DIE]] = {}  # function -> (return address -> call site)

    def value(self, caller: Function, back: int, register: int) -> tuple[Term, str | Term | None]:
        """Return the value that a call passes in a register, as a term of the caller's registers.

        The second element is the function called: its name, or its address for an indirect call, or
        None if it is unknown.  If another function runs, it was reached by a tail call, which may
        have passed other values.

        :param back: return address of the call.
        :raises Unkept: if the debug data does not describe the value.
        """
        with self._entries.reading():
            site = self._of(caller).get(back)
            if site is None:
                raise Unkept("the caller does not describe the call")
            for parameter in self._entries.children(site, *PARAMETERS):
                try:
                    place = self._locations.expression(
                        parameter, "DW_AT_location", caller, back - 1)
                except Unkept:
                    continue  # another parameter
                if place == Location(Register(register), False):
                    return self._term(parameter, VALUES, caller, back), self._target(
                        site, caller, back)
            raise Unkept("the caller does not keep the value")

    def _term(self, entry: DIE, names: tuple[str, ...], caller: Function, back: int) -> Term:
        name = next((name for name in names if name in entry.attributes), names[0])
        found = self._locations.expression(entry, name, caller, back - 1)
        if not isinstance(found, Location):
            raise Unkept("the value is stored in several pieces")
        return found.term  # the expression yields the value itself, not its location

    def _target(self, site: DIE, caller: Function, back: int) -> str | Term | None:
        for name in ORIGINS:
            if name in site.attributes:
                return self._name(site.get_DIE_from_attribute(name))
        try:
            return self._term(site, TARGETS, caller, back)
        except Unkept:
            return None

    @staticmethod
    def _name(entry: DIE) -> str | None:
        for _ in range(MAX_STEPS):
            name = entry.attributes.get("DW_AT_name")
            if name is not None:
                return shown(name.value[:MAX_NAME]) if isinstance(name.value, bytes) else None
            link = next((one for one in LINKS if one in entry.attributes), None)
            if link is None:
                return None
            entry = entry.get_DIE_from_attribute(link)
        raise ValueError(f"the chain of references to the entry at {entry.offset:#x} is too long")

    def _of(self, function: Function) -> dict[int, DIE]:
        if function.number not in self._known:
            entry = self._entries.entry(*self._index.entry(function.number))
            self._known[function.number] = {
                int(site.attributes[name].value): site for site in self._sites(entry)
                for name in BACK if name in site.attributes}
        return self._known[function.number]

    def _sites(self, entry: DIE) -> Iterator[DIE]:
        waiting, count = [entry], 0
        while waiting:
            for child in self._entries.children(waiting.pop(), *SITES, *AROUND):
                if child.tag in SITES:
                    yield child
                else:
                    waiting.append(child)
                count += 1
                if count > MAX_CHILDREN:
                    raise ValueError(f"the entry at {entry.offset:#x} has too many call sites")
