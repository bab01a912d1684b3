"""Reader for the headers, sections and segments of ELF files, with every bound checked.

Layouts: System V gABI, "Object Files", 64-bit little-endian.  Tests compare the results with those
of pyelftools, which is slower.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from emu.host.errors import ImageError
from emu.host.input_file import InputFile, Ranges, ReadAt, taken

ELF_MAGIC = b"\x7fELF"
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # file header: Elf64_Ehdr
SECTION = struct.Struct("<IIQQQQIIQQ")  # section header: Elf64_Shdr
SEGMENT = struct.Struct("<IIQQQQQQ")  # program header: Elf64_Phdr
ET_REL, ET_EXEC, ET_DYN = 1, 2, 3
SHT_SYMTAB, SHT_RELA, SHT_NOTE, SHT_NOBITS, SHT_DYNSYM = 2, 4, 7, 8, 11
PT_LOAD, PT_DYNAMIC, PT_INTERP = 1, 2, 3
MAX_FILE = 2 << 30  # maximum size of an ELF file in bytes
MAX_SECTIONS = 65536
CLOSE = 65536  # largest gap in bytes that is read along with the parts around it
MAX_NAME = 256  # maximum length of a section name in bytes
# Names of e_machine numbers, without the EM_ prefix; other machines are shown as numbers.
MACHINES = {2: "SPARC", 3: "386", 8: "MIPS", 20: "PPC", 21: "PPC64", 22: "S390", 40: "ARM",
            43: "SPARCV9", 62: "X86_64", 183: "AARCH64", 243: "RISCV", 258: "LOONGARCH"}


class SectionHeader(NamedTuple):
    """A section header (Elf64_Shdr).

    :param at: offset of the section in the memory that a loader fills; None: it is not loaded.
    """

    name: str
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    at: int | None = None


class SegmentHeader(NamedTuple):
    """A program header, which describes a segment (Elf64_Phdr)."""

    kind: int
    flags: int
    offset: int
    virtual: int
    physical: int
    in_file: int
    in_memory: int
    alignment: int


class ElfFile:
    """An ELF file: its headers and its bytes.

    :ivar kind: ``e_type``.
    :ivar machine: ``e_machine`` without the EM_ prefix, or as a number.
    :ivar companions: cache of the files that belong to this one, by the section that they contain
        (``dwarf/debug_file.py``); None: no such file was found.
    :raises ImageError: if the file is not a 64-bit little-endian ELF file, or is truncated.
    """

    def __init__(self, file: InputFile) -> None:
        self.file, self.path, self.data = file, file.path, file.content
        self.companions: dict[str, ElfFile | None] = {}
        path, data = self.path, self.data
        if bytes(data[:4]) != ELF_MAGIC:
            raise ImageError(f"{path}: not an ELF file")
        if bytes(data[4:6]) != b"\2\1":
            raise ImageError(f"{path}: not a 64-bit little-endian ELF file")
        if len(data) < HEADER.size:
            raise ImageError(f"{path}: truncated: shorter than an ELF header ({HEADER.size} bytes)")
        (_ident, self.kind, machine, _version, self.entry, programs, sections, _flags, _size,
         program_size, program_count, section_size, section_count, names) = HEADER.unpack_from(data)
        self.machine = MACHINES.get(machine, str(machine))
        self.header = bytes(data[: HEADER.size])
        end = max(programs + program_size * program_count, sections + section_size * section_count)
        if end > len(data):
            raise ImageError(
                f"{path}: truncated: its tables end at {end:#x}, but the file ends at "
                f"{len(data):#x}")
        if (program_count and program_size != SEGMENT.size) or (
                section_count and section_size != SECTION.size):
            raise ImageError(f"{path}: damaged ELF file: section or program headers have the wrong "
                             "size")
        self.segments = [SegmentHeader(*row) for row in SEGMENT.iter_unpack(
            data[programs : programs + program_size * program_count])]
        self.raw_sections = bytes(data[sections : sections + section_size * section_count])
        heads = list(SECTION.iter_unpack(self.raw_sections))
        self.names_section = names
        strings = b""
        if names < len(heads) and heads[names][1] != SHT_NOBITS:
            strings = bytes(self.piece(heads[names][4], heads[names][5]))
        self.sections = [
            SectionHeader(_name(strings, name), kind, flags, address, offset, size, link, info,
                          alignment)
            for name, kind, flags, address, offset, size, link, info, alignment, _entry in heads]

    def piece(self, offset: int, size: int) -> memoryview:
        """Return bytes of the file without copying them.

        :raises ImageError: if the range extends beyond the end of the file.
        """
        if offset + size > len(self.data):
            raise ImageError(f"{self.path}: truncated: a section extends beyond the end of the "
                             "file")
        return self.data[offset : offset + size]

    def view(self, section: SectionHeader) -> memoryview:
        """Return a section's bytes in the file without copying them, or no bytes for SHT_NOBITS."""
        if section.kind == SHT_NOBITS:
            return self.data[:0]
        return self.piece(section.offset, section.size)

    def content(self, section: SectionHeader) -> bytes:
        """Return a copy of a section's bytes in the file, or no bytes for SHT_NOBITS."""
        return bytes(self.view(section))

    def section(self, name: str) -> SectionHeader | None:
        """Return the first section with the given name, or None."""
        return next((section for section in self.sections if section.name == name), None)

    def of_kind(self, kind: int) -> Iterator[SectionHeader]:
        """Yield the sections of a given type (an ``SHT_`` number)."""
        return (section for section in self.sections if section.kind == kind)


