"""Kernel ELF images: segments, symbols and build id, bounded against malformed input."""

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
    SHT_NOTE,
    SHT_SYMTAB,
    ElfFile,
    build_id_of,
    read_file,
)
from emu.elf.symbols import SymbolTable
from emu.host.errors import ImageError

MAX_NOTE = 65536
SHF_EXECINSTR = 4
MAX_IMAGE = 4 << 30


@dataclass(frozen=True)
class Segment:
    """One PT_LOAD: where it goes, its bytes in the file, and its size in memory."""

    virtual: int
    physical: int
    data: memoryview
    memory_size: int
    flags: int

    @property
    def executable(self) -> bool:
        return bool(self.flags & 1)

    @property
    def virtual_end(self) -> int:
        return self.virtual + self.memory_size

    @property
    def physical_end(self) -> int:
        return self.physical + self.memory_size


@dataclass(frozen=True)
class Image:
    """A kernel as its ELF file describes it."""

    file: ElfFile = field(repr=False, compare=False)
    entry: int
    segments: tuple[Segment, ...]
    symbols: SymbolTable
    build_id: str
    modules: tuple[Module, ...] = ()  # loaded behind it, by address
    options: BootOptions = NOTHING  # what its boot loader is told

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def machine(self) -> str:
        """``e_machine`` without the EM_ prefix."""
        return self.file.machine

    @functools.cached_property
    def identity(self) -> str:
        """What tells this image from others: that of its kernel; with modules or options, a
        digest of theirs, too."""
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
        """Its build id and a digest of all that a machine can see of it: segments, symbols (a boot
        is made by functions' names, too), entry.  A file that was changed in place keeps its build
        id."""
        h = hashlib.sha256(f"{self.build_id} {self.machine} {self.entry}".encode())
        for s in self.segments:
            place = f"{s.virtual} {s.physical} {s.memory_size} {s.flags} {len(s.data)}"
            h.update(f"\n{place}\n".encode())
            h.update(s.data)
        for table in self.symbols.tables:
            h.update(f"\n{len(table)}\n".encode() + table)
        return f"{self.build_id or 'none'}-{h.hexdigest()[:32]}"

    def is_known_as(self, identity: str) -> bool:
        """Whether a recording or a snapshot is of this image.  Older ones have an identity without
        the symbols, by which they are still known: what they hold is checked as they are played."""
        if identity == self.identity:
            return True
        h = hashlib.sha256(self.build_id.encode() + self.entry.to_bytes(8, "little"))
        for s in self.segments:
            h.update(s.virtual.to_bytes(8, "little") + s.physical.to_bytes(8, "little"))
            h.update(s.data)
        return identity == self._with_modules(f"{self.build_id or 'none'}-{h.hexdigest()[:32]}")

    def holds_code(self, address: int) -> bool:
        """Whether an address is in an executable segment, or in a module's code."""
        return (any(s.executable and s.virtual <= address < s.virtual_end for s in self.segments)
                or any(begin <= address < end for m in self.modules for begin, end in m.code))

    def code(self) -> Iterator[tuple[int, bytes]]:
        """(virtual address, bytes) of all code, of modules as it is when they are linked."""
        for segment in self.segments:
            if segment.executable:
                yield segment.virtual, bytes(segment.data)
        for module in self.modules:
            for begin, end in module.code:
                yield begin, module.memory[begin - module.address : end - module.address]

    @property
    def virtual_end(self) -> int:
        """Of the kernel and its modules."""
        return max(max(s.virtual_end for s in self.segments), *(m.end for m in self.modules), 0)

    def module_at(self, address: int) -> Module | None:
        """The module that an address is in."""
        return next((m for m in self.modules if m.address <= address < m.end), None)

    def virtual_to_file(self, address: int, size: int) -> bytes:
        """Bytes of the image at a virtual address (zeros behind the file's part); of a module, as
        they are when it is linked.

        :raises ImageError: when the range is not inside one segment.
        """
        for segment in self.segments:
            if segment.virtual <= address and address + size <= segment.virtual_end:
                at = address - segment.virtual
                return bytes(segment.data[at : at + size]).ljust(size, b"\0")
        for module in self.modules:
            if module.address <= address and address + size <= module.end:
                return module.memory[address - module.address : address - module.address + size]
        if not self.segments:
            raise ImageError(f"{self.path}: has debug data and no code: give the file that it is "
                             "of")
        raise ImageError(f"{self.path}: no segment holds {address:#x}..{address + size:#x}")


