import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dwarf.ctf import CtfTypes, ctf_types
from dwarf.debug_file import DebugDataError, elf_file, sections
from dwarf.dwarf_types import DwarfTypes
from dwarf.index import NAMES, DebugIndex, build
from dwarf.types import (
    Array,
    Enumeration,
    Incomplete,
    Member,
    Parameter,
    Pointer,
    Procedure,
    Qualified,
    Structure,
    Typedef,
    Void,
    declare,
    find_member,
    size_of,
    spellings,
    strip,
)
from images import catalog
from tests.ctfwriter import CONST, FORWARD, POINTER, TYPEDEF, UNION, Ctf
from tests.dwarfwriter import abbrev, uleb, unit
from tests.elfwriter import Elf

SYMBOLS = [("start", 0x1000, 1, 2), ("table", 0x2000, 8, 1), ("f", 0x1010, 4, 2),
           ("untyped", 0x2010, 8, 1), ("g", 0x1020, 4, 2)]


def kernel(tmp_path, **others):
    path = tmp_path / "kernel"
    path.write_bytes(Elf(symbols=SYMBOLS, others={
        f".{name}": data for name, data in others.items()}).build())
    return path


def the(kinds):
    (kind,) = kinds
    return kind


# -- CTF ------------------------------------------------------------------------------------------


def sample(version):
    ctf = Ctf(version)
    integer = ctf.integer("int", 4, flags=1)
    long = ctf.integer("unsigned long", 8)
    three = ctf.integer("int", 4, flags=1, bits=3)
    node = ctf.count + 2  # type ID that the structure below will have
    pointer = ctf.add("", POINTER, node)
    ctf.structure("node", 24, ("next", pointer, 0), ("low", three, 64), ("", node + 1, 128))
    ctf.structure("", 8, ("a", integer, 0), ("b", long, 0), kind=UNION)
    constant = ctf.add("", CONST, integer)
    ctf.add("node_t", TYPEDEF, node)
    text = ctf.add("", POINTER, constant)
    grid = ctf.array(ctf.array(integer, 3), 2)
    ctf.enumeration("color", 4, ("RED", -1), ("BLUE", 7))
    ctf.add("hidden", FORWARD, 6)
    callback = ctf.procedure(integer, text, long, 0)
    ctf.add("callback", TYPEDEF, ctf.add("", POINTER, callback))
    big = 1 << 13 if version == 2 else 1 << 29
    ctf.structure("big", big + 8, ("first", integer, 0), ("last", long, 8 * big))
    ctf.structure("huge", 0xFFFF + 9, ("x", integer, 32))
    ctf.objects = [grid, 0]
    ctf.functions += struct.pack("<I" if version == 3 else "<H", 0)  # start() has no type
    ctf.function(long, integer, text)
    ctf.function(0)
    return ctf


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("version", [2, 3])
def test_ctf_types_are_read_back_as_written(tmp_path, version, compress):
    types = ctf_types(elf_file(kernel(tmp_path, SUNW_ctf=sample(version).build(compress))))
    assert types.format == f"CTF version {version}"
    node = the(types.named("struct  node"))
    assert [(m.name, m.offset, m.width, declare(m.type)) for m in node.members] == [
        ("next", 0, None, "struct node *"), ("low", 64, 3, "int"), ("", 128, None, "union {...}")]
    assert node.size == 24 and size_of(node) == 24
    assert find_member(node, "b").offset == 128 and find_member(node, "nosuch") is None
    assert strip(the(types.named("node_t"))) is node
    assert the(types.named("enum color")).values == (("RED", -1), ("BLUE", 7))
    assert the(types.named("enum color")).signed
    callback = the(types.named("callback")).target
    assert declare(callback) == "int (*)(const int *, unsigned long, ...)"
    assert types.named("unsigned long int") == types.named("unsigned long") != []
    assert types.named("nosuch") == [] and types.named("void") == [Void()]
    big = the(types.named("struct big"))
    assert big.members[1].offset == 8 * (big.size - 8) and big.members[1].name == "last"
    assert the(types.named("struct huge")).size == 0xFFFF + 9
    assert declare(types.variable("table"), "table") == "int table[2][3]"
    assert size_of(types.variable("table")) == 24
    assert types.variable("untyped") is None and types.function("start") is None
    assert declare(types.function("f"), "f") == "unsigned long f(int, const int *)"
    assert declare(types.function("g", 0x1020), "g") == "void g(void)"
    assert {"struct node", "int", "node_t", "enum color"} <= set(types.names())


