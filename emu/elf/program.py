"""ELF files of guest programs, with their symbols and code (System V gABI)."""

import functools
import hashlib
from pathlib import Path

from emu.elf.reader import (
    ET_DYN,
    ET_EXEC,
    PT_INTERP,
    PT_LOAD,
    SHT_DYNSYM,
    SHT_SYMTAB,
    ElfFile,
    read_file,
)
from emu.elf.symbols import SYMBOL, Symbol, SymbolTable
from emu.host.errors import ImageError
from emu.host.input_file import InputFile

PF_X, PAGE = 1, 4096
SHT_PROGBITS, SHF_EXECINSTR = 1, 4
MOST_PARTS = 64  # maximum number of segments that a loader maps
ALIAS = b"$dtrace"  # beginning of the names that dtrace -G adds
END = 1 << 47  # end of a program's address space
MOST_COVERED = 16  # maximum total size of all functions, as a multiple of the code size


class ProgramFile:
    """A program or shared object.

    :param file: the file; default: it is read.
    :param movable: whether it may be position-independent.  The symbols then have the addresses in
        the file, and those of a stripped file are the ones that other files can use.
    :param debug: a file with the symbols; default: ``file`` itself.
    :param bare: whether the file may lack symbols.
    :raises ImageError: if the file is not such a program, is damaged, or has no symbols.
    """

    def __init__(self, path: Path, file: InputFile | None = None, movable: bool = False,
                 debug: InputFile | None = None, bare: bool = False) -> None:
        elf = ElfFile(file or read_file(path))
        named = elf if debug is None else ElfFile(debug)
        if elf.kind != ET_EXEC and not (movable and elf.kind == ET_DYN):
            raise ImageError(f"{path}: is position-independent, so its load address is unknown; "
                             "link it statically, with -no-pie")
        if sum(one.kind == PT_LOAD for one in elf.segments) > MOST_PARTS:
            raise ImageError(f"{path}: has more than {MOST_PARTS} segments")
        table = next(named.of_kind(SHT_SYMTAB), None)
        if table is None and movable:
            named, table = elf, next(elf.of_kind(SHT_DYNSYM), None)
        if (table is None and not bare) or (
                table is not None and table.link >= len(named.sections)):
            raise ImageError(f"{path}: has no symbols (it was stripped)")
        self.path, self.machine, self._file = path, elf.machine, elf
        self.elf_files = (elf,) if named is elf else (named, elf)  # the one with symbols first
        strings = b"" if table is None else named.content(named.sections[table.link])
        self.symbols = SymbolTable(
            b"" if table is None else _without_aliases(named.content(table), strings), strings,
            path.name if movable else path.stem)
        sizes: dict[int, int] = {}
        for function in self.symbols.functions():
            sizes[function.address] = max(function.size, sizes.get(function.address, 0))
        if sum(sizes.values()) > MOST_COVERED * sum(s.in_file for s in elf.segments
                                                    if s.kind == PT_LOAD):
            raise ImageError(f"{path}: damaged symbols: the sizes of the functions add up to more "
                             f"than {MOST_COVERED} times the size of the code")

    def moves(self, start: int, offset: int) -> list[int]:
        """Return how far the file may have been moved when it was mapped.

        There are several answers if segments share a page of the file.

        :param start: address of a mapping.
        :param offset: offset in the file that is mapped there.
        """
        return [start - (one.virtual + offset - one.offset) for one in self._file.segments
                if one.kind == PT_LOAD
                and one.offset & -PAGE <= offset < one.offset + one.in_file]

    def holds(self, address: int) -> bool:
        """Return whether an address, before the file is moved, is in one of its segments."""
        return any(one.kind == PT_LOAD and 0 <= address - one.virtual < one.in_memory
                   for one in self._file.segments)

    @functools.cached_property
    def first_pages(self) -> list[tuple[int, int, bool]]:
        """The first page of each segment, in order of addresses, before the file is moved.

        A page is its address, its offset in the file, and whether it has code.
        """
        return sorted((one.virtual & -PAGE, one.offset & -PAGE, bool(one.flags & PF_X))
                      for one in self._file.segments if one.kind == PT_LOAD)

    @property
    def extent(self) -> int:
        """Number of bytes from the file's first page to its end, in memory."""
        ends = [one.virtual + one.in_memory for one in self._file.segments if one.kind == PT_LOAD]
        return max(ends, default=0) - (self.first_pages[0][0] if self.first_pages else 0)

    def call_frames(self) -> tuple[bytes, int]:
        """Return the contents and the address of .eh_frame; both are empty if there is none.

        :raises ImageError: if the section is truncated.
        """
        return self.section_content(".eh_frame")

    def section_content(self, name: str) -> tuple[bytes, int]:
        """Return the contents and the address of a section; both are empty if there is none.

        :raises ImageError: if the section is truncated.
        """
        section = self._file.section(name)
        return (b"", 0) if section is None else (self._file.content(section), section.address)

    def code_at(self, address: int, size: int) -> bytes:
        """Return at most ``size`` bytes of code at an address, before the file is moved.

        :raises ImageError: if the file has no code there.
        """
        for one in self._file.segments:
            at = address - one.virtual
            if one.kind == PT_LOAD and one.flags & PF_X and 0 <= at < one.in_file:
                return bytes(self._file.piece(one.offset + at, min(size, one.in_file - at)))
        raise ImageError(f"{self.path}: has no code at {address:#x}")

    def section_range(self, name: str) -> tuple[int, int]:
        """Return the first address of a section and that after it; (0, 0) if there is none."""
        section = self._file.section(name)
        return (0, 0) if section is None else (section.address, section.address + section.size)

    def code_sections(self) -> list[tuple[str, int, int]]:
        """Return the name of each section with code, its first address and that after its last.

        :raises ImageError: if the sections are larger than the file.
        """
        found = [(one.name, one.address, one.address + one.size) for one in self._file.sections
                 if one.flags & SHF_EXECINSTR and one.kind == SHT_PROGBITS]
        if sum(end - begin for _name, begin, end in found) > len(self._file.data):
            raise ImageError(f"{self.path}: damaged: its sections with code are larger than the "
                             "file")
        return found

    @property
    def digest(self) -> str:
        """SHA-256 digest of the file, in hexadecimal."""
        return hashlib.sha256(self._file.data).hexdigest()

    def code(self, function: Symbol) -> bytes:
        """Return the bytes of a function.

        :raises ImageError: if the file does not contain them.
        """
        if function.address + function.size > END:
            raise ImageError(f"{self.path}: {function.name} is at {function.address:#x}, outside "
                             "the address space of programs")
        for segment in self._file.segments:
            at = function.address - segment.virtual
            if segment.kind == PT_LOAD and at >= 0 and at + function.size <= segment.in_file:
                return bytes(self._file.piece(segment.offset + at, function.size))
        raise ImageError(f"{self.path}: the code of {function.name} is not in the file")

    def first_other(self, other: "ProgramFile") -> int | None:
        """Return the first address at which the code of two programs differs, or None.

        An address where only one of the programs has code is a difference.
        """
        mine, theirs = _code(self._file), _code(other._file)
        for (at, code), (their_at, their_code) in zip(mine, theirs, strict=False):
            if at != their_at:
                return at
            if code != their_code:
                return at + next((n for n, (a, b) in enumerate(
                    zip(code, their_code, strict=False)) if a != b),
                    min(len(code), len(their_code)))
        if len(mine) == len(theirs):
            return None
        return max(mine, theirs, key=len)[min(len(mine), len(theirs))][0]


