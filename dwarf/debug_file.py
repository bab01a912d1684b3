"""Where a kernel's debug data is, and its sections."""

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elftools.common.exceptions import DWARFError, ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import Section

from emu.errors import KinstError

# What the library raises on damaged files, beside its own errors.
DAMAGE = (DWARFError, ELFError, ValueError, KeyError, IndexError, AttributeError, TypeError,
          OverflowError, AssertionError, struct.error)
SYSTEM = Path("/usr/lib/debug")
SHT_NOBITS = 8
SECTION = struct.Struct("<II16xQQ")  # of Elf64_Shdr: name, type, offset, size
LIMIT = 1 << 31  # bytes of a section, uncompressed


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


def _candidates(kernel: Path) -> Iterator[Path]:
    """Files that may have a kernel's debug data: itself, the ones that its .gnu_debuglink and its
    build id name, the one beside it in ``<name>.debug``."""
    yield kernel
    with opened(kernel) as elf:
        names = [kernel.name + ".debug"]
        link = section(elf, ".gnu_debuglink")
        if link is not None:
            names.insert(0, link.data().split(b"\0", 1)[0].decode("utf-8", "replace"))
        build_id = ""
        note = section(elf, ".note.gnu.build-id")
        if note is not None:
            build_id = note.data()[16:].hex()
    for name in names:
        for directory in (".", ".debug"):
            if Path(name).name:
                yield kernel.parent / directory / Path(name).name
    if build_id:
        yield SYSTEM / ".build-id" / build_id[:2] / f"{build_id[2:]}.debug"


def _with_section(kernel: Path, name: str) -> Path | None:
    for path in _candidates(kernel):
        if path == kernel or (path.is_file() and path.resolve() != kernel.resolve()):
            with opened(path) as elf:
                if section(elf, name) is not None:
                    return path
    return None


def debug_file(kernel: Path) -> Path | None:
    """The file that has a kernel's DWARF.

    :raises DebugDataError: when the kernel is damaged.
    """
    return _with_section(kernel, ".debug_info")


def ctf_sections(kernel: Path) -> tuple[bytes, bytes, bytes] | None:
    """A kernel's CTF section, and the symbol table that it belongs to: its entries, its strings.

    :raises DebugDataError: when a section is damaged, or larger than 2 GiB.
    """
    path = _with_section(kernel, ".SUNW_ctf")
    if path is None:
        return None
    with opened(path) as elf:
        data = _content(section(elf, ".SUNW_ctf"), path)
        symbols = section(elf, ".symtab")
        if symbols is None:
            return data, b"", b""
        strings = elf.get_section(symbols["sh_link"])
        return data, _content(symbols, path), _content(strings, path)


def _content(one: Section, path: Path) -> bytes:
    if one.data_size > LIMIT:
        raise DebugDataError(f"{path}: {one.name} has {one.data_size} bytes")
    return bytes(one.data())


def sections(path: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """The contents of the sections that are there, decompressed.

    :raises DebugDataError: when one is damaged, or larger than 2 GiB.
    """
    with opened(path) as elf:
        found = {}
        for name in names:
            one = section(elf, name)
            if one is not None:
                found[name] = _content(one, path)
        return found
