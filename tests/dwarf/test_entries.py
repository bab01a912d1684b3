"""Tests of the native reader of entries, against pyelftools."""

import itertools
import struct

import pytest
from elftools.dwarf.enums import ENUM_DW_AT, ENUM_DW_TAG
from hypothesis import given, settings
from hypothesis import strategies as st

from dwarf._entries import EntryError, EntryReader
from dwarf.debug_file import elf_file, sections
from dwarf.entries import NATIVE, Entries
from images import catalog
from tests.conftest import ARCHES
from tests.dwarfwriter import abbrev, uleb, unit

# Forms of values that are None, and forms of references within a unit
LEFT_OUT = ("DW_FORM_addrx", "DW_FORM_loclistx", "DW_FORM_rnglistx", "DW_FORM_data16")
RELATIVE = ("DW_FORM_ref1", "DW_FORM_ref2", "DW_FORM_ref4", "DW_FORM_ref8", "DW_FORM_ref_udata")
TAG, STRING, SDATA, STRX1, IMPLICIT, INDIRECT, BLOCK1 = 0x34, 0x08, 0x0D, 0x25, 0x21, 0x16, 0x0A


def reader(path):
    found = sections(elf_file(path), NATIVE)
    return EntryReader(*(found.get(name, b"") for name in NATIVE))


def expected(attribute, unit_offset):
    """Return a value of pyelftools as the native reader gives it: None for some forms."""
    if attribute.form.startswith(LEFT_OUT):
        return None
    value = attribute.value
    if attribute.form in RELATIVE:
        return attribute.raw_value + unit_offset
    return bytes(value) if isinstance(value, list) else value


@pytest.mark.parametrize("arch", ARCHES)
def test_every_entry_and_its_children_are_those_of_pyelftools(arch):
    path = catalog.find(f"teaching/{arch}").path
    native, entries = reader(path), Entries(elf_file(path))
    count = 0
    for compiled in entries._dwarf.iter_CUs():
        rows = [die for die in compiled.iter_DIEs() if not die.is_null()]
        for die in rows:
            count += 1
            found = native.entry(compiled.cu_offset, die.offset)
            assert (found.offset, found.tag, found.has_children) == (
                die.offset, ENUM_DW_TAG[die.tag], die.has_children)
            assert found.unit == compiled.cu_offset
            assert found.end == compiled.cu_offset + compiled["unit_length"] + 4
            wanted = {ENUM_DW_AT[name]: expected(attribute, compiled.cu_offset)
                      for name, attribute in die.attributes.items()}
            assert found.attributes == wanted
            tags = sorted({ENUM_DW_TAG[child.tag] for child in die.iter_children()})
            for chosen in (tags[:16], tags[:1], [0x7FFF]):
                assert [child.offset for child in native.children(found, *chosen)] == [
                    child.offset for child in die.iter_children()
                    if ENUM_DW_TAG[child.tag] in chosen]
    assert count > 500


def test_signed_indirect_and_indexed_values_are_read():
    abbrevs = (abbrev(1, 0x11, 1, (0x03, STRX1), (0x72, 0x17)) + uleb(2) + uleb(TAG) + b"\0"
               + uleb(0x1C) + uleb(IMPLICIT) + b"\x7d" + b"\0\0"
               + abbrev(3, TAG, 0, (0x1C, INDIRECT), (0x03, STRX1), (0x38, BLOCK1)) + b"\0")
    body = (b"\1\1" + struct.pack("<I", 8) + b"\2" + b"\3" + bytes([SDATA]) + b"\x7e\0" + b"\2ab"
            + b"\0")
    read = EntryReader(unit(5, body), abbrevs, b"none\0first\0second\0", b"",
                       bytes(8) + struct.pack("<II", 5, 11))
    top = read.entry(0, 12)
    assert top.attributes == {0x03: b"second", 0x72: 8}
    assert [child.attributes for child in read.children(top, TAG)] == [
        {0x1C: -3}, {0x1C: -2, 0x03: b"first", 0x38: b"ab"}]


PLAIN = abbrev(1, 0x11, 1, (0x03, STRING)) + abbrev(2, TAG, 0, (0x03, 0x0E)) + b"\0"


