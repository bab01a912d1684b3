"""Tests of parameter locations in inline copies, in the formats of DWARF 4 and 5."""

import contextlib
import struct

import pytest
from elftools.dwarf.dwarf_expr import DWARFExprParser
from elftools.dwarf.structs import DWARFStructs
from hypothesis import given
from hypothesis import strategies as st

from dtrace.d.checks.locations import Unreadable, value
from dtrace.d.language.errors import SourcePlace
from dtrace.d.language.types import LONG
from dwarf.debug_file import DAMAGE, DebugDataError, elf_file
from dwarf.dwarf_types import DwarfTypes
from dwarf.index import DebugIndex, build
from dwarf.locations import (
    Constant,
    Entered,
    Load,
    Location,
    Operation,
    Pieces,
    Register,
    Unkept,
    evaluate,
)
from tests.dwarfwriter import abbrev, uleb, unit
from tests.elfwriter import Elf

PARSER = DWARFExprParser(DWARFStructs(little_endian=True, dwarf_format=32, address_size=8))
BASE = Register(6)


def of(*content):
    return evaluate(PARSER.parse_expr(bytes(content)), lambda: BASE)


R5, MINUS_1 = Register(5), (1 << 64) - 1


@pytest.mark.parametrize("content, wanted", [
    ([0x55], Location(R5, False)),  # DW_OP_reg5
    ([0x90, 40], Location(Register(40), False)),  # DW_OP_regx
    ([0x91, 0x78], Location(Operation("+", BASE, Constant(MINUS_1 - 7)), True)),  # DW_OP_fbreg -8
    ([0x91, 0], Location(BASE, True)),
    ([0x75, 0x10], Location(Operation("+", R5, Constant(16)), True)),  # DW_OP_breg5 16
    # DW_OP_breg5, DW_OP_stack_value
    ([0x75, 0x10, 0x9F], Location(Operation("+", R5, Constant(16)), False)),
    ([0x75, 0, 0x06, 0x9F], Location(Load(R5, 8), False)),  # DW_OP_deref
    ([0x75, 0, 0x94, 2, 0x9F], Location(Load(R5, 2), False)),  # DW_OP_deref_size 2
    ([0x31, 0x9F], Location(Constant(1), False)),  # DW_OP_lit1
    ([0x11, 0x7F, 0x9F], Location(Constant(MINUS_1), False)),  # DW_OP_consts -1
    ([0x38, 0x23, 8, 0x9F], Location(Constant(16), False)),  # DW_OP_lit8, DW_OP_plus_uconst 8
    ([0x75, 0, 0x33, 0x25, 0x9F], Location(Operation(">>", R5, Constant(3)), False)),  # DW_OP_shr
    # DW_OP_shra
    ([0x75, 0, 0x33, 0x26, 0x9F], Location(Operation(">>", R5, Constant(3), True), False)),
    # DW_OP_div
    ([0x75, 0, 0x33, 0x1B, 0x9F], Location(Operation("/", R5, Constant(3), True), False)),
    ([0x75, 0, 0x20, 0x9F], Location(Operation("^", R5, Constant(MINUS_1)), False)),  # DW_OP_not
    ([0x75, 0, 0x1F, 0x9F], Location(Operation("-", Constant(0), R5), False)),  # DW_OP_neg
    ([0x75, 0, 0x12, 0x1E, 0x9F], Location(Operation("*", R5, R5), False)),  # DW_OP_dup, DW_OP_mul
    # DW_OP_swap
    ([0x31, 0x75, 0, 0x16, 0x1C, 0x9F], Location(Operation("-", R5, Constant(1)), False)),
    ([0x9E, 2, 1, 2], Location(Constant(0x201), False)),  # DW_OP_implicit_value
    # DW_OP_entry_value, DW_OP_GNU_entry_value
    ([0xA3, 1, 0x55, 0x9F], Location(Entered(5), False)),
    ([0xF3, 2, 0x90, 40, 0x9F], Location(Entered(40), False)),
    ([0x03, *struct.pack("<Q", 0x1234)], Location(Constant(0x1234), True)),  # DW_OP_addr
])
def test_expressions_are_evaluated_symbolically(content, wanted):
    assert of(*content) == wanted


@pytest.mark.parametrize("content", [
    [], [0x22], [0x93, 4, 0x51, 0x93, 4], [0x55, 0x93, 3], [0x55, 0x93, 4, 0x51],
    [0xA3, 2, 0x75, 0, 0x9F], [0x31] * 65, [0x9C], [0x75, 0, 0x28, 1, 0, 0x31, 0x9F], [0x9F]])
def test_incomplete_values_are_unavailable(content):
    with pytest.raises(Unkept):
        of(*content)


def test_each_piece_of_a_value_has_a_location(content=(0x50, 0x93, 8, 0x75, 16, 0x93, 4)):
    assert of(*content) == Pieces((
        (Register(0), 8), (Load(Operation("+", R5, Constant(16)), 4), 4)))


