"""Kernel ELF images: segments, symbols and build id, bounded against malformed input.

pyelftools reads the headers; the symbol table is read in bulk, because walking it one object at
a time takes more than a second on a GENERIC kernel.  Layouts: System V gABI, "Object Files".
"""

import bisect
import difflib
import functools
import hashlib
import itertools
import mmap
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from emu.errors import ImageError

if TYPE_CHECKING:
    from emu.module import Module

SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym: st_name, st_info, st_other, st_shndx, value, size
PT_LOAD = "PT_LOAD"
ELF_MAGIC = b"\x7fELF"
STT_NOTYPE, STT_OBJECT, STT_FUNC, STT_GNU_IFUNC = 0, 1, 2, 10
MAX_NAME = 4096
FEW_QUESTIONS = 16  # answered without an index of all names
SHN_UNDEF = 0
KINDS = (STT_NOTYPE, STT_OBJECT, STT_FUNC, STT_GNU_IFUNC)
MAX_SECTIONS = 65536
MAX_NOTE = 65536
MAX_IMAGE = 4 << 30
KERNEL = "kernel"  # as its own linker names it


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


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbol: its virtual address, and the file that it is of, as the kernel's linker names it.
    """

    name: str
    address: int
    size: int
    kind: int
    module: str = KERNEL

    @property
    def module_name(self) -> str:
        """The module as probes name it: without the file's suffix."""
        return self.module.removesuffix(".ko")


MAX_FOUND = 4096  # names that are kept with what was found


