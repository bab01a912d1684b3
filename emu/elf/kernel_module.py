"""Kernel modules (kld files), which the boot loader places in memory after the kernel.

On amd64 a module is a relocatable file: the loader lays out its sections, and the kernel links it.
On arm64 and riscv64 it is a shared object: its segments are copied to memory as they are.  In both
cases the kernel relocates the module; ``Module.memory`` is the relocated content.

Layouts: System V gABI, "Object Files"; FreeBSD's sys/module.h for the metadata of modules
(``struct mod_metadata``, ``struct mod_depend``).
"""

import functools
import hashlib
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from emu.arch.architectures import ARCHITECTURES
from emu.elf.reader import (
    ELF_MAGIC,
    ET_DYN,
    ET_REL,
    PT_DYNAMIC,
    PT_LOAD,
    SECTION,
    ElfFile,
    SectionHeader,
    build_id_of,
)
from emu.elf.relocations import RELOCATIONS, relocations
from emu.elf.symbols import SYMBOL, SymbolTable
from emu.host.errors import ImageError
from emu.host.input_file import InputFile
from emu.host.printable import name as printable_name

METADATA = struct.Struct("<iiQQ")  # struct mod_metadata: version, type, data, name
DEPEND = struct.Struct("<iii")  # struct mod_depend: minimum, preferred and maximum version
MDT_DEPEND, MDT_VERSION = 1, 3
PROGBITS, SYMTAB, STRTAB, RELA, NOTE, NOBITS, DYNSYM = 1, 2, 3, 4, 7, 8, 11
INIT_ARRAY, FINI_ARRAY, UNWIND = 14, 15, 0x70000001
LOADED = (PROGBITS, NOBITS, INIT_ARRAY, FINI_ARRAY, UNWIND)
ALLOC, EXECUTE = 2, 4  # bits of sh_flags
PF_X = 1
SHN_UNDEF, SHN_LORESERVE, SHN_ABS = 0, 0xFF00, 0xFFF1
LOCAL, WEAK = 0, 2  # symbol bindings
PAGE = 4096
MAX_SIZE = 64 << 20  # maximum size of a module in bytes, in its file and in memory
MAX_RECORDS = 4096
MAX_TEXT = 256
METADATA_SET = "set_modmetadata_set"


@dataclass(frozen=True)
class Dependency:
    """Dependency on a module whose version is from ``least`` to ``last``."""

    name: str
    least: int
    last: int


