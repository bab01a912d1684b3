"""Kernel images in ELF files: segments, symbols and build ID, checked against malformed input."""

import functools
import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from emu.elf import reader as elf_file
from emu.elf.boot_options import NOTHING, BootOptions
from emu.elf.kernel_module import Module
from emu.elf.reader import (
    ELF_MAGIC,
    ET_DYN,
    ET_EXEC,
    PT_LOAD,
    SHT_DYNSYM,
    SHT_NOTE,
    SHT_SYMTAB,
    ElfFile,
    build_id_of,
    read_file,
)
from emu.elf.symbols import SHN_UNDEF, SYMBOL, SymbolTable
from emu.host.errors import ImageError
from emu.host.input_file import State

MAX_NOTE = 65536
SHF_EXECINSTR = 4
MAX_IMAGE = 4 << 30


@dataclass(frozen=True)
class Segment:
    """A PT_LOAD segment: its addresses, its bytes in the file, and its size in memory."""

    virtual: int
    physical: int
    data: memoryview
    memory_size: int
    flags: int

    @property
    def executable(self) -> bool:
        """Whether the segment is executable (PF_X)."""
        return bool(self.flags & 1)

    @property
    def virtual_end(self) -> int:
        """Virtual address of the end of the segment."""
        return self.virtual + self.memory_size

    @property
    def physical_end(self) -> int:
        """Physical address of the end of the segment."""
        return self.physical + self.memory_size