class SymbolTable:
    """Symbols by name and by address.

    Several functions may share a name (static functions of different files): ``named`` gives all.
    """

    def __init__(self, entries: bytes, strings: bytes, module: str = KERNEL) -> None:
        self._strings, self.module = strings, module
        self._raw = entries[: len(entries) - len(entries) % SYMBOL.size]
        self._by_name: dict[str, list[int]] | None = None
        self._functions: list[tuple[int, int, int, int]] | None = None
        self._questions = 0  # so far, by name
        self._found: dict[str, Symbol | None] = {}  # by ``find``
        self._addresses: list[int] = []
        self._labels: list[tuple[int, int, int, int]] | None = None

    @functools.cached_property
    def _entries(self) -> list[tuple[int, int, int, int]]:
        return [
            (value, size, name, info & 15)
            for name, info, _other, section, value, size in SYMBOL.iter_unpack(self._raw)
            if section != SHN_UNDEF and info & 15 in KINDS and name < len(self._strings)
        ]

    def __len__(self) -> int:
        return len(self._entries)

    def _text(self, offset: int) -> str:
        end = self._strings.find(b"\0", offset, offset + MAX_NAME)
        return self._strings[offset : end if end >= 0 else offset + MAX_NAME].decode(
            "utf-8", "replace"
        )

    def _symbol(self, entry: tuple[int, int, int, int]) -> Symbol:
        value, size, name, kind = entry
        return Symbol(self._text(name), value, size, kind, self.module)

    def named(self, name: str) -> list[Symbol]:
        """All symbols of that name, in table order; empty when there is none."""
        if self._by_name is None:
            self._questions += 1
            plain = name.isascii() and "\0" not in name and len(name) < MAX_NAME
            if plain and self._questions <= FEW_QUESTIONS:
                wanted = self._offsets(name.encode())
                return [self._symbol(entry) for entry in self._entries if entry[2] in wanted]
            names: dict[str, list[int]] = {}
            for index, entry in enumerate(self._entries):
                names.setdefault(self._text(entry[2]), []).append(index)
            self._by_name = names
        return [self._symbol(self._entries[i]) for i in self._by_name.get(name, ())]

    def _offsets(self, name: bytes) -> set[int]:
        """Where a name stands in the string table, also as the tail of another."""
        found: set[int] = set()
        if self._strings.endswith(name):  # the table's last name may lack its end
            found.add(len(self._strings) - len(name))
        at = self._strings.find(name + b"\0")
        while at >= 0:
            found.add(at)
            at = self._strings.find(name + b"\0", at + 1)
        return found

    def find(self, name: str) -> Symbol | None:
        """The first symbol of that name; faster than ``named`` for one question."""
        if name not in self._found:
            if len(self._found) >= MAX_FOUND:
                self._found.clear()
            self._found[name] = self._find(name)
        return self._found[name]

    def _find(self, name: str) -> Symbol | None:
        if self._by_name is not None:
            found = self.named(name)
            return found[0] if found else None
        # The first time the name stands alone in the table; the linker may share tails of names.
        at = self._strings.find(b"\0" + name.encode("utf-8", "surrogateescape") + b"\0")
        wanted = (at + 1).to_bytes(4, "little")  # st_name, the first field of an entry
        where = self._raw.find(wanted) if at >= 0 else -1
        while where >= 0:
            if where % SYMBOL.size == 0:
                _name, info, _other, section, value, size = SYMBOL.unpack_from(self._raw, where)
                if section != SHN_UNDEF and info & 15 in KINDS:
                    return self._symbol((value, size, at + 1, info & 15))
            where = self._raw.find(wanted, where + 1)
        found = self.named(name)
        return found[0] if found else None

    def globals(self, names: Collection[str]) -> dict[str, int]:
        """The addresses of those of the names that other files can take from this one."""
        found: dict[str, int] = {}
        for at, info, _other, section, value, _size in SYMBOL.iter_unpack(self._raw):
            if section != SHN_UNDEF and info >> 4 and (name := self._text(at)) in names:
                found.setdefault(name, value)
        return found

    def similar(self, name: str) -> list[str]:
        """Function names a person may have meant."""
        names = {self._text(e[2]) for e in self._entries if e[3] == STT_FUNC}
        return difflib.get_close_matches(name, names, 3, 0.8)

    def _index(self) -> list[tuple[int, int, int, int]]:
        if self._functions is None:
            self._functions = sorted([
                (value, size, name, STT_FUNC)
                for name, info, _other, section, value, size in SYMBOL.iter_unpack(self._raw)
                if info & 15 == STT_FUNC and size and section != SHN_UNDEF
                and name < len(self._strings)])
            self._addresses = [e[0] for e in self._functions]
        return self._functions

    def functions(self) -> Iterator[Symbol]:
        """Every STT_FUNC symbol with a size, by address."""
        return (self._symbol(entry) for entry in self._index())

    def function_at(self, address: int) -> Symbol | None:
        """The function whose range holds the address."""
        table = self._index()
        at = bisect.bisect_right(self._addresses, address) - 1
        while at >= 0 and table[at][0] + table[at][1] > address - (1 << 20):
            if table[at][0] <= address < table[at][0] + table[at][1]:
                return self._symbol(table[at])
            if table[at][0] + (1 << 20) < address:
                break
            at -= 1
        return None

    def where(self, address: int) -> str:
        """An address as ``function+offset``; hexadecimal, where there is no function."""
        function = self.function_at(address)
        return f"{function.name}+{address - function.address:#x}" if function else f"{address:#x}"

    def label_at(self, address: int) -> Symbol | None:
        """The last function or label of assembly at or below an address."""
        if self._labels is None:
            self._labels = sorted(e for e in self._entries if e[3] in (STT_NOTYPE, STT_FUNC))
        at = bisect.bisect_right(self._labels, (address, 1 << 64)) - 1
        while at >= 0 and self._text(self._labels[at][2])[:1] in ("", "$"):
            at -= 1  # a mapping symbol, which marks a change between code and data
        return self._symbol(self._labels[at]) if at >= 0 else None


