import copy
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dwarf.debug_file import DebugDataError
from dwarf.types import (
    Array,
    Enumeration,
    Float,
    Incomplete,
    Integer,
    Member,
    Pointer,
    Procedure,
    Qualified,
    Structure,
    Typedef,
    Void,
)
from dwarf.values import CPointer, addressof, from_bits, load, sizeof, store, typeof

BASE = 0x1000
CHAR = Integer("char", 1, True, "char")
INT, LONG = Integer("int", 4, True), Integer("unsigned long", 8, False)
BOOL = Integer("_Bool", 1, False, "boolean")
STATE = Enumeration("state", 4, lambda: (("IDLE", 0), ("BUSY", 1), ("GONE", 2)))


class Bytes:
    """Stand-in for guest memory of a fixed size that starts at ``BASE``."""

    def __init__(self, size=256):
        self.data = bytearray(size)

    def read(self, address, size):
        assert address >= BASE and address + size <= BASE + len(self.data)
        return bytes(self.data[address - BASE : address - BASE + size])

    def write(self, address, data):
        assert address >= BASE and address + len(data) <= BASE + len(self.data)
        self.data[address - BASE : address - BASE + len(data)] = data


def member(name, at, kind, width=None):
    return Member(name, at, width, lambda: kind)


INNER = Structure("struct", "", 8, lambda: (member("x", 0, INT), member("y", 32, INT)))
NODE = Structure("struct", "node", 64, lambda: (
    member("number", 0, INT), member("flag", 32, BOOL), member("state", 64, STATE),
    member("low", 96, INT, 3), member("high", 99, Integer("unsigned int", 4, False), 20),
    member("name", 128, Array(8, lambda: CHAR)), member("next", 192, Pointer(lambda: NODE)),
    member("", 256, INNER), member("table", 320, Array(3, lambda: INT)),
    member("real", 448, Float("float", 4)), member("rest", 512, Array(None, lambda: INT))))


@pytest.fixture
def node():
    return load(Bytes(), Typedef("node_t", lambda: Qualified("const", lambda: NODE)), BASE)


def test_members_are_read_and_written_according_to_their_types(node):
    node.number, node.flag, node.state, node.name = -5, True, 1, "abc"
    node.x, node.y, node.real = 7, -8, 0.5
    node.table[1] = 9
    assert (node.number, node.flag, node.name, node.x, node.y) == (-5, True, "abc", 7, -8)
    assert (node.state, node.state.name, node["real"]) == (1, "BUSY", 0.5)
    assert list(node.table) == [0, 9, 0] and node.table[-1] == 0 and node.table[0:2] == [0, 9]
    node.state = "GONE"
    assert node.state == 2 and str(node.state) == "GONE (2)"
    raw = node._memory.data
    assert raw[:4] == struct.pack("<i", -5) and raw[16:24] == b"abc\0\0\0\0\0"


def test_pointers_can_be_dereferenced_and_indexed(node):
    memory = node._memory
    node.next = BASE + 64
    node.next.number = 12
    assert node.next.number == 12 == node.next[0].number == node.next["number"]
    assert node.next == BASE + 64 and repr(node.next) == f"(struct node *) {BASE + 64:#x}"
    numbers = CPointer(BASE + 40, Pointer(lambda: INT), memory)
    numbers[2] = -3
    assert node.table[2] == -3 == numbers[2]
    with pytest.raises(AttributeError, match="does not point to a structure"):
        numbers.number  # noqa: B018
    with pytest.raises(TypeError, match="cannot iterate over a pointer"):
        list(numbers)
    with pytest.raises(TypeError, match="has no size"):
        CPointer(BASE, Pointer(Void), memory)[0]


def test_missing_members_and_elements_raise_clear_errors(node):
    with pytest.raises(AttributeError, match="has no member 'nunber'; did you mean number"):
        node.nunber  # noqa: B018
    with pytest.raises(AttributeError, match="has no member 'other'"):
        node.other = 1
    with pytest.raises(IndexError, match="no element 3"):
        node.table[3]
    with pytest.raises(TypeError, match="length is not known"):
        len(node.rest)
    with pytest.raises(DebugDataError, match="cannot be read"):
        load(node._memory, Incomplete("struct", "secret"), BASE)
    assert node.rest[2] == 0 and "number" in dir(node) and "x" in dir(node)