@dataclass(frozen=True)
class Image:
    """A kernel in an ELF file, with its modules and boot options."""

    file: ElfFile = field(repr=False, compare=False)
    entry: int
    segments: tuple[Segment, ...]
    symbols: SymbolTable
    build_id: str
    modules: tuple[Module, ...] = ()  # modules in address order; they follow the kernel in memory
    options: BootOptions = NOTHING  # options for the boot loader
    states: tuple[State, ...] = field(default=(), compare=False)  # the kernel's files (state_of)
    # The kernel's identity if it is known, and the image for which it was computed.
    known: tuple[str, "Image"] | None = field(default=None, compare=False, repr=False)

    @property
    def path(self) -> Path:
        """Path of the kernel's file."""
        return self.file.path

    @property
    def machine(self) -> str:
        """Machine for which the kernel was built: ``e_machine`` without the EM_ prefix."""
        return self.file.machine

    def has_same_kernel(self, other: "Image") -> bool:
        """Return whether another image was made from this one without a change of the kernel."""
        return (self.file is other.file and self.segments is other.segments
                and self.symbols is other.symbols
                and (self.entry, self.build_id) == (other.entry, other.build_id))

    @functools.cached_property
    def identity(self) -> str:
        """Text that identifies the kernel together with its modules and boot options."""
        return self._with_modules(self.kernel_identity)

    def _with_modules(self, kernel: str) -> str:
        if not self.modules and not self.options.digest:
            return kernel
        h = hashlib.sha256(kernel.encode())
        for module in self.modules:
            h.update(f"{module.name} {module.address:#x} {module.file.digest}\n".encode())
        h.update(self.options.digest.encode())
        return f"{self.build_id or 'none'}-{h.hexdigest()[:32]}"

    @functools.cached_property
    def kernel_identity(self) -> str:
        """Text that identifies the kernel: its build ID, and a digest of its content.

        The digest covers everything that a machine can see: segments, entry, and symbols, because
        a boot finds functions by name.  A file that was changed in place keeps its build ID.
        """
        if self.known is not None and self.known[1].has_same_kernel(self):
            return self.known[0]
        h = hashlib.sha256(f"{self.build_id} {self.machine} {self.entry}".encode())
        for s in self.segments:
            place = f"{s.virtual} {s.physical} {s.memory_size} {s.flags} {len(s.data)}"
            h.update(f"\n{place}\n".encode())
            h.update(s.data)
        for table in self.symbols.tables:
            h.update(f"\n{len(table)}\n".encode() + table)
        return f"{self.build_id or 'none'}-{h.hexdigest()[:32]}"

    def is_known_as(self, identity: str) -> bool:
        """Return whether an identity stored in a recording or snapshot refers to this image.

        Identities in older recordings and snapshots do not cover the symbols.  They are accepted,
        because the content of a recording is checked during the replay.
        """
        if identity == self.identity:
            return True
        h = hashlib.sha256(self.build_id.encode() + self.entry.to_bytes(8, "little"))
        for s in self.segments:
            h.update(s.virtual.to_bytes(8, "little") + s.physical.to_bytes(8, "little"))
            h.update(s.data)
        return identity == self._with_modules(f"{self.build_id or 'none'}-{h.hexdigest()[:32]}")

    @functools.cached_property
    def code_ranges(self) -> list[tuple[int, int]]:
        """Virtual ranges [begin, end) of the executable segments and of the code of the modules."""
        return [(s.virtual, s.virtual_end) for s in self.segments if s.executable] + [
            code for module in self.modules for code in module.code]

    def holds_code(self, address: int) -> bool:
        """Return whether an address is in an executable segment or in the code of a module."""
        return any(begin <= address < end for begin, end in self.code_ranges)

    def code(self) -> Iterator[tuple[int, bytes]]:
        """Yield (virtual address, bytes) for each range of code; modules are already relocated."""
        for segment in self.segments:
            if segment.executable:
                yield segment.virtual, bytes(segment.data)
        for module in self.modules:
            for begin, end in module.code:
                yield begin, module.memory[begin - module.address : end - module.address]

    @property
    def virtual_end(self) -> int:
        """Virtual address of the end of the kernel and its modules."""
        return max(max(s.virtual_end for s in self.segments), *(m.end for m in self.modules), 0)

    def module_at(self, address: int) -> Module | None:
        """Return the module that contains an address, or None."""
        return next((m for m in self.modules if m.address <= address < m.end), None)

    def virtual_to_file(self, address: int, size: int) -> bytes:
        """Return bytes of the image at a virtual address.

        Bytes beyond a segment's part in the file are zero.  Bytes of a module are as after linking.

        :raises ImageError: if the range is not inside one segment or module.
        """
        for segment in self.segments:
            if segment.virtual <= address and address + size <= segment.virtual_end:
                offset = address - segment.virtual
                return bytes(segment.data[offset : offset + size]).ljust(size, b"\0")
        for module in self.modules:
            if module.address <= address and address + size <= module.end:
                return module.memory[address - module.address : address - module.address + size]
        if not self.segments:
            raise ImageError(f"{self.path}: has debug data but no code; give the file that it "
                             "belongs to")
        raise ImageError(f"{self.path}: no segment contains {address:#x}..{address + size:#x}")


def file_symbols(elf: ElfFile, table: int = SHT_SYMTAB) -> tuple[bytes, bytes, str]:
    """Return the symbol table's entries, its strings, and the build ID (in hexadecimal).

    :param table: section type of the symbol table: ``SHT_SYMTAB``, or ``SHT_DYNSYM`` for the
        symbols that are visible to other files.
    """
    entries, strings, build_id = b"", b"", ""
    for section in elf.of_kind(table):
        entries = elf.content(section)
        if section.link >= len(elf.sections):
            raise ImageError(f"{elf.path}: damaged ELF file: the symbol table has no string table")
        strings = elf.content(elf.sections[section.link])
        if entries:
            break
    for section in elf.of_kind(SHT_NOTE):
        if not build_id and section.size <= MAX_NOTE:
            build_id = build_id_of(elf.content(section))
    return entries, strings, build_id