@dataclass(frozen=True)
class Image:
    """A kernel as its ELF file describes it."""

    path: Path
    machine: str  # e_machine without the EM_ prefix
    entry: int
    segments: tuple[Segment, ...]
    symbols: SymbolTable
    build_id: str
    modules: "tuple[Module, ...]" = ()  # loaded behind it, by address

    @functools.cached_property
    def identity(self) -> str:
        """What tells this image from others: that of its kernel; with modules, a digest of theirs,
        too."""
        if not self.modules:
            return self.kernel_identity
        h = hashlib.sha256(self.kernel_identity.encode())
        for module in self.modules:
            h.update(f"{module.name} {module.address:#x} {module.file.digest}\n".encode())
        return f"{self.build_id or 'none'}-{h.hexdigest()[:32]}"

    @functools.cached_property
    def kernel_identity(self) -> str:
        """Its build id and a digest of its segments (a file that was changed in place keeps its
        build id)."""
        h = hashlib.sha256(self.build_id.encode() + self.entry.to_bytes(8, "little"))
        for segment in self.segments:
            h.update(segment.virtual.to_bytes(8, "little") + segment.physical.to_bytes(8, "little"))
            h.update(segment.data)
        return f"{self.build_id or 'none'}-{h.hexdigest()[:32]}"

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

    def module_at(self, address: int) -> "Module | None":
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
        raise ImageError(f"{self.path}: no segment holds {address:#x}..{address + size:#x}")


def read_file(path: Path) -> memoryview:
    """A file, mapped.

    :raises ImageError: when it cannot be read, or is empty.
    """
    try:
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except IsADirectoryError:
        raise ImageError(f"{path}: is a directory, not an ELF file") from None
    except ValueError:
        raise ImageError(f"{path}: is empty, not an ELF file") from None
    except OSError as error:
        raise ImageError(f"{path}: cannot be read: {error.strerror}") from None


def build_id_of(notes: bytes) -> str:
    """The NT_GNU_BUILD_ID among the notes of a section, in hexadecimal, or nothing."""
    at = 0
    while at + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, at)
        name = at + 12
        content = name + (name_size + 3 & ~3)
        if kind == 3 and notes[name : name + name_size] == b"GNU\0" and size <= 64:
            return notes[content : content + size].hex()
        at = content + (size + 3 & ~3)
    return ""


def _sections(elf: ELFFile, path: Path, data: memoryview) -> tuple[bytes, bytes, str]:
    """The symbol table's entries, its strings, and the build id (hex, or empty)."""
    entries, strings, build_id = b"", b"", ""
    if elf.num_sections() > MAX_SECTIONS:
        raise ImageError(f"{path}: {elf.num_sections()} sections: damaged ELF file")

    def content(header: dict[str, int]) -> bytes:
        offset, size = header["sh_offset"], header["sh_size"]
        if offset + size > len(data):
            raise ImageError(f"{path}: truncated: a section ends behind the end of the file")
        return bytes(data[offset : offset + size])

    for index in range(elf.num_sections()):
        header = elf._get_section_header(index)
        if header["sh_type"] == "SHT_SYMTAB" and not entries:
            entries = content(header)
            link = header["sh_link"]
            if link >= elf.num_sections():
                raise ImageError(f"{path}: the symbol table names no string table: damaged file")
            strings = content(elf._get_section_header(link))
        elif header["sh_type"] == "SHT_NOTE" and not build_id and header["sh_size"] <= MAX_NOTE:
            build_id = build_id_of(content(header))
    return entries, strings, build_id


