"""Tests of the variables in scope at an instruction, and of values that only callers know."""

import struct

import pytest

from dwarf.debug_file import DebugDataError, elf_file
from dwarf.dwarf_types import DwarfTypes
from dwarf.index import DebugIndex, build
from dwarf.locations import Constant, Entered, Location, Operation, Register, Unkept
from tests.dwarfwriter import abbrev, unit
from tests.elfwriter import Elf

ABBREVS = (
    abbrev(1, 0x11, 1, (0x11, 0x01), (0x03, 0x08))  # unit
    + abbrev(2, 0x24, 0, (0x03, 0x08), (0x0B, 0x0B), (0x3E, 0x0B))  # base type
    + abbrev(3, 0x2E, 1, (0x03, 0x08), (0x11, 0x01), (0x12, 0x06), (0x40, 0x18))  # function
    + abbrev(4, 0x05, 0, (0x03, 0x08), (0x49, 0x13), (0x02, 0x18), (0x3B, 0x0B))  # parameter
    + abbrev(5, 0x34, 0, (0x03, 0x08), (0x49, 0x13), (0x02, 0x18))  # variable
    + abbrev(6, 0x34, 0, (0x03, 0x08), (0x49, 0x13))  # variable without a location
    + abbrev(7, 0x0B, 1, (0x11, 0x01), (0x12, 0x06))  # block
    + abbrev(8, 0x2E, 1, (0x03, 0x08), (0x20, 0x0B))  # abstract function
    + abbrev(9, 0x1D, 1, (0x31, 0x13), (0x11, 0x01), (0x12, 0x06))  # inline copy
    + abbrev(10, 0x34, 0, (0x31, 0x13), (0x02, 0x18))  # concrete variable
    + abbrev(11, 0x34, 0, (0x03, 0x08), (0x49, 0x13), (0x3C, 0x19))  # declaration
    + abbrev(12, 0x4109, 1, (0x31, 0x13), (0x11, 0x01))  # call site
    + abbrev(13, 0x410A, 0, (0x02, 0x18), (0x2111, 0x18))  # its parameter
    + b"\0")
LOW, SIZE = 0x1000, 0x100


class Body:
    """Content of a unit, with the offsets of its entries."""

    def __init__(self):
        self.content = b"\1" + struct.pack("<Q", 0) + b"f.c\0"
        self.int = self.add(2, b"int\0", bytes([4, 5]))

    @property
    def here(self):
        return 11 + len(self.content)

    def add(self, number, *parts):
        at = self.here
        self.content += bytes([number]) + b"".join(parts)
        return at

    def end(self):
        self.content += b"\0"

    def function(self, name, low=LOW, size=SIZE):
        return self.add(3, name + b"\0", struct.pack("<QI", low, size), b"\1\x56")

    def block(self, low, size):
        self.add(7, struct.pack("<QI", low, size))

    def variable(self, name, *location):
        if not location:
            return self.add(6, name + b"\0", struct.pack("<I", self.int))
        return self.add(5, name + b"\0", struct.pack("<I", self.int),
                        bytes([len(location)]), bytes(location))

    def parameter(self, name, *location):
        return self.add(4, name + b"\0", struct.pack("<I", self.int),
                        bytes([len(location)]), bytes(location), b"\x09")


def opened(tmp_path, body, loaded=0):
    body.end()
    path = tmp_path / "kernel"
    path.write_bytes(Elf(others={".debug_info": unit(4, body.content),
                                 ".debug_abbrev": ABBREVS}).build())
    index = DebugIndex(build(elf_file(path)), path)
    return DwarfTypes(elf_file(path), index, loaded), index


def seen(types, index, address):
    """Return (name, place or reason) of the variables at an address, per function."""
    return [[(v.name, v.place or v.reason) for v in types.variables(one, address, None)]
            for one in index.stack(address)]


def register(number):
    return Location(Register(number), False)