def load_image(path: Path, debug: Path | None = None) -> Image:
    """Read a kernel image.

    A stripped kernel's symbols come from its debug file or, without that file, from its dynamic
    symbol table, which lacks static functions and variables.

    :param debug: debug file to use if the image has no symbols (default: the image's path with
        ``.debug`` appended).
    :raises ImageError: if the file is not a 64-bit little-endian ELF executable with symbols, is
        truncated, or has overlapping segments.
    """
    file = read_file(path, whole=False)
    data = file.content
    if bytes(data[:4]) != ELF_MAGIC:
        raise ImageError(
            f"{path}: not an ELF file; give the kernel itself, e.g. /boot/kernel/kernel"
        )
    elf = ElfFile(file)
    if elf.kind not in (ET_EXEC, ET_DYN):
        raise ImageError(f"{path}: not an executable kernel (ELF type {elf.kind})")
    code = [section for section in elf.sections if section.flags & SHF_EXECINSTR and section.size]
    if code and all(section.kind == elf_file.SHT_NOBITS for section in code):
        raise ImageError(f"{path}: is a debug file without code; give the kernel that it belongs "
                         "to")
    segments = [_segment(segment, data, path) for segment in elf.segments
                if segment.kind == PT_LOAD and segment.in_memory]
    entries, strings, build_id = file_symbols(elf)
    if not segments:
        raise ImageError(f"{path}: has nothing to load, because it has no PT_LOAD segment")
    _check_overlap(segments, path)
    debug = debug or path.with_name(path.name + ".debug")
    stripped, states = "", [file.state]
    if not entries and debug.is_file():
        named = ElfFile(read_file(debug, whole=False))
        states.append(named.file.state)
        other = _debug_symbols(named)
        if build_id and other[2] and build_id != other[2]:
            raise ImageError(f"{debug}: comes from a different build than {path}; "
                             "get the matching debug file")
        entries, strings = other[0], other[1]
    elif not entries:
        entries, strings, _ = file_symbols(elf, SHT_DYNSYM)
        stripped = f"put the matching {debug.name} next to it"
        if not _mostly_defined(entries):  # a program with shared libraries
            raise ImageError(f"{path}: has no symbols; {stripped}")
    code_ranges = [(s.virtual, s.virtual + len(s.data)) for s in segments if s.executable]
    symbols = SymbolTable(entries, strings, code=code_ranges, where=str(path), stripped=stripped)
    return Image(elf, elf.entry, tuple(segments), symbols, build_id, states=tuple(states))


def _mostly_defined(entries: bytes) -> bool:
    """Return whether a file has symbols and defines most of them."""
    whole = entries[: len(entries) - len(entries) % SYMBOL.size]
    sections = [entry[3] for entry in SYMBOL.iter_unpack(whole)]
    return 0 < len(sections) >= sections.count(SHN_UNDEF) * 2


def _debug_symbols(file: ElfFile) -> tuple[bytes, bytes, str]:
    found = file_symbols(file)
    if not found[0]:
        raise ImageError(f"{file.path}: is a debug file without symbols; get the release's "
                         "kernel-dbg set")
    return found


def _segment(header: elf_file.SegmentHeader, data: memoryview, path: Path) -> Segment:
    end = header.offset + header.in_file
    if end > len(data):
        raise ImageError(
            f"{path}: truncated: a segment ends at {end:#x}, but the file ends at {len(data):#x}"
        )
    memory = header.in_memory
    if memory < header.in_file or memory > MAX_IMAGE:
        raise ImageError(f"{path}: damaged ELF file: a segment has an invalid size of "
                         f"{memory:#x} bytes in memory")
    if header.virtual + memory > 1 << 64 or header.physical + memory > 1 << 64:
        raise ImageError(f"{path}: damaged ELF file: a segment wraps around the address space")
    return Segment(header.virtual, header.physical, data[header.offset : end], memory,
                   header.flags)


def _check_overlap(segments: list[Segment], path: Path) -> None:
    ordered = sorted(segments, key=lambda s: s.virtual)
    for first, second in itertools.pairwise(ordered):
        if first.virtual_end > second.virtual:
            raise ImageError(
                f"{path}: not a usable kernel image: two segments overlap at {second.virtual:#x}"
            )
