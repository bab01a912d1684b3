"""Combined index of the debug data of a kernel and its modules.

The numbers and offsets that a part uses (records, units, entries, line number programs) get the
number of the part in their upper bits.  The kernel is part 0, so its numbers do not change.  The
addresses in a module's debug data are relative to the module's first byte.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dwarf.index import NONE64, VARIABLE, DebugIndex, Declared, Function

SHIFT = 40  # number of low bits that identify a record, unit or entry within its part
OWN = (1 << SHIFT) - 1


@dataclass(frozen=True)
class IndexPart:
    """Index of a module that is loaded at [begin, end)."""

    index: DebugIndex
    begin: int
    end: int


class LinkedIndex(DebugIndex):
    """Index of a kernel and its modules.

    :param kernel: index of the kernel, or None for a kernel without debug data.
    :param modules: (number, index) of the modules with debug data, numbered from 1.
    """

    def __init__(self, kernel: DebugIndex | None, modules: Sequence[tuple[int, IndexPart]]) -> None:
        self._parts: dict[int, tuple[DebugIndex, int]] = {}
        if kernel is not None:
            self._parts[0] = kernel, 0
        self._places: list[tuple[int, int, int]] = []
        for number, part in modules:
            self._parts[number] = part.index, part.begin
            self._places.append((part.begin, part.end, number))

    def part(self, number: int) -> tuple[DebugIndex, int, int] | None:
        """Return (index, load address, number within the part) for a combined number, or None."""
        found = self._parts.get(number >> SHIFT)
        return None if found is None else (*found, number & OWN)

    def _at(self, address: int) -> tuple[int, DebugIndex, int] | None:
        for begin, end, number in self._places:
            if begin <= address < end:
                return number, *self._parts[number]
        found = self._parts.get(0)
        return None if found is None else (0, *found)

    @staticmethod
    def _function_of(part: int, address: int, one: Function) -> Function:
        if not part:
            return one
        high = part << SHIFT
        return replace(
            one, number=high | one.number, unit=high | one.unit,
            pieces=tuple((low + address, end + address) for low, end in one.pieces),
            begins=None if one.begins is None else one.begins + address,
            parent=None if one.parent is None else high | one.parent)

    @staticmethod
    def _declared_of(part: int, address: int, one: Declared, variable: bool) -> Declared:
        if not part:
            return one
        high = part << SHIFT
        return replace(one, entry=high | one.entry, unit=high | one.unit,
                       value=one.value + address if variable else one.value)

    # -- methods of DebugIndex ----------------------------------------------------------------

    def names(self) -> Iterator[str]:
        """Yield the distinct names of all functions in sorted order."""
        yield from sorted({name for index, _address in self._parts.values()
                           for name in index.names()})

    def named(self, name: str) -> list[Function]:
        """Return the functions with a given name in the kernel and all modules."""
        return [self._function_of(part, address, one)
                for part, (index, address) in self._parts.items() for one in index.named(name)]

    def called_at(self, line: int) -> Iterator[Function]:
        """Yield the inline copies with a call site at a given line, in the kernel or a module."""
        for part, (index, address) in self._parts.items():
            for one in index.called_at(line):
                yield self._function_of(part, address, one)

    def function(self, number: int) -> Function:
        """Return the function of a record."""
        part = number >> SHIFT
        index, address = self._parts[part]
        return self._function_of(part, address, index.function(number & OWN))

    def name_of(self, number: int) -> str:
        """Return the name of a record, or an empty string."""
        return self._parts[number >> SHIFT][0].name_of(number & OWN)

    def line_table(self, unit: int) -> int:
        """Return the offset of a unit's line program, with the part number in the upper bits."""
        found = self._parts[unit >> SHIFT][0].line_table(unit & OWN)
        return found if found == NONE64 else found | unit & ~OWN

    def subject(self, number: int) -> tuple[int, int] | None:
        """Return the entry that describes a function, as (offset, offset of its unit), or None."""
        found = self._parts[number >> SHIFT][0].subject(number & OWN)
        high = number & ~OWN
        return None if found is None else (found[0] | high, found[1] | high)

    def entry(self, number: int) -> tuple[int, int]:
        """Return a record's own entry, as (offset, offset of its unit)."""
        found = self._parts[number >> SHIFT][0].entry(number & OWN)
        return found[0] | number & ~OWN, found[1] | number & ~OWN

    def unit_offset(self, unit: int) -> int:
        """Return the offset of a unit's header, with the part number in the upper bits."""
        return self._parts[unit >> SHIFT][0].unit_offset(unit & OWN) | unit & ~OWN

    def declared(self, name: str) -> list[Declared]:
        """Return the types and variables with a given name in the kernel and all modules."""
        return [self._declared_of(part, address, one, one.tag == VARIABLE)
                for part, (index, address) in self._parts.items() for one in index.declared(name)]

    def variable_at(self, address: int) -> Declared | None:
        """Return the variable that begins at an address, or None."""
        found = self._at(address)
        if found is None:
            return None
        part, index, base = found
        one = index.variable_at(address - base)
        return None if one is None else self._declared_of(part, base, one, True)

    def declarations(self) -> Iterator[Declared]:
        """Yield the types and variables of the kernel, then those of each module, in name order."""
        for part, (index, address) in self._parts.items():
            for one in index.declarations():
                yield self._declared_of(part, address, one, one.tag == VARIABLE)

    def stack(self, address: int) -> list[Function]:
        """Return the inline copies at an address, innermost first, followed by their function."""
        found = self._at(address)
        if found is None:
            return []
        part, index, base = found
        return [self._function_of(part, base, one) for one in index.stack(address - base)]

    def inside(self, low: int, high: int) -> list[Function]:
        """Return the inline copies with code in [low, high), outer copies first."""
        found = self._at(low)
        if found is None:
            return []
        part, index, base = found
        return [self._function_of(part, base, one) for one in index.inside(low - base, high - base)]