def file_symbols(elf: ElfFile) -> tuple[bytes, bytes, str]:
    """The symbol table's entries, its strings, and the build id (hex, or empty)."""
    entries, strings, build_id = b"", b"", ""
    for section in elf.of_kind(SHT_SYMTAB):
        entries = elf.content(section)
        if section.link >= len(elf.sections):
            raise ImageError(f"{elf.path}: the symbol table names no string table: damaged file")
        strings = elf.content(elf.sections[section.link])
        if entries:
            break
    for section in elf.of_kind(SHT_NOTE):
        if not build_id and section.size <= MAX_NOTE:
            build_id = build_id_of(elf.content(section))
    return entries, strings, build_id


def load_image(path: Path, debug: Path | None = None) -> Image:
    """Read a kernel image.

    :param debug: a separate debug file; looked for beside the image (``kernel.debug``) when the
        image has no symbols.
    :raises ImageError: when it is not a 64-bit little-endian ELF executable with symbols, is
        truncated, or its segments overlap.
    """
    taken = read_file(path)
    data = taken.content
    if bytes(data[:4]) != ELF_MAGIC:
        raise ImageError(
            f"{path}: not an ELF file; give the kernel itself, e.g. /boot/kernel/kernel"
        )
    elf = ElfFile(taken)
    if elf.kind not in (ET_EXEC, ET_DYN):
        raise ImageError(f"{path}: not an executable kernel (ELF type {elf.kind})")
    code = [section for section in elf.sections if section.flags & SHF_EXECINSTR and section.size]
    if code and all(section.kind == elf_file.SHT_NOBITS for section in code):
        raise ImageError(f"{path}: a file of debug data, without code: give the kernel that it is "
                         "of")
    segments = [_segment(segment, data, path) for segment in elf.segments
                if segment.kind == PT_LOAD and segment.in_memory]
    entries, strings, build_id = file_symbols(elf)
    if not segments:
        raise ImageError(f"{path}: nothing to load: no PT_LOAD segment")
    _check_overlap(segments, path)
    if not entries:
        debug = debug or path.with_name(path.name + ".debug")
        if not debug.is_file():
            raise ImageError(
                f"{path}: has no symbols; put the matching debug file beside it as {debug.name}"
            )
        other = _debug_symbols(debug)
        if build_id and other[2] and build_id != other[2]:
            raise ImageError(f"{debug}: is of another build than {path}; get the matching one")
        entries, strings = other[0], other[1]
    places = [(s.virtual, s.virtual + len(s.data)) for s in segments if s.executable]
    symbols = SymbolTable(entries, strings, code=places, where=str(path))
    return Image(elf, elf.entry, tuple(segments), symbols, build_id)


def _debug_symbols(path: Path) -> tuple[bytes, bytes, str]:
    found = file_symbols(ElfFile(read_file(path)))
    if not found[0]:
        raise ImageError(f"{path}: has no symbols either; get the kernel-dbg set of the release")
    return found


def _segment(header: elf_file.SegmentHeader, data: memoryview, path: Path) -> Segment:
    end = header.offset + header.in_file
    if end > len(data):
        raise ImageError(
            f"{path}: truncated: a segment ends at {end:#x}, the file at {len(data):#x}"
        )
    memory = header.in_memory
    if memory < header.in_file or memory > MAX_IMAGE:
        raise ImageError(f"{path}: a segment of {memory:#x} bytes in memory: damaged ELF file")
    if header.virtual + memory > 1 << 64 or header.physical + memory > 1 << 64:
        raise ImageError(f"{path}: a segment wraps around the address space: damaged ELF file")
    return Segment(header.virtual, header.physical, data[header.offset : end], memory,
                   header.flags)


def _check_overlap(segments: list[Segment], path: Path) -> None:
    ordered = sorted(segments, key=lambda s: s.virtual)
    for one, next_ in itertools.pairwise(ordered):
        if one.virtual_end > next_.virtual:
            raise ImageError(
                f"{path}: segments overlap at {next_.virtual:#x}: not a usable kernel image"
            )
