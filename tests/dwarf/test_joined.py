"""Tests of debug data that is spread over type units and dwz files."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dwarf._scan import Scan, ScanError
from dwarf.debug_file import DebugDataError, elf_file, sections
from dwarf.dwarf_types import DwarfTypes
from dwarf.index import DebugIndex, build
from dwarf.joined import NotJoined, join
from dwarf.types import Structure, declare, strip
from tests.dwarfwriter import abbrev, uleb
from tests.elfwriter import Elf
from tests.kinst_emu.commands.test_commands import refused, run

SIGNATURE, OTHER = 0x1122334455667788, 0x8877665544332211
# Abbreviations for units, structures with members, base types, pointers and variables.
ABBREVS = (
    abbrev(1, 0x11, 1, (0x03, 0x08))
    + abbrev(2, 0x41, 1, (0x13, 0x0B))
    + abbrev(3, 0x13, 1, (0x03, 0x08), (0x0B, 0x0B))  # structure; DW_AT_name, DW_AT_byte_size
    + abbrev(4, 0x0D, 0, (0x03, 0x08), (0x49, 0x13), (0x38, 0x0B))  # member; type as DW_FORM_ref4
    + abbrev(5, 0x24, 0, (0x03, 0x08), (0x0B, 0x0B), (0x3E, 0x0B))
    + abbrev(6, 0x34, 0, (0x03, 0x08), (0x49, 0x20), (0x02, 0x18))  # variable; type as a signature
    + abbrev(7, 0x0D, 0, (0x03, 0x08), (0x49, 0x20), (0x38, 0x0B))
    + abbrev(8, 0x0F, 0, (0x49, 0x15))  # pointer; type as DW_FORM_ref_udata
    + abbrev(9, 0x13, 0, (0x3C, 0x19), (0x69, 0x20))  # declaration with a signature, as gcc emits
    + abbrev(10, 0x34, 0, (0x03, 0x08), (0x49, 0x13), (0x02, 0x18))
    + b"\0")
ADDRESS = b"\x09\x03" + struct.pack("<Q", 0x1000)  # an exprloc with DW_OP_addr


def compile_unit(version, body, abbrevs=0):
    head = (struct.pack("<HBBI", 5, 1, 8, abbrevs) if version >= 5
            else struct.pack("<HIB", version, abbrevs, 8))
    return struct.pack("<I", len(head + body)) + head + body


def type_unit(version, signature, body, type_at):
    """Return a type unit whose type entry is at offset ``type_at`` in the unit's body."""
    if version >= 5:
        head = struct.pack("<HBBIQ", 5, 2, 8, 0, signature)
    else:
        head = struct.pack("<HIBQ", version, 0, 8, signature)
    offset = struct.pack("<I", 4 + len(head) + 4 + type_at)
    return struct.pack("<I", len(head) + 4 + len(body)) + head + offset + body


def header_size(version):
    return 24 if version >= 5 else 23


def box(version, of=OTHER):
    """Return a type unit with ``struct box { int first; struct other second; }`` and ``box *``."""
    base = header_size(version)
    start = b"\2\x0c"
    number = b"\5int\0\4\5"
    struct_at = base + len(start) + len(number)
    members = (b"\4first\0" + struct.pack("<I", base + len(start)) + b"\0"
               + b"\7second\0" + struct.pack("<Q", of) + b"\4")
    body = start + number + b"\3box\0\x0c" + members + b"\0" + b"\x08" + uleb(struct_at) + b"\0"
    return type_unit(version, SIGNATURE, body, len(start) + len(number))


def other(version):
    """Return a type unit for ``struct other { unsigned char byte; }``."""
    base = header_size(version)
    start, number = b"\2\x0c", b"\5unsigned char\0\1\x08"
    byte = b"\4byte\0" + struct.pack("<I", base + len(start)) + b"\0"
    body = start + number + b"\3other\0\1" + byte + b"\0\0"
    return type_unit(version, OTHER, body, len(start) + len(number))


def user(version):
    """Return a compilation unit with a variable ``struct box thing``."""
    return compile_unit(version, b"\1f.c\0\6thing\0" + struct.pack("<Q", SIGNATURE) + ADDRESS
                        + b"\0")


def written(tmp_path, version):
    units = [box(version), other(version)]
    others = {".debug_abbrev": ABBREVS}
    if version >= 5:
        others[".debug_info"] = units[0] + user(5) + units[1]
    else:
        others |= {".debug_info": user(4), ".debug_types": b"".join(units)}
    path = tmp_path / f"types{version}"
    path.write_bytes(Elf(others=others).build())
    return path


