"""Inline functions of programs and shared objects, by the names that their symbols would have."""

import bisect
import functools
import re

from dtrace.debug.program_types import program_index, types_when_moved
from dwarf.dwarf_types import DwarfTypes
from dwarf.index import DebugIndex, Function
from emu.elf.program import ProgramFile

MOST_FILES = 64  # maximum number of files whose functions are remembered
MOST_NAMES = 16  # maximum number of names in a mangled name that are looked up
LENGTH = re.compile(r"[1-9][0-9]{0,3}", re.ASCII)
MOST_INSTANCES = 10_000  # maximum number of names with the same prefix that are looked up
UNSPELLED = ("operator", "~")  # prefixes of names that a mangled name does not contain
MANGLED = "_Z"  # as in the Itanium C++ ABI, 5.1.2


class ProgramFunctions:
    """The functions that a file's DWARF describes.

    A C++ function is found by its mangled name only, so that one of another class or name space is
    not taken for it.

    :raises DebugDataError: from every method, if the debug data is damaged.
    """

    def __init__(self, index: DebugIndex, types: DwarfTypes) -> None:
        self._index, self._types = index, types

    def copies(self, symbol: str) -> list[Function]:
        """Return the inline copies of the function whose symbol has a name."""
        for name in self._names(symbol):
            found = [copy for copy in self._index.copies(name) if self._symbol(copy) == symbol]
            if found:  # a function has one name
                return found
        return []

    def is_declared(self, symbol: str) -> bool:
        """Return whether there is such a function, with code or without."""
        return any(self._symbol(one) == symbol for name in self._names(symbol)
                   for one in self._index.named(name))

    def symbols(self, name: str) -> list[str]:
        """Return the symbols of inline functions with a name, which may be that of a method."""
        return sorted({self._symbol(copy) for one in [name, *self._starting(f"{name}<")]
                       for copy in self._index.copies(one)})

    def _names(self, symbol: str) -> list[str]:
        """Return the names that a function with a symbol may have in the debug data."""
        names = _names_in(symbol)
        if symbol.startswith(MANGLED):
            names += [one for name in names for one in self._starting(f"{name}<")]
            names += [one for prefix in UNSPELLED for one in self._starting(prefix)]
        return names

    def _starting(self, prefix: str) -> list[str]:
        """Return the names with a prefix; ``as<`` is that of all instances of a template."""
        at = bisect.bisect_left(self._sorted, prefix)
        return [one for one in self._sorted[at : at + MOST_INSTANCES] if one.startswith(prefix)]

    @functools.cached_property
    def _sorted(self) -> list[str]:
        return sorted(self._index.names())

    def _symbol(self, function: Function) -> str:
        return self._types.linkage_name(function) or function.name


def _names_in(symbol: str) -> list[str]:
    """Return the names that a symbol may contain: itself or, in a mangled name, several."""
    if not symbol.startswith(MANGLED):
        return [symbol]
    found: list[str] = []
    at = 0
    while len(found) < MOST_NAMES and (length := LENGTH.search(symbol, at)) is not None:
        at = length.end() + int(length[0])
        name = symbol[length.end() : at]
        if name not in found:
            found.append(name)
    return found


@functools.lru_cache(maxsize=MOST_FILES)
def program_functions(file: ProgramFile) -> ProgramFunctions | None:
    """Return the functions of a program or shared object, or None if it has no DWARF.

    :raises DebugDataError: if it is damaged.
    """
    index, types = program_index(file), types_when_moved(file, 0)
    return None if index is None or types is None else ProgramFunctions(index, types)