@pytest.mark.parametrize("name, value, error", [
    ("number", 1 << 32, OverflowError), ("number", "one", TypeError), ("flag", -200, OverflowError),
    ("low", 8, OverflowError), ("high", 1 << 20, OverflowError), ("low", "x", TypeError),
    ("name", "eight be", OverflowError), ("next", 1 << 64, OverflowError),
    ("number", b"abc", OverflowError), ("state", "NONE", TypeError), ("real", "x", TypeError),
])
def test_a_value_that_does_not_fit_changes_nothing(node, name, value, error):
    before = bytes(node._memory.data)
    with pytest.raises(error):
        node[name] = value
    assert node._memory.data == before


def test_addressof_sizeof_and_typeof_describe_values(node):
    assert addressof(node) == BASE and addressof(node, "x") == BASE + 32
    assert addressof(node.table) == BASE + 40 and sizeof(node.table) == 12
    assert sizeof(node) == 64 and sizeof(node.next) == 8
    assert typeof(node) == "struct node" and typeof(node.next) == "struct node *"
    with pytest.raises(TypeError, match="bit-field"):
        addressof(node, "low")
    with pytest.raises(TypeError, match="has no address"):
        addressof(node.number)


def test_a_register_value_is_converted_to_its_type():
    memory = Bytes()
    assert from_bits(memory, INT, 0xFFFFFFFF_FFFFFFFE) == -2
    assert from_bits(memory, LONG, (1 << 64) - 1) == (1 << 64) - 1
    assert from_bits(memory, BOOL, 0x101) is True
    assert from_bits(memory, Void(), 5) is None
    assert from_bits(memory, STATE, 2).name == "GONE"
    assert typeof(from_bits(memory, Pointer(lambda: CHAR), BASE)) == "char *"
    for kind in (NODE, Float("double", 8), Procedure((), False, Void)):
        with pytest.raises(DebugDataError, match="not fit in one general-purpose register"):
            from_bits(memory, kind, 1)


def test_str_and_repr_show_the_contents(node):
    node.name = 'a"b'
    assert '"a\\"b"' in str(node) and "number = 0" in str(node) and "table = {...}" in str(node)
    assert str(node.table) == "{0, 0, 0}" and repr(node) == f"<struct node at {BASE:#x}>"


@given(st.integers(0, 63), st.integers(1, 32), st.booleans(), st.integers(), st.binary(
    min_size=16, max_size=16))
def test_writing_a_bit_field_changes_only_its_bits(offset, width, signed, value, before):
    kind = Integer("int" if signed else "unsigned int", 4, signed)
    whole = Structure("struct", "s", 16, lambda: (member("f", offset, kind, width),))
    memory = Bytes(16)
    memory.data[:] = before
    s = load(memory, whole, BASE)
    value %= 1 << width
    s.f = value
    bits = int.from_bytes(memory.data, "little")
    mask = (1 << width) - 1 << offset
    assert bits >> offset & (1 << width) - 1 == value
    assert bits & ~mask == int.from_bytes(before, "little") & ~mask
    assert s.f == (value - (1 << width) if signed and value >> width - 1 else value)


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_stored_value_is_loaded_back(value):
    memory = Bytes(8)
    store(memory, Integer("long", 8, True), BASE, value)
    assert load(memory, Integer("long", 8, True), BASE) == value


def test_arrays_of_uint8_t_are_not_text():
    memory = Bytes()
    memory.write(BASE, bytes.fromhex("005056ff0102"))
    byte = Typedef("uint8_t", lambda: Integer("unsigned char", 1, False, "char"))
    assert list(load(memory, Array(6, lambda: byte), BASE)) == [0, 0x50, 0x56, 0xFF, 1, 2]


def test_values_support_copy_and_deepcopy(node):
    for value in (node, node.next, node.state):
        assert copy.copy(value) == value == copy.deepcopy(value)
    assert copy.copy(node).number == 0


@pytest.mark.parametrize("made", [
    lambda: Integer("int", 0, True), lambda: Integer("int", 17, True),
    lambda: Enumeration("e", -1, lambda: ()), lambda: Array(-1, lambda: INT),
    lambda: Array(1 << 60, lambda: CHAR), lambda: member("f", -8, INT),
    lambda: member("f", 0, INT, -1), lambda: Structure("struct", "s", -1, lambda: ()),
])
def test_impossible_sizes_are_refused(made):
    with pytest.raises(DebugDataError, match="damaged debug data"):
        made()


def test_a_structure_that_contains_itself_is_refused():
    itself = Structure("struct", "s", 8, lambda: (member("", 0, itself), member("", 0, itself)))
    with pytest.raises(DebugDataError, match="too many unnamed members"):
        dir(load(Bytes(), itself, BASE))