def load(path: Path, debug: Path | None = None) -> Image:
    """Read a kernel image.

    :param debug: a separate debug file; looked for beside the image (``kernel.debug``) when the
        image has no symbols.
    :raises ImageError: when it is not a 64-bit little-endian ELF executable with symbols, is
        truncated, or its segments overlap.
    """
    data = read_file(path)
    if bytes(data[:4]) != ELF_MAGIC:
        raise ImageError(
            f"{path}: not an ELF file; give the kernel itself, e.g. /boot/kernel/kernel"
        )
    _check_headers(data, path)
    try:
        with path.open("rb") as file:
            elf = ELFFile(file)
            if elf.elfclass != 64 or not elf.little_endian:
                raise ImageError(f"{path}: not a 64-bit little-endian ELF file")
            machine = str(elf["e_machine"]).removeprefix("EM_")
            if elf["e_type"] not in ("ET_EXEC", "ET_DYN"):
                raise ImageError(f"{path}: not an executable kernel (ELF type {elf['e_type']})")
            entry = int(elf["e_entry"])
            segments = []
            for index in range(elf.num_segments()):
                header = elf._get_segment_header(index)
                if header["p_type"] == PT_LOAD and header["p_memsz"]:
                    segments.append(_segment(header, data, path))
            entries, strings, build_id = _sections(elf, path, data)
    except ELFError as error:
        raise ImageError(f"{path}: damaged ELF file: {error}") from None
    except (struct.error, UnicodeDecodeError, KeyError, IndexError, AttributeError, TypeError,
            ValueError, OSError, OverflowError) as error:
        # pyelftools meets malformed headers with whatever Python raises there.
        raise ImageError(f"{path}: damaged ELF file ({type(error).__name__})") from None
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
    symbols = SymbolTable(entries, strings)
    return Image(path, machine, entry, tuple(segments), symbols, build_id)


def _check_headers(data: memoryview, path: Path) -> None:
    """Say so when a file ends before its own tables do (Elf64_Ehdr)."""
    if len(data) >= 64 and data[4] == 2:
        program, section = struct.unpack_from("<QQ", data, 32)
        program_size, programs, section_size, sections = struct.unpack_from("<4H", data, 54)
        end = max(program + program_size * programs, section + section_size * sections)
    else:
        end = 64
    if end > len(data):
        raise ImageError(
            f"{path}: truncated: its tables end at {end:#x}, the file at {len(data):#x}"
        )


def _debug_symbols(path: Path) -> tuple[bytes, bytes, str]:
    raw = read_file(path)
    if bytes(raw[:4]) != ELF_MAGIC:
        raise ImageError(f"{path}: not an ELF file")
    _check_headers(raw, path)
    try:
        with path.open("rb") as file:
            found = _sections(ELFFile(file), path, raw)
    except (ELFError, struct.error, UnicodeDecodeError, KeyError, IndexError, AttributeError,
            TypeError, ValueError, OSError, OverflowError) as error:
        raise ImageError(f"{path}: damaged ELF file ({type(error).__name__})") from None
    if not found[0]:
        raise ImageError(f"{path}: has no symbols either; get the kernel-dbg set of the release")
    return found


def _segment(header: dict[str, int], data: memoryview, path: Path) -> Segment:
    offset, size, memory = header["p_offset"], header["p_filesz"], header["p_memsz"]
    if offset + size > len(data):
        raise ImageError(
            f"{path}: truncated: a segment ends at {offset + size:#x}, the file at {len(data):#x}"
        )
    if memory < size or memory > MAX_IMAGE:
        raise ImageError(f"{path}: a segment of {memory:#x} bytes in memory: damaged ELF file")
    if header["p_vaddr"] + memory > 1 << 64 or header["p_paddr"] + memory > 1 << 64:
        raise ImageError(f"{path}: a segment wraps around the address space: damaged ELF file")
    return Segment(
        header["p_vaddr"], header["p_paddr"], data[offset : offset + size], memory,
        header["p_flags"],
    )


def _check_overlap(segments: list[Segment], path: Path) -> None:
    ordered = sorted(segments, key=lambda s: s.virtual)
    for one, next_ in itertools.pairwise(ordered):
        if one.virtual_end > next_.virtual:
            raise ImageError(
                f"{path}: segments overlap at {next_.virtual:#x}: not a usable kernel image"
            )