class ModuleFile:
    """A kernel module file for which no address in memory has been chosen yet.

    :raises ImageError: if the file is not a module that can be loaded.
    """

    def __init__(self, file: InputFile) -> None:
        self.path, self.name, self.data = file.path, file.path.name, file.content
        path = self.path
        if len(self.data) > MAX_SIZE:
            raise ImageError(f"{path}: too large for a module: {len(self.data)} bytes")
        if bytes(self.data[:4]) != ELF_MAGIC or bytes(self.data[4:6]) != b"\2\1":
            raise ImageError(f"{path}: not a kernel module; give a 64-bit ELF file like kinst.ko")
        try:
            self._read(ElfFile(file))
        except (struct.error, IndexError, ValueError, UnicodeDecodeError):
            raise ImageError(f"{path}: damaged ELF file") from None

    def _read(self, elf: ElfFile) -> None:
        self.elf = elf
        architectures = {a.elf_machine: a for a in ARCHITECTURES.values()}
        if elf.machine not in architectures:
            raise ImageError(f"{self.path}: made for an unsupported machine (ELF machine "
                             f"{elf.machine})")
        self.arch, self.relocatable = architectures[elf.machine], elf.kind == ET_REL
        self.machine = self.arch.elf_machine
        if elf.kind not in (ET_REL, ET_DYN):
            raise ImageError(f"{self.path}: not a kernel module (ELF type {elf.kind}); give a "
                             "kernel with -k")
        if not elf.sections:
            raise ImageError(f"{self.path}: not a kernel module: it has no sections")
        self.header, self.raw_sections = elf.header, elf.raw_sections
        self.sections = [
            s._replace(name=printable_name(s.name.encode()), alignment=max(s.alignment, 1))
            for s in elf.sections]
        names = elf.names_section
        if names >= len(elf.sections):
            raise ValueError
        self._names_section = names
        # In a malicious file, these tables can overlap and so be larger in total than the file.
        if sum(s.size for s in self.sections if s.kind in (RELA, SYMTAB, DYNSYM)) > MAX_SIZE:
            raise ImageError(f"{self.path}: the relocation and symbol tables are larger than "
                             f"{MAX_SIZE >> 20} MiB")
        self._symbols: dict[SectionHeader, list[tuple[str, int, int, int]]] = {}
        self.segments: list[tuple[int, int, int, int, int]] = []
        self.dynamic = 0
        if self.relocatable:
            self._lay_out()
        else:
            for segment in elf.segments:
                virtual, size = segment.virtual, segment.in_memory
                if segment.kind == PT_LOAD and size:
                    if segment.in_file > size or virtual + size > MAX_SIZE:
                        raise ValueError
                    self.segments.append(
                        (virtual, segment.offset, segment.in_file, size, segment.flags))
                elif segment.kind == PT_DYNAMIC:
                    self.dynamic = virtual
            if not self.segments:
                raise ImageError(f"{self.path}: has nothing to load, because it has no PT_LOAD "
                                 "segment")
            self.size = max(virtual + size for virtual, _o, _f, size, _x in self.segments)
            self.sections = [
                s._replace(at=s.address) if s.flags & ALLOC and s.address + s.size <= self.size
                else s for s in self.sections]
        self._tables()

    def _bytes(self, offset: int, size: int) -> bytes:
        if offset + size > len(self.data):
            raise ImageError(f"{self.path}: truncated: a table extends beyond the end of the file")
        return bytes(self.data[offset : offset + size])

    def content(self, section: SectionHeader) -> bytes:
        """Return the bytes of a section in the file, or no bytes for a NOBITS section."""
        return b"" if section.kind == NOBITS else self._bytes(section.offset, section.size)

    def _lay_out(self) -> None:
        """Lay out code and data in section order, then the tables that the kernel's linker needs.

        These are the symbols, their names, the section names, and the relocations of loaded
        sections.
        """
        at, places = 0, dict[int, int]()

        def put(index: int) -> None:
            nonlocal at
            section = self.sections[index]
            if section.alignment & section.alignment - 1 or section.alignment > 1 << 20:
                raise ValueError
            at = at + section.alignment - 1 & -section.alignment
            places[index] = at
            at += section.size
            if at > MAX_SIZE:
                raise ImageError(f"{self.path}: too large for a module: more than "
                                 f"{MAX_SIZE >> 20} MiB in memory")

        for index, section in enumerate(self.sections):
            # NOBITS notes occur in debug files only.
            if section.kind in LOADED and section.flags & ALLOC and section.size and not (
                    section.kind == NOBITS and section.name.startswith(".note")):
                put(index)
        tables = [i for i, section in enumerate(self.sections) if section.kind == SYMTAB]
        if len(tables) != 1:
            raise ImageError(f"{self.path}: not a kernel module: it has no symbols")
        loaded = set(places)
        put(tables[0])
        put(self.sections[tables[0]].link)
        put(self._names_section)
        for index, section in enumerate(self.sections):
            if section.kind == RELA and section.info in loaded:
                put(index)
        self.size = at
        self.sections = [section._replace(at=places.get(index))
                         for index, section in enumerate(self.sections)]

    def _tables(self) -> None:
        """Find the symbol table and the build ID."""
        static = [s for s in self.sections if s.kind == SYMTAB]
        dynamic = [s for s in self.sections if s.kind == DYNSYM]
        self.symtab = static[0] if static else dynamic[0] if dynamic else None
        if self.symtab is None:
            raise ImageError(f"{self.path}: not a kernel module: it has no symbols")
        if any(s.kind in (SYMTAB, DYNSYM) and s.link >= len(self.sections) for s in self.sections):
            raise ValueError
        self.build_id = next((build_id_of(self.content(s)) for s in self.sections
                              if s.kind == NOTE and s.name == ".note.gnu.build-id"), "")

    # -- memory -------------------------------------------------------------------------------

    @functools.cached_property
    def image(self) -> bytes:
        """Content of the module's memory before relocation, as the loader writes it."""
        memory = bytearray(self.size)
        if self.relocatable:
            for section in self.sections:
                if section.at is not None and section.kind != NOBITS:
                    memory[section.at : section.at + section.size] = self.content(section)
        else:
            for virtual, offset, in_file, _size, _flags in self.segments:
                memory[virtual : virtual + in_file] = self._bytes(offset, in_file)
        return bytes(memory)

    def headers(self, address: int) -> bytes:
        """Return all section headers; sh_addr is the address, or 0 for sections not in memory."""
        out = bytearray(self.raw_sections)
        for index, section in enumerate(self.sections):
            at = 0 if section.at is None else address + section.at
            struct.pack_into("<Q", out, index * SECTION.size + 16, at)
        return bytes(out)

    def symbols_of(self, section: SectionHeader) -> list[tuple[str, int, int, int]]:
        """Return (name, binding, section number, value) for each symbol of a table, in order."""
        if section not in self._symbols:
            self._symbols[section] = self._read_symbols(section)
        return self._symbols[section]

    def _read_symbols(self, section: SectionHeader) -> list[tuple[str, int, int, int]]:
        text = self.content(self.sections[section.link])
        return [(_text(text, name), info >> 4, index, value) for name, info, _o, index, value, _s
                in SYMBOL.iter_unpack(_whole(self.content(section), SYMBOL.size))]

    def place_of(self, index: int, value: int, debug: bool = False) -> int | None:
        """Return a symbol's offset from the module's first byte, or None if it is not in memory.

        :param index: st_shndx of the symbol.
        :param value: st_value of the symbol.
        :param debug: for a section that a relocatable file does not load, whether to return the
            offset in that section instead of None.
        """
        if not SHN_UNDEF < index < min(SHN_LORESERVE, len(self.sections)):
            return None
        if not self.relocatable:
            return value
        at = self.sections[index].at
        return (value if debug else None) if at is None else at + value

    @functools.cached_property
    def undefined(self) -> dict[str, bool]:
        """Symbols that other files must define: name -> whether the reference is weak."""
        names: dict[str, bool] = {}
        sets = {s.name for s in self.sections}
        for section in self.sections:
            if section.kind == (SYMTAB if self.relocatable else DYNSYM):
                for name, binding, index, _value in self.symbols_of(section):
                    if index == SHN_UNDEF and name and not any(
                            name.startswith(edge) and name.removeprefix(edge) in sets
                            for edge in EDGES):
                        names[name] = binding == WEAK
        return names

    def written(self, address: int, outside: Callable[[str], int | None],
                debug: Collection[str] = ()) -> Iterator[tuple[SectionHeader, int, bytes]]:
        """Yield (section, offset, bytes) for everything that relocation writes.

        In a relocatable file, ``offset`` counts from the start of ``section``.  In a shared object
        it counts from the module's first byte, and ``section`` is the relocation section.

        :param address: address of the module.
        :param outside: returns the address of a symbol that the module does not define, or None.
        :param debug: names of sections that a relocatable file does not load; if given, these are
            relocated instead of the loaded ones.
        """
        types = RELOCATIONS[self.arch.name]
        for section in self.sections:
            if section.kind != RELA or section.link >= len(self.sections):
                continue
            if self.relocatable:
                if section.info >= len(self.sections):
                    continue
                target = self.sections[section.info]
                if target.name not in debug if debug else target.at is None:
                    continue
                base = address + (target.at or 0)
            elif section.flags & ALLOC and not debug:
                target, base = section, address
            else:
                continue
            value = self._value(section.link, address, outside, bool(debug))
            for offset, data in relocations(self.content(section), types, value, base):
                yield target, offset, data

    def _value(self, table: int, address: int, outside: Callable[[str], int | None],
               debug: bool) -> Callable[[int], int | None]:
        symbols = self.symbols_of(self.sections[table]) if (
            self.sections[table].kind in (SYMTAB, DYNSYM)) else []
        sections = {s.name: s for s in self.sections if s.at is not None}

        def value(number: int) -> int | None:
            if number >= len(symbols):
                return None
            name, binding, index, at = symbols[number]
            if index == SHN_ABS:
                return at
            if index == SHN_UNDEF:
                for edge, of_end in EDGES.items():
                    section = sections.get(name.removeprefix(edge))
                    if name.startswith(edge) and section is not None and section.at is not None:
                        return address + section.at + (section.size if of_end else 0)
                found = outside(name)
                return 0 if found is None and binding == WEAK else found
            place = self.place_of(index, at, debug)
            return None if place is None else address + place

        return value

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 digest of the file, in hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()

    # -- metadata -----------------------------------------------------------------------------

    @functools.cached_property
    def _says(self) -> tuple[list[Dependency], list[str]]:
        """Dependencies of the file, and the names of the modules in the file."""
        memory = bytearray(self.image)
        for target, offset, data in self.written(0, lambda name: None):
            at = offset + (target.at or 0) if self.relocatable else offset
            if at + len(data) <= len(memory):
                memory[at : at + len(data)] = data
        depends, modules = [], []
        for section in self.sections:
            if section.name != METADATA_SET or section.at is None:
                continue
            for i in range(min(section.size // 8, MAX_RECORDS)):
                (record,) = struct.unpack_from("<Q", memory, section.at + 8 * i)
                _version, kind, data_at, name_at = METADATA.unpack_from(memory, record)
                name = _text(memory, name_at)
                if kind == MDT_DEPEND:
                    least, _preferred, last = DEPEND.unpack_from(memory, data_at)
                    depends.append(Dependency(name, least, last))
                elif kind == MDT_VERSION:
                    modules.append(name)
        return depends, modules

    @property
    def depends(self) -> list[Dependency]:
        """Modules that this file depends on.

        :raises ImageError: if the metadata of the module is damaged.
        """
        try:
            return self._says[0]
        except (struct.error, OverflowError):
            raise ImageError(f"{self.path}: damaged module: its metadata contains invalid "
                             "pointers") from None

    @property
    def provides(self) -> list[str]:
        """Names of the modules in this file, to which the dependencies of other modules refer.

        :raises ImageError: if the metadata of the module is damaged.
        """
        try:
            return self._says[1]
        except (struct.error, OverflowError):
            raise ImageError(f"{self.path}: damaged module: its metadata contains invalid "
                             "pointers") from None


# Prefix of a linker set's symbol -> whether the symbol marks the end (not the start) of the set.
EDGES = {"__start_": False, "__stop_": True}


def _whole(data: bytes, size: int) -> bytes:
    return data[: len(data) - len(data) % size]


def _text(table: bytes | bytearray, offset: int) -> str:
    end = table.find(b"\0", offset, offset + MAX_TEXT)
    return printable_name(bytes(table[offset : end if end >= 0 else offset + MAX_TEXT]))


@dataclass(frozen=True, eq=False)
class Module:
    """A module at its address in memory.

    :param address: virtual address of its first byte; a multiple of the page size.
    :param outside: addresses of the symbols that it uses from the kernel and other modules.
    """

    file: ModuleFile
    address: int
    outside: Mapping[str, int]

    @property
    def name(self) -> str:
        """Name of the module in the kernel's linker, e.g. ``kinst.ko``."""
        return self.file.name

    @property
    def path(self) -> Path:
        """Path of the module's file."""
        return self.file.path

    @property
    def end(self) -> int:
        """Virtual address of the end of the module."""
        return self.address + self.file.size

    @functools.cached_property
    def memory(self) -> bytes:
        """Content of the module's memory after linking, except for unresolved relocations."""
        memory = bytearray(self.file.image)
        for at, data in self.links:
            memory[at : at + len(data)] = data
        return bytes(memory)

    @functools.cached_property
    def links(self) -> list[tuple[int, bytes]]:
        """Bytes that the kernel's linker writes into the module, as (offset, bytes)."""
        links = []
        for target, offset, data in self.file.written(self.address, self.outside.get):
            at = offset + (target.at or 0) if self.file.relocatable else offset
            if at + len(data) <= self.file.size:
                links.append((at, data))
        return links

    @functools.cached_property
    def symbols(self) -> SymbolTable:
        """Symbols of the module, at their addresses in memory."""
        file, table = self.file, self.file.symtab
        assert table is not None
        entries = bytearray()
        for name, info, other, index, value, size in SYMBOL.iter_unpack(
                _whole(file.content(table), SYMBOL.size)):
            place = file.place_of(index, value)
            address = self.address + place & (1 << 64) - 1 if place is not None else 0
            entries += SYMBOL.pack(name, info, other, index if place is not None else SHN_UNDEF,
                                   address, size)
        return SymbolTable(bytes(entries), file.content(file.sections[table.link]), self.name,
                           code=self.code, where=str(self.path))

    @functools.cached_property
    def globals(self) -> dict[str, int]:
        """Symbols that this module exports to other modules: name -> address."""
        table = self.file.symtab
        assert table is not None
        addresses: dict[str, int] = {}
        for name, binding, index, value in self.file.symbols_of(table):
            place = self.file.place_of(index, value)
            if binding != LOCAL and place is not None and name:
                addresses.setdefault(name, self.address + place)
        return addresses

    @functools.cached_property
    def code(self) -> list[tuple[int, int]]:
        """Ranges [begin, end) of the module's executable memory."""
        if self.file.relocatable:
            return [(self.address + s.at, self.address + s.at + s.size)
                    for s in self.file.sections if s.at is not None and s.flags & EXECUTE]
        return [(self.address + virtual, self.address + virtual + size)
                for virtual, _offset, _in_file, size, flags in self.file.segments if flags & PF_X]