@pytest.mark.parametrize("change, says", [
    (lambda d: d[:20], "truncated header"), (lambda d: b"\0" + d[1:], "magic"),
    (lambda d: d[:2] + b"\7" + d[3:], "CTF version 7 is not supported"),
    (lambda d: d[:60], "damaged .SUNW_ctf"), (lambda d: d[:36] + bytes(40), "Error -3"),
    (lambda d: d[:24] + struct.pack("<I", 1 << 30) + d[28:], "out of order"),
])
def test_a_damaged_ctf_section_is_refused_with_a_clear_message(tmp_path, change, says):
    data = sample(3).build()
    with pytest.raises(DebugDataError, match=says):
        ctf_types(elf_file(kernel(tmp_path, SUNW_ctf=change(data))))


def test_ctf_that_needs_a_parent_is_refused(tmp_path):
    with pytest.raises(DebugDataError, match="types extend those of 'kernel'"):
        ctf_types(elf_file(kernel(tmp_path, SUNW_ctf=Ctf(parent="kernel").build())))


def test_a_ctf_section_that_decompresses_to_too_much_is_truncated(tmp_path):
    ctf = Ctf()
    ctf.text += b"x" * (64 << 20)
    data = bytearray(ctf.build())
    struct.pack_into("<I", data, 32, 16)  # declare a string table of only 16 bytes
    assert len(data) < 1 << 20
    types = ctf_types(elf_file(kernel(tmp_path, SUNW_ctf=bytes(data))))
    assert list(types.names()) == []


def test_ctf_types_that_refer_to_themselves_are_refused(tmp_path):
    ctf = Ctf()
    ctf.add("loop", TYPEDEF, 1)
    ctf.array(2, 5)
    ctf.add("endless", TYPEDEF, 4)
    ctf.add("", POINTER, 4)
    types = ctf_types(elf_file(kernel(tmp_path, SUNW_ctf=ctf.build())))
    with pytest.raises(DebugDataError, match="defined in terms of itself"):
        size_of(the(types.named("loop")))
    endless = the(types.named("endless"))
    assert size_of(endless) == 8
    with pytest.raises(DebugDataError, match="too deep"):
        declare(endless.target)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_reading_damaged_ctf_succeeds_or_raises_an_error(data):
    content = bytearray(sample(data.draw(st.sampled_from([2, 3]))).build(compress=False))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        types = CtfTypes(bytes(content), bytes(24), b"\0", Path("kernel"))
        walk(types)
    except DebugDataError as error:
        assert str(error)


def walk(types):
    for name in list(types.names())[:200]:
        for kind in types.named(name):
            try:
                kind = strip(kind)
                size_of(kind)
                declare(kind, "x")
            except DebugDataError as error:
                assert str(error)
                continue
            if isinstance(kind, Structure):
                [declare(m.type, m.name) for m in kind.members if not m.name]
                find_member(kind, "nosuch")
            elif isinstance(kind, Enumeration):
                assert isinstance(kind.values, tuple)


# -- DWARF ----------------------------------------------------------------------------------------

ABBREVS = (
    abbrev(1, 0x11, 1, (0x11, 0x01), (0x03, 0x08))
    + abbrev(2, 0x24, 0, (0x03, 0x08), (0x3E, 0x0B), (0x0B, 0x0B))  # base type
    + abbrev(3, 0x13, 1, (0x03, 0x08), (0x0B, 0x0B))  # struct
    + abbrev(4, 0x0D, 0, (0x03, 0x08), (0x49, 0x13), (0x38, 0x0B))  # member
    + abbrev(5, 0x0D, 0, (0x03, 0x08), (0x49, 0x13), (0x0D, 0x0B), (0x6B, 0x0B))  # bit-field
    + abbrev(6, 0x0D, 0, (0x03, 0x08), (0x49, 0x13), (0x38, 0x0A), (0x0B, 0x0B), (0x0D, 0x0B),
             (0x0C, 0x0B))  # bit-field with DWARF 3 attributes
    + abbrev(7, 0x0F, 0, (0x49, 0x13)) + abbrev(8, 0x16, 0, (0x03, 0x08), (0x49, 0x13))
    + abbrev(9, 0x34, 0, (0x03, 0x08), (0x49, 0x13), (0x02, 0x18))  # variable
    + abbrev(10, 0x13, 0, (0x03, 0x08), (0x3C, 0x19))  # struct declaration
    + abbrev(11, 0x01, 1, (0x49, 0x13)) + abbrev(12, 0x21, 0, (0x37, 0x0B))  # array, count
    + abbrev(13, 0x21, 0, (0x2F, 0x06)) + abbrev(14, 0x26, 0)
    + abbrev(15, 0x34, 0, (0x03, 0x08), (0x49, 0x13), (0x3C, 0x19))  # variable declaration
    + abbrev(16, 0x34, 0, (0x47, 0x13), (0x02, 0x18)) + b"\0"  # definition of a declared variable
)