@pytest.mark.parametrize("info, offset, says", [
    (b"\1", 0, "truncated unit header"),
    (unit(4, b"\1f.c\0\7\0"), 16, "undefined abbreviation code"),
    (unit(4, b"\1f.c\0\0"), 17, "outside of its unit"),
    (unit(4, b"\1f.c\0\0"), 1 << 40, "outside of its unit"),
    (unit(4, b"\1f.c\0\0"), 16, "empty entry"),
    (unit(4, b"\1f.c\0\2\x99\0\0\0\0"), 16, "string outside of its section"),
    (unit(4, b"\1f.c\0\2\x99"), 16, "truncated attribute"),
])
def test_an_inconsistent_entry_is_refused_with_its_offset(info, offset, says):
    with pytest.raises(EntryError, match=says) as error:
        EntryReader(info, PLAIN, b"abc\0", b"", b"").entry(0, offset)
    assert ".debug_info+0x" in str(error.value)


@pytest.mark.parametrize("base", [(STRING, b"x\0"), (SDATA, b"\x7f"), (BLOCK1, b"\1x"),
                                  (0x17, b"\xff\0\0\0"), (None, b"")])
def test_an_indexed_string_without_a_valid_base_is_refused_each_time(base):
    form, value = base
    abbrevs = (abbrev(1, 0x11, 1, *[(0x72, form)] * (form is not None))
               + abbrev(2, TAG, 0, (0x03, STRX1)) + b"\0")
    read = EntryReader(unit(5, b"\1" + value + b"\2\0\0"), abbrevs, b"name\0", b"", bytes(16))
    for _ in range(2):
        with pytest.raises(EntryError, match=r"str_offsets_base|outside of its section"):
            read.entry(0, 13 + len(value))


def test_children_without_end_and_too_many_children_are_refused():
    endless = EntryReader(unit(4, b"\1f.c\0\2\0\0\0\0"), PLAIN, b"abc\0", b"", b"")
    with pytest.raises(EntryError, match="truncated entry"):
        endless.children(endless.entry(0, 11), TAG)
    many = EntryReader(unit(4, b"\1f.c\0" + b"\2\0\0\0\0" * 70_000 + b"\0"), PLAIN, b"abc\0", b"",
                       b"")
    with pytest.raises(EntryError, match="more than 65536"):
        many.children(many.entry(0, 11), 0x7777)
    # Each of 60,000 entries has 100,000 attributes that occupy no bytes, and one that does.
    wide = (abbrev(1, 0x11, 1, (0x03, STRING))
            + abbrev(2, TAG, 0, *[(0x3F, 0x19)] * 100_000, (0x03, STRING)) + b"\0")
    slow = EntryReader(unit(4, b"\1f.c\0" + b"\2\0" * 60_000 + b"\0"), wide, b"", b"", b"")
    with pytest.raises(EntryError, match="too much work"):
        slow.children(slow.entry(0, 11), 0x7777)


@settings(max_examples=200)
@given(st.data())
def test_reading_damaged_sections_succeeds_or_raises_entry_error(data):
    path = catalog.find("teaching/amd64").path
    found = sections(elf_file(path), NATIVE)
    parts = [bytearray(found.get(name, b"")) for name in NATIVE]
    for _ in range(data.draw(st.integers(0, 30))):
        section = data.draw(st.sampled_from([part for part in parts if part]))
        section[data.draw(st.integers(0, len(section) - 1))] = data.draw(st.integers(0, 255))
    read = EntryReader(*map(bytes, parts))
    offset, unit_offset = data.draw(st.integers(0, 4000)), data.draw(st.sampled_from(
        [0, 0, 0, 1, len(parts[0]), (1 << 64) - 1]))
    try:
        waiting = [read.entry(unit_offset, 11 + data.draw(st.sampled_from([0, 1, offset])))]
        for _ in range(50):
            if not waiting:
                break
            waiting += read.children(waiting.pop(), 0x34, 0x05, 0x2E, 0x0D)
    except EntryError as error:
        assert ".debug_info+" in str(error)


@pytest.mark.parametrize("words", list(itertools.product([-1, 0, 1 << 64, None, "x"], repeat=2)))
def test_odd_arguments_are_errors(words):
    read = EntryReader(unit(4, b"\1f.c\0\0"), PLAIN, b"abc\0", b"", b"")
    with pytest.raises((TypeError, OverflowError, ValueError)):
        read.entry(*words)
    with pytest.raises((TypeError, OverflowError, ValueError)):
        read.children(*words)
    with pytest.raises(ValueError, match="more than 16 tags"):
        read.children(read.entry(0, 11), *range(17))
