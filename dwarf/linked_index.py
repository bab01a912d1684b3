"""The debug data of a kernel and its modules as one index.

What a part numbers (records, units, entries, line programs) is numbered here with the part's own
number in the upper bits: the kernel's, part 0, stay what they are.  A module's debug data has its
addresses from the module's first byte on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dwarf.index import NONE64, VARIABLE, DebugIndex, Declared, Function

SHIFT = 40  # bits of a part's own numbers
OWN = (1 << SHIFT) - 1


@dataclass(frozen=True)
class IndexPart:
    """The index of a module that lies at [begin, end)."""

    index: DebugIndex
    begin: int
    end: int


class LinkedIndex(DebugIndex):
    """:param kernel: None where it has no debug data.
    :param modules: those that have some, each with its number, from 1.
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
        """(index, address, own number) of what is numbered here."""
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

    # -- the questions of an index ------------------------------------------------------------

    def names(self) -> Iterator[str]:
        yield from sorted({name for index, _address in self._parts.values()
                           for name in index.names()})

    def named(self, name: str) -> list[Function]:
        return [self._function_of(part, address, one)
                for part, (index, address) in self._parts.items() for one in index.named(name)]

    def called_at(self, line: int) -> Iterator[Function]:
        for part, (index, address) in self._parts.items():
            for one in index.called_at(line):
                yield self._function_of(part, address, one)

    def function(self, number: int) -> Function:
        part = number >> SHIFT
        index, address = self._parts[part]
        return self._function_of(part, address, index.function(number & OWN))

    def name_of(self, number: int) -> str:
        return self._parts[number >> SHIFT][0].name_of(number & OWN)

    def line_table(self, unit: int) -> int:
        found = self._parts[unit >> SHIFT][0].line_table(unit & OWN)
        return found if found == NONE64 else found | unit & ~OWN

    def subject(self, number: int) -> tuple[int, int] | None:
        found = self._parts[number >> SHIFT][0].subject(number & OWN)
        high = number & ~OWN
        return None if found is None else (found[0] | high, found[1] | high)

    def entry(self, number: int) -> tuple[int, int]:
        found = self._parts[number >> SHIFT][0].entry(number & OWN)
        return found[0] | number & ~OWN, found[1] | number & ~OWN

    def unit_offset(self, unit: int) -> int:
        return self._parts[unit >> SHIFT][0].unit_offset(unit & OWN) | unit & ~OWN

    def declared(self, name: str) -> list[Declared]:
        return [self._declared_of(part, address, one, one.tag == VARIABLE)
                for part, (index, address) in self._parts.items() for one in index.declared(name)]

    def variable_at(self, address: int) -> Declared | None:
        found = self._at(address)
        if found is None:
            return None
        part, index, base = found
        one = index.variable_at(address - base)
        return None if one is None else self._declared_of(part, base, one, True)

    def declarations(self) -> Iterator[Declared]:
        for part, (index, address) in self._parts.items():
            for one in index.declarations():
                yield self._declared_of(part, address, one, one.tag == VARIABLE)

    def stack(self, address: int) -> list[Function]:
        found = self._at(address)
        if found is None:
            return []
        part, index, base = found
        return [self._function_of(part, base, one) for one in index.stack(address - base)]

    def inside(self, low: int, high: int) -> list[Function]:
        found = self._at(low)
        if found is None:
            return []
        part, index, base = found
        return [self._function_of(part, base, one) for one in index.inside(low - base, high - base)]
