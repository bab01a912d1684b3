"""Tests of reading variables of unloaded modules from generated module files."""

import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dwarf.debug_file import DebugDataError
from dwarf.module_variables import MAX_SIZE, modules, variable
from dwarf.types import Array, Integer, Pointer, Void
from emu.host.input_file import taken
from tests.dwarfwriter import abbrev, uleb, unit
from tests.elfwriter import Elf

INT = Integer("int", 4, True)
CU, VARIABLE, BASE, ARRAY, RANGE, POINTER, ALONE = range(1, 8)
NAME, TYPE, SIZE, BOUND = 0x03, 0x49, 0x0B, 0x2F
STRING, REF4, DATA1 = 0x08, 0x13, 0x0B
ABBREV = b"".join((
    abbrev(CU, 0x11, 1), abbrev(VARIABLE, 0x34, 0, (NAME, STRING), (TYPE, REF4)),
    abbrev(BASE, 0x24, 0, (NAME, STRING), (SIZE, DATA1)), abbrev(ARRAY, 0x01, 1, (TYPE, REF4)),
    abbrev(RANGE, 0x21, 0, (BOUND, DATA1)), abbrev(POINTER, 0x0F, 0, (TYPE, REF4)),
    abbrev(ALONE, 0x0F, 0))) + b"\0"


class Kinds:
    """Stand-in for the kernel's types; the only type is ``int``."""

    def named(self, name):
        return [INT] if name == "int" else []


def info():
    """Return a unit with an int, an array of ints, a pointer and a type unknown to the kernel."""
    header, body = 11, bytearray(uleb(CU))
    integer = header + len(body)
    body += uleb(BASE) + b"int\0" + b"\x04"
    array = header + len(body)
    body += uleb(ARRAY) + struct.pack("<I", integer) + uleb(RANGE) + b"\x02" + b"\0"
    pointer = header + len(body)
    body += uleb(ALONE)
    strange = header + len(body)
    body += uleb(BASE) + b"strange\0" + b"\x04"
    for name, kind in (("flags", integer), ("table", array), ("link", pointer), ("odd", strange)):
        body += uleb(VARIABLE) + name.encode() + b"\0" + struct.pack("<I", kind)
    return unit(4, bytes(body) + b"\0")


def module(tmp_path, debug=None, name="some.ko"):
    """Write a module file whose variables lie in section 1, the symbol table; return its path.

    Most variables are at offset 24, the name field of the first symbol, whose value is 1.
    """
    path = tmp_path / name
    path.write_bytes(Elf(symbols=[("flags", 24, 4, 1), ("table", 24, 12, 1), ("link", 24, 8, 1),
                                  ("odd", 24, 4, 1), ("far", 1 << 40, 4, 1), ("code", 24, 4, 2)],
                         others={".debug_info": info() if debug is None else debug,
                                 ".debug_abbrev": ABBREV}).build())
    return path


def test_a_module_variable_has_its_initial_value_and_the_kernel_type(tmp_path):
    path = module(tmp_path)
    assert variable(taken(path, MAX_SIZE), "flags", Kinds()) == (b"\1\0\0\0", INT)
    content, kind = variable(taken(path, MAX_SIZE), "table", Kinds())
    assert len(content) == 12 and isinstance(kind, Array) and (kind.count, kind.element) == (3, INT)
    _content, kind = variable(taken(path, MAX_SIZE), "link", Kinds())
    assert isinstance(kind, Pointer) and kind.target == Void()


@pytest.mark.parametrize("name", ["odd", "far", "code", "nosuch"])
def test_variables_without_a_known_type_or_content_are_not_returned(tmp_path, name):
    assert variable(taken(module(tmp_path), MAX_SIZE), name, Kinds()) is None


def test_modules_beside_the_kernel_are_searched_for_a_symbol(tmp_path):
    module(tmp_path)
    (tmp_path / "empty.ko").write_bytes(b"")
    (tmp_path / "other.ko").write_bytes(b"nothing")
    (tmp_path / "directory.ko").mkdir()
    assert [file.path.name for file in modules(tmp_path / "kernel", "flags")] == ["some.ko"]
    assert list(modules(tmp_path / "kernel", "nosuch")) == []


@settings(max_examples=150, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 2000), byte=st.integers(0, 255), cut=st.integers(0, 2000))
def test_reading_a_damaged_module_succeeds_or_raises_an_error(tmp_path, at, byte, cut):
    path = module(tmp_path, name="damaged.ko")
    content = bytearray(path.read_bytes())
    content[at % len(content)] = byte
    path.write_bytes(content[: max(64, len(content) - cut)])
    try:
        variable(taken(path, MAX_SIZE), "flags", Kinds())
    except DebugDataError as error:
        assert "\n" not in str(error)