class Unit:
    """Builder of a DWARF unit; each method adds an entry and returns the entry's offset."""

    def __init__(self):
        self.body = b"\1" + bytes(8) + b"f.c\0"

    @property
    def at(self):
        return 11 + len(self.body)

    def add(self, code, *parts):
        at = self.at
        self.body += uleb(code) + b"".join(
            p.encode() + b"\0" if isinstance(p, str) else p for p in parts)
        return at

    def build(self):
        return unit(4, self.body + b"\0")


def ref(at):
    return struct.pack("<I", at)


def address(value):
    return b"\x09\x03" + struct.pack("<Q", value)


def dwarf_types(tmp_path, content):
    path = kernel(tmp_path, debug_info=content, debug_abbrev=ABBREVS)
    return DwarfTypes(elf_file(path), DebugIndex(build(elf_file(path)), path))


def test_dwarf_types_are_read_back_as_written(tmp_path):
    u = Unit()
    integer = u.add(2, "int", b"\5\4")
    long = u.add(2, "long unsigned int", b"\7\x08")
    node = u.add(3, "node", b"\x18")
    u.add(4, "value", ref(long), b"\x08")
    u.add(5, "new", ref(integer), b"\3", b"\x41")
    u.add(6, "old", ref(integer), b"\2\x23\x10", b"\4", b"\3", b"\x1a")
    u.body += b"\0"
    pointer = u.add(7, ref(node))
    u.add(8, "node_p", ref(pointer))
    hidden = u.add(10, "hidden")
    u.add(9, "list", ref(u.add(7, ref(hidden))), address(0x2000))
    grid = u.add(11, ref(integer))
    u.add(12, b"\2")
    u.add(13, ref(3))
    u.body += b"\0"
    u.add(9, "grid", ref(grid), address(0x2010))
    u.add(9, "thread_local", ref(grid), b"\x0a\x03" + bytes(8) + b"\xe0")
    u.add(9, "nowhere", ref(grid), b"\0")
    empty = u.add(11, ref(integer))
    u.add(13, ref(0xFFFFFFFF))
    u.body += b"\0"
    u.add(9, "empty", ref(empty), address(0x2020))
    types = dwarf_types(tmp_path, u.build())
    node = the(types.named("struct node"))
    assert [(m.name, m.offset, m.width) for m in node.members] == [
        ("value", 64, None), ("new", 65, 3), ("old", 8 * 16 + 32 - 26 - 3, 3)]
    assert the(types.named("unsigned long")).size == 8
    assert declare(the(types.named("node_p")).target) == "struct node *"
    listed = types.variable("list", 0x2000)
    assert isinstance(listed, Pointer) and listed.target == Incomplete("struct", "hidden")
    with pytest.raises(DebugDataError, match="struct hidden is declared but not defined"):
        size_of(listed.target)
    assert declare(types.variable("grid"), "grid") == "int grid[2][4]"
    assert size_of(types.variable("grid")) == 32
    assert types.variable("empty").count == 0
    assert types.variable("thread_local") is None and types.variable("nowhere") is None
    assert sorted(types.names()) == ["int", "long unsigned int", "node_p", "struct node"]


def test_different_types_with_one_name_are_all_found_but_copies_only_once(tmp_path):
    content = b""
    for size in (b"\4", b"\4", b"\x08"):
        one = Unit()
        one.add(3, "softc", size)
        one.body += b"\0"
        content += one.build()
    types = dwarf_types(tmp_path, content)
    assert [kind.size for kind in types.named("struct softc")] == [4, 8]


def test_types_with_equal_names_and_sizes_are_distinguished_by_content(tmp_path):
    content = b""
    for member, base in (("x", "int"), ("x", "float"), ("x", "int"), ("y", "int")):
        one = Unit()
        kind = one.add(2, base, b"\5\4")
        one.add(3, "s", b"\4")
        one.add(4, member, ref(kind), b"\0")
        one.body += b"\0"
        one.add(8, "s_t", ref(kind))
        content += one.build()
    types = dwarf_types(tmp_path, content)
    assert [declare(m.type, m.name) for s in types.named("struct s") for m in s.members] == [
        "int x", "float x", "int y"]
    assert [declare(t.target) for t in types.named("s_t")] == ["int", "float"]


