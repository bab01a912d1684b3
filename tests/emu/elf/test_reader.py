"""Tests that the ELF header reader agrees with pyelftools."""

import struct

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emu.elf.reader import SHT_NOBITS, ElfFile, read_file
from emu.host.errors import ImageError
from images import catalog
from tests.elfwriter import Elf

ARCHES = ["amd64", "arm64", "riscv64"]


@pytest.mark.parametrize("arch", ARCHES)
def test_headers_names_and_contents_match_pyelftools(arch):
    path = catalog.find(f"teaching/{arch}").path
    ours = ElfFile(read_file(path))
    with path.open("rb") as file:
        theirs = ELFFile(file)
        assert ours.machine == theirs["e_machine"].removeprefix("EM_")
        assert ours.entry == theirs["e_entry"]
        assert [s.name for s in ours.sections] == [s.name for s in theirs.iter_sections()]
        fields = ("sh_flags", "sh_addr", "sh_offset", "sh_size", "sh_link", "sh_info",
                  "sh_addralign")
        assert [tuple(s[2:9]) for s in ours.sections] == [
            tuple(s[name] for name in fields) for s in theirs.iter_sections()]
        assert [(s.offset, s.virtual, s.physical, s.in_file, s.in_memory)
                for s in ours.segments] == [
            tuple(s[name] for name in ("p_offset", "p_vaddr", "p_paddr", "p_filesz", "p_memsz"))
            for s in theirs.iter_segments()]
        for one, other in zip(ours.sections, theirs.iter_sections(), strict=True):
            if other["sh_type"] != "SHT_NOBITS" and not other.compressed:
                assert ours.content(one) == other.data()


@pytest.mark.parametrize(("change", "says"), [
    (lambda data: data[:3], "not an ELF file"),
    (lambda data: data[:30], "truncated"),
    (lambda data: data[:4] + b"\1" + data[5:], "64-bit"),
    (lambda data: data[:5] + b"\2" + data[6:], "64-bit"),
    (lambda data: data[:-1], "truncated"),
    (lambda data: data[:54] + b"\x39" + data[55:], "damaged"),
])
def test_an_invalid_elf_file_is_refused_in_one_line(tmp_path, change, says):
    path = tmp_path / "kernel"
    path.write_bytes(change(Elf().build()))
    with pytest.raises(ImageError, match=says) as error:
        ElfFile(read_file(path))
    assert "\n" not in str(error.value)


def test_a_section_past_the_end_of_the_file_is_reported(tmp_path):
    path = tmp_path / "kernel"
    path.write_bytes(Elf().build())
    one = ElfFile(read_file(path))
    with pytest.raises(ImageError, match="truncated"):
        one.content(one.sections[1]._replace(offset=1 << 40))


def test_gaps_between_sections_are_not_read(tmp_path):
    """Removing the debug sections of a kernel leaves such gaps."""
    data, gap = Elf(others={"debug": b"content"}).build(), b"gap" * 100_000
    sections = struct.unpack_from("<Q", data, 40)[0]
    path = tmp_path / "kernel"
    path.write_bytes(
        data[:40] + struct.pack("<Q", sections + len(gap)) + data[48:sections] + gap
        + data[sections:])
    assert bytes(read_file(path).content) == path.read_bytes()
    file = read_file(path, whole=False)
    one = ElfFile(file)
    assert len(file.content) == len(data) + len(gap)
    assert bytes(file.content[: sections]) == path.read_bytes()[: sections]
    assert bytes(file.content[sections : sections + len(gap)]) == bytes(len(gap))
    section = one.section("debug")
    assert section is not None and one.content(section) == b"content"
    path.write_bytes(data)
    before = ElfFile(read_file(path, whole=False))
    assert [s.name for s in before.sections] == [s.name for s in one.sections]


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), max_size=12))
def test_a_damaged_header_is_read_or_refused_in_one_line(tmp_path, monkeypatch, changes):
    monkeypatch.setattr("emu.elf.reader.CLOSE", 0)  # the gaps of this file are small
    data = bytearray(Elf(others={"debug": b"content"}).build())
    for at, value in changes:
        data[at % len(data)] = value
    path = tmp_path / "kernel"
    path.write_bytes(data)
    try:
        one = ElfFile(read_file(path, whole=False))
        for section in one.sections:
            held = bytes(data[section.offset : section.offset + section.size])
            assert one.content(section) == (b"" if section.kind == SHT_NOBITS else held)
    except ImageError as error:
        assert "\n" not in str(error)