@pytest.mark.parametrize("version", [4, 5])
def test_types_in_type_units_are_found_by_name_and_by_signature(
        tmp_path, version):
    path = written(tmp_path, version)
    types = DwarfTypes(elf_file(path), DebugIndex(build(elf_file(path)), path))
    (found,) = types.named("struct box")
    assert isinstance(found, Structure) and found.size == 12
    assert [(m.name, declare(m.type), m.offset) for m in found.members] == [
        ("first", "int", 0), ("second", "struct other", 32)]
    inner = strip(found.members[1].type)
    assert [m.name for m in inner.members] == ["byte"]
    thing = types.variable("thing")
    assert declare(thing) == "struct box" and strip(thing).size == 12


@pytest.mark.parametrize("version", [4, 5])
def test_a_missing_type_unit_is_reported_with_its_signature(tmp_path, version):
    others = {".debug_abbrev": ABBREVS, ".debug_info": user(version)}
    if version < 5:
        others[".debug_types"] = other(4)
    else:
        others[".debug_info"] += other(5)
    path = tmp_path / "missing"
    path.write_bytes(Elf(others=others).build())
    with pytest.raises(DebugDataError, match="defines the type with signature 0x1122334455667788"):
        build(elf_file(path))


@pytest.mark.parametrize("version", [4, 5])
def test_a_declaration_with_a_signature_resolves_to_the_type_unit(tmp_path, version):
    """gcc refers to a type unit through a declaration in the unit that uses the type."""
    body = b"\1f.c\0"
    at = (12 if version >= 5 else 11) + len(body)
    body += b"\x09" + struct.pack("<Q", SIGNATURE)
    body += b"\x0athing\0" + struct.pack("<I", at) + ADDRESS + b"\0"
    units, own = [box(version), other(version)], compile_unit(version, body)
    others = {".debug_abbrev": ABBREVS, ".debug_info": own + b"".join(units if version > 4 else [])}
    if version < 5:
        others[".debug_types"] = b"".join(units)
    path = tmp_path / "gcc"
    path.write_bytes(Elf(others=others).build())
    types = DwarfTypes(elf_file(path), DebugIndex(build(elf_file(path)), path))
    thing = types.variable("thing")
    assert declare(thing) == "struct box" and strip(thing).size == 12


def test_units_that_share_huge_abbreviation_tables_are_refused(tmp_path):
    """Each of 2,000 units refers to a different offset in one long abbreviation table."""
    tables = b"".join(abbrev(code, 0x11, 0) for code in range(1, 20_000)) + b"\0"
    units = b"".join(compile_unit(4, b"\0", 5 * n) for n in range(2000))
    with pytest.raises(NotJoined, match="too much work"):
        join({".debug_info": units, ".debug_abbrev": tables}, b"", None)
    many = b"".join(uleb(code) + b"\x11\0\0\0" for code in range(1, 300_000)) + b"\0"
    with pytest.raises(NotJoined, match="too many abbreviations"):
        join({".debug_info": compile_unit(4, b"\0"), ".debug_abbrev": many}, b"", None)


def test_unsupported_debug_data_is_not_reported_as_damaged(tmp_path):
    path, _common = shared(tmp_path, version=2)
    said = run("kinst", "type", "-k", str(path), "long")
    refused(said, "unsupported debug data: reference to another part in a DWARF 2 unit")
    assert "damaged" not in said.stderr


# -- dwz -------------------------------------------------------------------------------------------

THEIRS = abbrev(1, 0x3C, 1) + abbrev(2, 0x24, 0, (0x03, 0x0E), (0x0B, 0x0B), (0x3E, 0x0B)) + b"\0"
STRINGS, THEIR_STRINGS = b"zero\0value\0", b"none\0long int\0"
BUILD_ID = bytes(range(20))


def shared(tmp_path, sup=False, version=5):
    """Write a file that declares ``long int value``, with the type and name in a dwz file.

    :return: the paths of both files.
    """
    ref, strp = (0x1C, 0x1D) if sup else (0x1F20, 0x1F21)
    abbrevs = (abbrev(1, 0x11, 1, (0x03, 0x08)) + abbrev(2, 0x34, 0, (0x03, 0x0E), (0x49, ref),
                                                         (0x02, 0x18))
               + abbrev(3, 0x16, 0, (0x03, strp), (0x49, ref)) + b"\0")
    at = 12 + 1  # offset of the type's entry in the dwz file's unit
    info = compile_unit(version, b"\1g.c\0\2" + struct.pack("<II", 5, at) + ADDRESS
                        + b"\3" + struct.pack("<II", 5, at) + b"\0")
    checksum = uleb(len(BUILD_ID)) + BUILD_ID
    own = {".debug_info": info, ".debug_abbrev": abbrevs, ".debug_str": STRINGS}
    theirs = {".debug_info": compile_unit(5, b"\1\2" + struct.pack("<I", 5) + b"\x08\x05\0"),
              ".debug_abbrev": THEIRS, ".debug_str": THEIR_STRINGS}
    if sup:
        own[".debug_sup"] = b"\5\0\0common.dwz\0" + checksum
        theirs[".debug_sup"] = b"\5\0\1\0" + checksum
    else:
        own[".gnu_debugaltlink"] = b"common.dwz\0" + BUILD_ID
    path, common = tmp_path / "shared", tmp_path / "common.dwz"
    path.write_bytes(Elf(others=own).build())
    common.write_bytes(Elf(others=theirs, build_id=b"" if sup else BUILD_ID, symbols=[],
                           kind=1).build())
    return path, common