def _name(strings: bytes, at: int) -> str:
    end = strings.find(b"\0", at, at + MAX_NAME)
    return strings[at : end if end >= 0 else at + MAX_NAME].decode("utf-8", "replace")


def read_file(path: Path, whole: bool = True) -> InputFile:
    """Read an ELF file; read only the first bytes of any other file.

    :param whole: whether to read all of the file; otherwise, bytes in no section, segment or header
        are zeros, because removing debug sections may leave large gaps.
    :raises ImageError: if the file cannot be read, is empty, or has more than 2 GiB.
    """
    return taken(path, MAX_FILE, ELF_MAGIC, None if whole else _described)


def _described(read_at: ReadAt, size: int) -> Ranges:
    """Return the ranges of an ELF file that its headers describe, in ascending order.

    The range is the whole file if its headers are unusable, about which ``ElfFile`` complains.
    """
    head = read_at(0, HEADER.size)
    if len(head) < HEADER.size:
        return [(0, size)]
    (_ident, _kind, _machine, _version, _entry, programs, sections, _flags, _size, program_size,
     program_count, section_size, section_count, _names) = HEADER.unpack(head)
    ranges = [(0, HEADER.size)]
    for table, entry, width, count in ((programs, SEGMENT, program_size, program_count),
                                       (sections, SECTION, section_size, section_count)):
        if table + width * count > size or (count and width != entry.size):
            return [(0, size)]
        ranges.append((table, table + width * count))
        raw = read_at(table, width * count)
        rows = entry.iter_unpack(raw[: len(raw) - len(raw) % entry.size])
        if entry is SEGMENT:
            ranges += [(offset, offset + length)
                       for _kind, _flags, offset, _virtual, _physical, length, *_ in rows]
        else:
            ranges += [(offset, offset + length)
                       for _name, kind, _flags, _address, offset, length, *_ in rows
                       if kind != SHT_NOBITS]
    return _merged(ranges, size)


def _merged(ranges: Ranges, size: int) -> Ranges:
    """Merge ranges that are close to each other, and cut them at the end of the file."""
    merged: Ranges = []
    for begin, end in sorted((begin, min(end, size)) for begin, end in ranges if begin < size):
        if merged and begin <= merged[-1][1] + CLOSE:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged


def build_id_of(notes: bytes) -> str:
    """Return a note section's GNU build ID (NT_GNU_BUILD_ID) in hexadecimal, or an empty string."""
    at = 0
    while at + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, at)
        name = at + 12
        content = name + (name_size + 3 & ~3)
        if kind == 3 and notes[name : name + name_size] == b"GNU\0" and size <= 64:
            return notes[content : content + size].hex()
        at = content + (size + 3 & ~3)
    return ""