ABBREVS = (
    abbrev(1, 0x11, 1, (0x11, 0x01), (0x03, 0x08))
    + abbrev(2, 0x2E, 1, (0x03, 0x08), (0x20, 0x0B), (0x27, 0x19))
    + abbrev(3, 0x05, 0, (0x03, 0x08), (0x49, 0x13))
    + abbrev(4, 0x24, 0, (0x03, 0x08), (0x0B, 0x0B), (0x3E, 0x0B))
    + abbrev(5, 0x2E, 1, (0x03, 0x08), (0x11, 0x01), (0x12, 0x06), (0x40, 0x18))
    + abbrev(6, 0x1D, 1, (0x31, 0x13), (0x11, 0x01), (0x12, 0x06))
    + abbrev(7, 0x05, 0, (0x31, 0x13), (0x02, 0x18))
    + abbrev(8, 0x05, 0, (0x31, 0x13), (0x02, 0x17))
    + abbrev(9, 0x05, 0, (0x31, 0x13), (0x1C, 0x0D)) + b"\0")
LOC_4 = struct.pack("<QQH", 0x100, 0x110, 1) + b"\x55" + struct.pack(
    "<QQ", (1 << 64) - 1, 0x2000) + struct.pack("<QQH", 0, 4, 1) + b"\x54" + bytes(16)
LOC_5 = (b"\4" + uleb(0x100) + uleb(0x110) + b"\1\x55" + b"\6" + struct.pack("<Q", 0x2000)
         + b"\4" + uleb(0) + uleb(4) + b"\1\x54" + b"\5\1\x53" + b"\0")


def frames(low, size, *changes):
    """Return a .debug_frame section with one entry, whose initial CFA rule is register 7 + 8.

    :param changes: (code offset in bytes, register, offset) of each new rule for that address.
    """
    common = struct.pack("<I", 0xFFFFFFFF) + b"\1\0\1\x78\x10" + b"\x0c\7\x08"
    code = b"".join(bytes([0x02, after, 0x0C, register, offset])
                    for after, register, offset in changes)
    out = b""
    for entry in (common, struct.pack("<IQQ", 0, low, size) + code):
        entry += bytes(-len(entry) % 4)
        out += struct.pack("<I", len(entry)) + entry
    return out


# The frame exists from 4 bytes after the caller's start until 8 bytes before the caller's end.
FRAME = frames(0x1100, 0x80, (4, 6, 16), (0x74, 7, 8))


def kernel(tmp_path, version, at=0, lists=None, frame=FRAME, base=b"\x56"):
    """Write a kernel with ``tiny(a, b, c, d)`` inlined once, and return (types, inline copy).

    ``a`` has a location list, ``b`` is in the frame, ``c`` is the constant 7, ``d`` is unavailable.
    """
    header = 12 if version >= 5 else 11
    body = b"\1" + struct.pack("<Q", 0x1000) + b"f.c\0"
    number = header + len(body)
    body += b"\4int\0" + bytes([4, 5])
    tiny = header + len(body)
    body += b"\2tiny\0\3"
    parameters = []
    for name in b"abcd":
        parameters.append(header + len(body))
        body += b"\3" + bytes([name, 0]) + struct.pack("<I", number)
    body += b"\0" + b"\5caller\0" + struct.pack("<QI", 0x1100, 0x80) + b"\1" + base  # frame base
    body += b"\6" + struct.pack("<IQI", tiny, 0x1108, 8)
    body += b"\x08" + struct.pack("<II", parameters[0], at)
    body += b"\7" + struct.pack("<I", parameters[1]) + b"\2\x91\x70"  # DW_OP_fbreg -16
    body += b"\x09" + struct.pack("<I", parameters[2]) + b"\7"
    body += b"\0\0\0"
    name = ".debug_loclists" if version >= 5 else ".debug_loc"
    content = (LOC_5 if version >= 5 else LOC_4) if lists is None else lists
    path = tmp_path / "kernel"
    path.write_bytes(Elf(others={
        ".debug_info": unit(version, body), ".debug_abbrev": ABBREVS, name: content,
        **({".debug_frame": frame} if frame else {})}).build())
    index = DebugIndex(build(elf_file(path)), path)
    (copy,) = index.copies("tiny")
    return DwarfTypes(elf_file(path), index), copy


@pytest.mark.parametrize("version", [4, 5])
def test_parameters_are_located_in_declaration_order(tmp_path, version):
    types, copy = kernel(tmp_path, version)
    procedure, places = types.inlined(copy, 0x1108)
    assert [p.name for p in procedure.parameters] == list("abcd")
    assert places == [Location(R5, False),
                      Location(Operation("+", BASE, Constant(MINUS_1 - 15)), True),
                      Location(Constant(7), False), None]