@pytest.mark.parametrize("sup", [False, True])
def test_entries_and_names_in_a_dwz_file_are_read(tmp_path, sup):
    path, _common = shared(tmp_path, sup)
    types = DwarfTypes(elf_file(path), DebugIndex(build(elf_file(path)), path))
    assert declare(types.variable("value")) == "long int"
    base, alias = types.named("long int")
    assert strip(base).size == strip(alias).size == 8


@pytest.mark.parametrize("sup", [False, True])
def test_a_missing_or_mismatched_dwz_file_is_named(tmp_path, sup):
    path, common = shared(tmp_path, sup)
    content = common.read_bytes()
    common.unlink()
    refused(run("kinst", "type", "-k", str(path), "long"),
            f"{path}: some of its debug data is in common.dwz (dwz), which is missing")
    common.write_bytes(content.replace(BUILD_ID, bytes(20)))
    refused(run("kinst", "type", "-k", str(path), "long"),
            f"{common}: comes from a different build than {path}")


def test_split_debug_data_is_reported_as_unsupported(tmp_path):
    abbrevs = abbrev(1, 0x4A, 0, (0x76, 0x08)) + b"\0"
    path = tmp_path / "split"
    path.write_bytes(Elf(others={
        ".debug_abbrev": abbrevs, ".debug_info": compile_unit(4, b"\1f.dwo\0")}).build())
    for command in (("type", "int"), ("inline", "f"), ("line", "start")):
        refused(run("kinst", command[0], "-k", str(path), command[1]),
                f"{path}: split debug data (.dwo or .dwp files) is not supported")


# -- damaged data ----------------------------------------------------------------------------------

@settings(max_examples=400, deadline=None)
@given(st.data())
def test_joining_damaged_parts_succeeds_or_raises_an_error(data):
    own = {".debug_info": bytearray(user(4) + box(5) + other(5)),
           ".debug_abbrev": bytearray(ABBREVS), ".debug_str": bytearray(STRINGS)}
    theirs = {".debug_info": bytearray(compile_unit(
        5, b"\1\2" + struct.pack("<I", 5) + b"\x08\x05\0")), ".debug_abbrev": bytearray(THEIRS),
        ".debug_str": bytearray(THEIR_STRINGS)}
    types = bytearray(box(4) + other(4))
    for _ in range(data.draw(st.integers(0, 12))):
        part = data.draw(st.sampled_from([*own.values(), *theirs.values(), types]))
        part[data.draw(st.integers(0, len(part) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = join({k: bytes(v) for k, v in own.items()}, bytes(types),
                     {k: bytes(v) for k, v in theirs.items()})
        Scan(found[".debug_info"], found[".debug_abbrev"], b"", b"", b"", b"").tables()
    except (NotJoined, ScanError) as error:
        assert ".debug_info+0x" in str(error)


def test_joined_parts_keep_their_length():
    own = {".debug_info": user(4), ".debug_abbrev": ABBREVS, ".debug_str": STRINGS}
    found = join(own, box(4) + other(4), None)
    assert len(found[".debug_info"]) == len(user(4) + box(4) + other(4))
    assert len(found[".debug_abbrev"]) == len(ABBREVS)


def test_sections_with_the_same_name_are_concatenated(tmp_path):
    """An object file has a separate section for each type unit."""
    path = tmp_path / "parts.o"
    content = Elf(others={".debug_info": user(5), ".debug_abbrev": ABBREVS, ".debug_inf0": box(5),
                          ".debug_inf1": other(5)}).build()
    path.write_bytes(content.replace(b".debug_inf0", b".debug_info").replace(
        b".debug_inf1", b".debug_info"))
    found = sections(elf_file(path), (".debug_info", ".debug_abbrev"))
    assert len(found[".debug_info"]) == len(user(5) + box(5) + other(5))
    types = DwarfTypes(elf_file(path), DebugIndex(build(elf_file(path)), path))
    assert declare(types.variable("thing")) == "struct box"
