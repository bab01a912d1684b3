"""Tests that the ELF header reader agrees with pyelftools."""

import pytest
from elftools.elf.elffile import ELFFile

from emu.elf.reader import ElfFile, read_file
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