def test_inner_blocks_hide_outer_variables_only_within_their_addresses(tmp_path):
    body = Body()
    body.function(b"f")
    body.parameter(b"a", 0x55)
    body.variable(b"x", 0x51)
    body.block(LOW + 0x10, 0x20)
    body.variable(b"x", 0x52)
    body.block(LOW + 0x18, 8)
    body.variable(b"y")
    for _ in range(3):
        body.end()
    types, index = opened(tmp_path, body)
    outer, inner = [("a", register(5)), ("x", register(1))], [("x", register(2))]
    gone = [("y", "optimized out")]
    assert [seen(types, index, LOW + at) for at in (0, 0x10, 0x18, 0x20, 0x30)] == [
        [outer], [inner + outer], [gone + inner + outer], [inner + outer], [outer]]
    function = index.stack(LOW)[0]
    (parameter, variable) = types.variables(function, LOW, None)
    assert (parameter.parameter, parameter.line, parameter.type.name) == (True, 9, "int")
    assert not variable.parameter and types.variable_names(function) == {"a", "x", "y"}


def test_an_inline_copy_has_its_own_variables_and_those_that_were_optimized_out(tmp_path):
    body = Body()
    body.add(8, b"tiny\0\3")
    inner = body.variable(b"kept")
    body.variable(b"gone")
    body.end()
    body.function(b"f")
    body.variable(b"x", 0x51)
    tiny = 11 + body.content.index(b"\x08tiny")
    body.add(9, struct.pack("<IQI", tiny, LOW + 8, 8))
    body.add(10, struct.pack("<I", inner), b"\1\x53")
    body.end()
    body.end()
    types, index = opened(tmp_path, body)
    assert seen(types, index, LOW + 8) == [
        [("kept", register(3)), ("gone", "optimized out")], [("x", register(1))]]
    assert seen(types, index, LOW) == [[("x", register(1))]]


def test_static_variables_of_a_module_move_with_it_and_declarations_have_no_place(tmp_path):
    body = Body()
    body.function(b"f")
    body.variable(b"counter", 0x03, *struct.pack("<Q", 0x40))
    body.add(11, b"other\0", struct.pack("<I", body.int))
    body.end()
    types, index = opened(tmp_path, body, 0x9000)
    assert seen(types, index, LOW) == [[
        ("counter", Location(Constant(0x9040), True)),
        ("other", "declared here, but defined elsewhere")]]


def test_a_variable_that_refers_to_itself_is_damaged_data(tmp_path):
    body = Body()
    body.function(b"f")
    body.add(10, struct.pack("<I", body.here), b"\1\x53")
    body.end()
    types, index = opened(tmp_path, body)
    with pytest.raises(DebugDataError, match="chain of references"):
        seen(types, index, LOW)


def called(body, origin, back, *parameters):
    body.add(12, struct.pack("<IQ", origin, back))
    for location, value in parameters:
        body.add(13, bytes([len(location)]), bytes(location), bytes([len(value)]), bytes(value))
    body.end()


def test_a_value_at_entry_is_what_the_caller_passed(tmp_path):
    body = Body()
    callee = body.function(b"callee")
    body.variable(b"a", 0xF3, 1, 0x55, 0x9F)  # DW_OP_GNU_entry_value(DW_OP_reg5)
    body.end()
    body.function(b"caller", 0x2000)
    called(body, callee, 0x2010, ([0x55], [0x73, 8]), ([0x54], [0xF3, 1, 0x51]))
    body.block(0x2020, 0x10)
    called(body, callee, 0x2028, ([0x55], [0x37]))
    body.end()
    body.end()
    types, index = opened(tmp_path, body)
    assert seen(types, index, LOW) == [[("a", Location(Entered(5), False))]]
    (caller,) = index.stack(0x2000)
    assert types.call_value(caller, 0x2010, 5) == (
        Operation("+", Register(3), Constant(8)), "callee")
    assert types.call_value(caller, 0x2010, 4) == (Entered(1), "callee")
    assert types.call_value(caller, 0x2028, 5) == (Constant(7), "callee")
    for back, number, says in ((0x2010, 1, "does not keep"), (0x2030, 5, "does not describe")):
        with pytest.raises(Unkept, match=says):
            types.call_value(caller, back, number)