def in_frame(types, copy, address, frame=None):
    """Return the location of `b`, which is 16 bytes below the frame base."""
    return types.inlined(copy, address, frame)[1][1]


def test_in_prologue_and_epilogue_the_frame_is_derived_from_code_or_unknown(tmp_path):
    types, copy = kernel(tmp_path, 4)
    inside = Location(Operation("+", BASE, Constant(MINUS_1 - 15)), True)
    # In the prologue and epilogue, the frame base (CFA - 16) must be register 7 minus 8.
    # The value, 16 bytes lower, is then below the stack pointer: the function has no place for it.
    places = [in_frame(types, copy, at) for at in (0x1100, 0x1104, 0x1177, 0x1178)]
    assert places == [None, inside, inside, None]
    types, copy = kernel(tmp_path, 4)
    # A rule derived from code also covers an epilogue that the debug data does not describe.
    assert [in_frame(types, copy, at, (7, 8)) for at in (0x1100, 0x1177, 0x1178)] == [None] * 3
    types, copy = kernel(tmp_path, 4)
    lowered = Location(Operation("+", Operation("+", Register(7), Constant(0x40 - 16)),
                                 Constant(MINUS_1 - 15)), True)
    assert [in_frame(types, copy, at, (7, 0x40)) for at in (0x1100, 0x1177, 0x1178)] == [
        lowered] * 3


def test_without_frame_information_values_in_the_frame_are_unknown(tmp_path):
    for frame in (b"", frames(0x5000, 0x80)):
        types, copy = kernel(tmp_path, 4, frame=frame)
        assert in_frame(types, copy, 0x1108) is None


def test_a_frame_based_on_another_register_does_not_locate_the_frame_base(tmp_path):
    types, copy = kernel(tmp_path, 4, frame=frames(0x1100, 0x80, (4, 3, 16), (0x74, 7, 8)))
    assert [in_frame(types, copy, at) for at in (0x1100, 0x1104, 0x1177, 0x1178)] == [None] * 4


@pytest.mark.parametrize("changes, wanted", [
    ([(4, 7, 0x28), (0x74, 7, 8)], (None, -0x10, -0x10, None)),
    ([(4, 6, 0x10), (0x74, 7, 8)], (None, -0x10, -0x10, None))], ids=["alone", "beside a frame's"])
def test_a_frame_base_in_the_stack_pointer_is_known_while_it_is_constant(tmp_path, changes, wanted):
    types, copy = kernel(tmp_path, 4, frame=frames(0x1100, 0x80, *changes), base=b"\x57")
    found = [in_frame(types, copy, at) for at in (0x1100, 0x1104, 0x1177, 0x1178)]
    for place, offset in zip(found, wanted, strict=True):
        assert (place is None) == (offset is None)
        if place is not None:
            assert value(SourcePlace(1), place, LONG, {7: 7}) is not None
            assert _sum(place.term) == offset


def _sum(term):
    """Return the constant that a term adds to register 7."""
    if term == Register(7):
        return 0
    added = term.right.value
    return _sum(term.left) + added - (added >> 63 << 64)


@pytest.mark.parametrize("version, otherwise", [(4, None), (5, Location(Register(3), False))])
def test_location_lists_are_relative_to_a_base_and_may_have_a_default(tmp_path, version, otherwise):
    types, copy = kernel(tmp_path, version)
    assert types.inlined(copy, 0x2003)[1][0] == Location(Register(4), False)
    assert types.inlined(copy, 0x2004)[1][0] == otherwise


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("at, lists",
                         [(0, b""), (1000, None), (0, b"\1" * 40), (0, b"\4" * 200000)],
                         ids=["empty", "far", "short", "endless"])
def test_a_damaged_location_list_is_reported(tmp_path, version, at, lists):
    types, copy = kernel(tmp_path, version, at, lists)
    with pytest.raises(DebugDataError, match="damaged debug data"):
        types.inlined(copy, 0x1108)


@given(st.binary(max_size=80) | st.lists(st.sampled_from([0x12, 0x22, 0x1C, 0x06, 0x75, 0x31, 0])
                                         ).map(bytes))
def test_arbitrary_bytes_are_evaluated_or_refused(content):
    try:
        found = of(*content)
    except (Unkept, *DAMAGE):
        return
    assert isinstance(found, Location) and hash(found) == hash(of(*content))
    with contextlib.suppress(Unreadable):
        value(SourcePlace(1), found, LONG, {number: number for number in range(32)})


def test_an_exponentially_growing_expression_is_refused():
    with pytest.raises(Unkept, match="more than 256 terms"):
        of(0x75, 0, *[0x12, 0x22] * 30, 0x9F)


def test_an_overlong_expression_is_ignored(tmp_path):
    types, copy = kernel(tmp_path, 4, 0, struct.pack("<QQH", 0x100, 0x110, 5000) + bytes(5000 + 16))
    assert types.inlined(copy, 0x1108)[1][0] is None