def test_a_variable_is_found_by_name_and_address(tmp_path):
    u = Unit()
    integer, char = u.add(2, "int", b"\5\4"), u.add(2, "char", b"\6\1")
    declared = u.add(15, "later", ref(integer))
    u.add(16, ref(declared), address(0x2000))
    u.add(9, "dup", ref(integer), address(0x2008))
    u.add(9, "dup", ref(char), address(0x2010))
    u.add(9, "other", ref(integer), address(0x2010))
    types = dwarf_types(tmp_path, u.build())
    assert declare(types.variable("later", 0x2000), "later") == "int later"
    assert declare(types.variable("dup", 0x2010), "dup") == "char dup"


def test_a_qualifier_of_an_array_applies_to_its_elements():
    pointer = Pointer(lambda: Procedure((), False, Void))
    array = Qualified("const", lambda: Array(2, lambda: Qualified("const", lambda: pointer)))
    assert declare(array, "f") == "void (*const f[2])(void)"


def test_exponentially_growing_declarations_are_refused():
    inner = Structure("struct", "", 8, tuple)
    for _ in range(40):
        below = inner
        inner = Structure("struct", "", 8, lambda below=below: (
            Member("", 0, None, lambda: below), Member("", 0, None, lambda: below)))
    with pytest.raises(DebugDataError, match="too many unnamed members"):
        find_member(inner, "nosuch")
    procedure = Procedure((), False, Void)
    for _ in range(40):
        below = procedure
        procedure = Procedure((Parameter("", lambda below=below: Pointer(lambda: below)),) * 2,
                              False, Void)
    with pytest.raises(DebugDataError, match="nested too deep"):
        declare(procedure)


def test_dwarf_types_that_refer_to_themselves_are_refused(tmp_path):
    u = Unit()
    u.add(8, "loop", ref(u.at))
    array = u.at
    u.add(11, ref(array))
    u.add(12, b"\2")
    u.body += b"\0"
    u.add(8, "endless", ref(array))
    u.add(8, "stray", ref(0x7FFFFFFF))
    u.add(8, "tree", ref(0xB))
    types = dwarf_types(tmp_path, u.build())
    with pytest.raises(DebugDataError, match="defined in terms of itself"):
        strip(the(types.named("loop")))
    with pytest.raises(DebugDataError, match="an array has more than 64 dimensions"):
        size_of(the(types.named("endless")))
    for name in ("stray", "tree"):
        with pytest.raises(DebugDataError, match="damaged debug data"):
            strip(the(types.named(name)))


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_reading_damaged_dwarf_succeeds_or_raises_an_error(tmp_path_factory, data):
    source = catalog.find("teaching/riscv64").path
    found = {name: bytearray(s) for name, s in sections(elf_file(source), NAMES).items()}
    for _ in range(data.draw(st.integers(1, 20))):
        section = found[data.draw(st.sampled_from([".debug_info", ".debug_abbrev"]))]
        section[data.draw(st.integers(0, len(section) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "kernel"
    path.write_bytes(Elf(others={n: bytes(s) for n, s in found.items()}).build())
    try:
        walk(DwarfTypes(elf_file(path), DebugIndex(build(elf_file(path)), path)))
    except DebugDataError as error:
        assert str(error) and "\n" not in str(error)


# -- C --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("one, other", [
    ("unsigned", "unsigned int"), ("long unsigned int", "unsigned long"), ("short int", "short"),
    ("long long unsigned int", "unsigned long long"), ("signed", "int"), ("long int", "long"),
])
def test_equivalent_spellings_of_base_types_match(one, other):
    assert set(spellings(one)) & {other} and set(spellings(other)) & {one, *spellings(one)}


def test_char_is_distinct_from_signed_and_unsigned_char():
    assert spellings("char") == ("char",)
    assert "char" not in spellings("unsigned char") + spellings("signed char")


def test_an_array_of_array_typedefs_has_the_size_of_all_elements():
    inner = Array(3, lambda: Typedef("t", lambda: Array(4, lambda: Pointer(Void))))
    assert size_of(inner) == 96 and declare(inner, "x") == "t x[3]"