def _without_aliases(entries: bytes, strings: bytes) -> bytes:
    """Return symbols without the second names that dtrace(1) gives to functions with probes."""
    if ALIAS not in strings:
        return entries
    return b"".join(entries[at : at + SYMBOL.size] for at in range(
        0, len(entries) - SYMBOL.size + 1, SYMBOL.size)
        if not strings.startswith(ALIAS, SYMBOL.unpack_from(entries, at)[0]))


def needs_loader(path: Path) -> bool:
    """Return whether a program is linked dynamically or has no fixed place in memory.

    Return False for a file that cannot be read or is not a program.
    """
    try:
        file = ElfFile(read_file(path))
    except ImageError:
        return False
    return file.kind == ET_DYN or any(one.kind == PT_INTERP for one in file.segments)


def same_code(one: InputFile, other: InputFile) -> bool:
    """Return whether two ELF files have the same code at the same addresses.

    A file without code, as one with debug data only, agrees with every file.

    :raises ImageError: if one of them is not an ELF file.
    """
    mine, theirs = _code(ElfFile(one)), _code(ElfFile(other))
    return not mine or not theirs or mine == theirs


def _code(file: ElfFile) -> list[tuple[int, bytes]]:
    """Return the (address, bytes) of the executable segments that are in a file."""
    return sorted((s.virtual, bytes(file.piece(s.offset, s.in_file))) for s in file.segments
                  if s.kind == PT_LOAD and s.flags & PF_X and s.in_file)
