"""Where a kernel's debug data is, and its sections."""

import mmap
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zstandard
from elftools.common.exceptions import DWARFError, ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import Section

from emu.errors import ImageError, KinstError
from emu.module import ModuleFile

# What the library raises on damaged files, beside its own errors.
DAMAGE = (DWARFError, ELFError, ValueError, KeyError, IndexError, AttributeError, TypeError,
          OverflowError, AssertionError, NotImplementedError, RecursionError, struct.error,
          zlib.error, zstandard.ZstdError)
SYSTEM = Path("/usr/lib/debug")
SHT_NOBITS = 8
SECTION = struct.Struct("<II16xQQ")  # of Elf64_Shdr: name, type, offset, size
LIMIT = 1 << 30  # bytes of a section, uncompressed
SHF_COMPRESSED = 0x800
COMPRESSION = struct.Struct("<IIQQ")  # Elf64_Chdr: type, 0, size, alignment
ZLIB, ZSTD = 1, 2
EXPANSION = 100  # times its size a section may become; a kernel's become 3 to 10 times
SMALL = 4096  # bytes of a note, or of a link
NT_GNU_BUILD_ID = 3


class DebugDataError(KinstError):
    """The debug data cannot be read."""


@contextmanager
def opened(path: Path) -> Iterator[ELFFile]:
    """A file as the library reads it.

    :raises DebugDataError: when it is damaged.
    :raises OSError: when it cannot be read.
    """
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
            yield ELFFile(data)
    except DAMAGE as error:
        raise DebugDataError(f"{path}: damaged debug data: {error}") from None


def section(elf: ELFFile, name: str) -> Section | None:
    """The first section of a name.  The library's own way makes objects of all sections first, hash
    tables among them, which takes a quarter of a second for a kernel."""
    header, stream = elf.header, elf.stream
    if elf.elfclass != 64 or not elf.little_endian:
        raise ValueError("not a 64-bit little-endian file")
    headers = []
    for index in range(header["e_shnum"]):
        stream.seek(header["e_shoff"] + index * header["e_shentsize"])
        headers.append(SECTION.unpack(stream.read(SECTION.size)))
    if header["e_shstrndx"] >= len(headers):
        return None
    _name, kind, offset, size = headers[header["e_shstrndx"]]
    if kind == SHT_NOBITS:
        return None
    stream.seek(offset)
    strings = stream.read(size)
    for index, (name_at, _kind, _offset, _size) in enumerate(headers):
        if strings[name_at : name_at + len(name) + 1] == name.encode() + b"\0":
            return elf.get_section(index)
    return None


def _content(elf: ELFFile, one: Section | None, limit: int = LIMIT) -> bytes:
    """A section's bytes, decompressed; none of one that is not there, or has none in the file."""
    if one is None or one["sh_type"] == "SHT_NOBITS":
        return b""
    size = one["sh_size"]
    if size > limit:
        raise ValueError(f"{one.name} has {size} bytes")
    elf.stream.seek(one["sh_offset"])
    raw = bytes(elf.stream.read(size))
    if len(raw) != size:
        raise ValueError(f"{one.name} is cut off")
    if not one["sh_flags"] & SHF_COMPRESSED:
        return raw
    kind, _zero, plain, _alignment = COMPRESSION.unpack_from(raw)
    if plain > min(limit, EXPANSION * size + (1 << 16)):
        raise ValueError(f"{one.name} would have {plain} bytes, from {size}")
    packed = raw[COMPRESSION.size :]
    if kind == ZLIB:
        out = zlib.decompressobj().decompress(packed, plain + 1)
    elif kind == ZSTD:
        out = zstandard.ZstdDecompressor().stream_reader(packed).read(plain + 1)
    else:
        raise ValueError(f"{one.name} is compressed in a way ({kind}) that is not known")
    if len(out) != plain:
        raise ValueError(f"{one.name} does not have the {plain} bytes it says")
    return out


def _build_id(elf: ELFFile) -> str:
    """In hexadecimal, or empty."""
    note = _content(elf, section(elf, ".note.gnu.build-id"), SMALL)
    if len(note) < 16 or struct.unpack_from("<I", note, 8)[0] != NT_GNU_BUILD_ID:
        return ""
    return note[16:].hex()


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False  # a name that cannot be one


def _with_section(kernel: Path, name: str) -> Path | None:
    """The file that has a section for a kernel: itself, or one of those that its .gnu_debuglink
    and its build id name, or the one beside it in ``<name>.debug``.

    :raises DebugDataError: when a file is damaged, or of another build.
    """
    with opened(kernel) as elf:
        if section(elf, name) is not None:
            return kernel
        link = _content(elf, section(elf, ".gnu_debuglink"), SMALL)
        build_id = _build_id(elf)
    linked = Path(link.split(b"\0", 1)[0].decode("utf-8", "replace")).name
    names = [n for n in (linked, kernel.name + ".debug") if n]
    candidates = [kernel.parent / directory / n for n in names for directory in (".", ".debug")]
    if build_id:
        candidates.append(SYSTEM / ".build-id" / build_id[:2] / f"{build_id[2:]}.debug")
    for path in candidates:
        if not _is_file(path) or path.resolve() == kernel.resolve():
            continue
        with opened(path) as elf:
            if section(elf, name) is None:
                continue
            theirs = _build_id(elf)
        wrong = build_id != theirs if build_id and theirs else (
            path.name == linked and len(link) >= 4 and _checksum(path) != link[-4:])
        if wrong:
            raise DebugDataError(f"{path}: is of another build than {kernel}; get the matching one")
        return path
    return None


def _checksum(path: Path) -> bytes:
    """As .gnu_debuglink has it, at its end."""
    value = 0
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            value = zlib.crc32(part, value)
    return struct.pack("<I", value)


def debug_file(kernel: Path) -> Path | None:
    """The file that has a kernel's DWARF.

    :raises DebugDataError: when the kernel is damaged.
    """
    return _with_section(kernel, ".debug_info")


def ctf_sections(kernel: Path) -> tuple[bytes, bytes, bytes] | None:
    """A kernel's CTF section, and the symbol table that it belongs to: its entries, its strings.

    :raises DebugDataError: when a section is damaged, or larger than 1 GiB.
    """
    path = _with_section(kernel, ".SUNW_ctf")
    if path is None:
        return None
    with opened(path) as elf:
        data, symbols = _content(elf, section(elf, ".SUNW_ctf")), section(elf, ".symtab")
        if symbols is None:
            return data, b"", b""
        strings = elf.get_section(symbols["sh_link"])
        return data, _content(elf, symbols), _content(elf, strings)


def sections(path: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """The contents of the sections that are there, decompressed; of a relocatable file (a module of
    amd64) as they are when it is linked to address 0.

    :raises DebugDataError: when one is damaged, or larger than 1 GiB.
    """
    with opened(path) as elf:
        found = {}
        for name in names:
            one = section(elf, name)
            if one is not None:
                found[name] = _content(elf, one)
        if elf.header["e_type"] == "ET_REL" and found:
            return _linked(path, found)
        return found


def _linked(path: Path, found: dict[str, bytes]) -> dict[str, bytes]:
    try:
        file = ModuleFile(path)
    except ImageError as error:
        raise DebugDataError(str(error)) from None
    contents = {name: bytearray(content) for name, content in found.items()}
    for target, at, data in file.written(0, lambda name: None, contents):
        content = contents[target.name]
        if at + len(data) <= len(content):
            content[at : at + len(data)] = data
    return {name: bytes(content) for name, content in contents.items()}
