"""Tests of the search for inline functions by their symbols."""

import pytest

from dtrace.debug.program_functions import ProgramFunctions
from dwarf.index import Function

# (name in the debug data, name of the symbol if it differs, whether there are inline copies)
FUNCTIONS = [
    ("push", "", True), ("gone", "", False), ("read", "_ZN3one6Reader4readEl", True),
    ("read", "_ZN3two6Reader4readEl", True), ("as<int>", "_ZN3one6Reader2asIiEET_S2_", True),
    ("as<long>", "_ZN3one6Reader2asIlEET_S2_", True), ("assign", "_ZN3one6assignEv", True),
    ("read", "_ZN4Vec34readEv", True), ("tiny", "_ZN12_GLOBAL__N_14tinyEi", True),
    ("operator[]", "_ZN1AixEi", True), ("~Reader", "_ZN6ReaderD2Ev", True),
    ("operator()", "_ZZ4mainENK3$_0clEl", True),
]


class Index:
    def names(self):
        return sorted({name for name, _symbol, _copies in FUNCTIONS})

    def named(self, name):
        return [Function(number, name, (), None, False, 0, 0, 0, 0)
                for number, (one, _symbol, _copies) in enumerate(FUNCTIONS) if one == name]

    def copies(self, name):
        return [one for one in self.named(name) if FUNCTIONS[one.number][2]]


class Types:
    def linkage_name(self, function):
        return FUNCTIONS[function.number][1]


@pytest.mark.parametrize("symbol, found", [
    ("push", [0]), ("gone", []), ("none", []), ("read", []), ("_ZN3one6Reader4readEl", [2]),
    ("_ZN3two6Reader4readEl", [3]), ("_ZN3one6Reader2asIiEET_S2_", [4]), ("as<int>", []),
    ("_ZN3one6Reader2asIcEET_S2_", []), ("_Z", []), ("_Z9999999", []), ("_ZN3one6assignEv", [6]),
])
def test_a_function_is_found_by_its_symbol_only(symbol, found):
    functions = ProgramFunctions(Index(), Types())
    assert [copy.number for copy in functions.copies(symbol)] == found
    assert functions.is_declared(symbol) == bool(found or symbol == "gone")


def test_the_symbols_of_a_name_are_known():
    functions = ProgramFunctions(Index(), Types())
    assert functions.symbols("read") == [
        "_ZN3one6Reader4readEl", "_ZN3two6Reader4readEl", "_ZN4Vec34readEv"]
    assert functions.symbols("as") == [
        "_ZN3one6Reader2asIiEET_S2_", "_ZN3one6Reader2asIlEET_S2_"]
    assert functions.symbols("gone") == functions.symbols("none") == []
