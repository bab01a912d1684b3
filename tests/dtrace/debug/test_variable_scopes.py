"""Tests of the variables in scope at an instruction."""

from dataclasses import dataclass

import pytest

from dtrace.debug.variable_scopes import VariableScopes
from dwarf.dwarf_types import DwarfTypes
from dwarf.locations import Constant, Location, Operation, Register
from dwarf.scopes import Variable
from dwarf.types import Integer
from emu.arch.architectures import ARCHITECTURES

INT = Integer("int", 4, True)
PLACES = {
    "value": Location(Register(31), False),
    "memory": Location(Register(31), True),
    "other": Location(Register(4), False),
    "sum": Location(Operation("+", Register(31), Constant(8)), False),
}


class Types(DwarfTypes):
    """Types that give every function the variables in PLACES."""

    def __init__(self):
        pass

    def variables(self, copy, address, frame):
        return [Variable(name, place, "", False, 0, 0, lambda: INT)
                for name, place in PLACES.items()]


@dataclass
class Index:
    """Index of one function, "f"."""

    def stack(self, address):
        return ["f"]

    def function_at(self, address):
        return None


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_value_that_may_be_the_stack_pointer_or_zero_is_unknown_on_arm64(arch):
    scopes = VariableScopes(ARCHITECTURES[arch], Index(), Types(), Index(), None)
    (scope,) = scopes.at(0x1000)
    unknown = {one.name: one.reason for one in scope.variables if one.place is None}
    assert unknown == ({"value": "the debug data may mean sp or zero"} if arch == "arm64" else {})
    assert {one.name: one.place for one in scope.variables if one.place is not None} == {
        name: place for name, place in PLACES.items() if name not in unknown}
