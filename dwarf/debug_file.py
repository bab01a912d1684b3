"""Debug data of a kernel: the file that contains it, and its sections."""

import functools
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import zstandard
from elftools.common.exceptions import DWARFError, ELFError

from dwarf._join import has_type_units
from dwarf.joined import (
    ALTERNATE,
    SHARED,
    SUPPLEMENT,
    TYPES,
    NotJoined,
    SupplementLink,
    join,
    link,
    own_identity,
)
from emu.elf.kernel_module import ModuleFile
from emu.elf.reader import (
    ET_REL,
    SHT_NOBITS,
    SHT_RELA,
    ElfFile,
    SectionHeader,
    build_id_of,
    read_file,
)
from emu.host.errors import ImageError, KinstError
from emu.host.input_file import InputFile
from emu.host.printable import plain

# Exceptions that damaged files raise in pyelftools and in decompression
DAMAGE = (DWARFError, ELFError, ValueError, KeyError, IndexError, AttributeError, TypeError,
          OverflowError, AssertionError, NotImplementedError, RecursionError, struct.error,
          zlib.error, zstandard.ZstdError)
SYSTEM = Path("/usr/lib/debug")
LIMIT = 1 << 30  # maximum size of an uncompressed section in bytes
SHF_COMPRESSED = 0x800
COMPRESSION = struct.Struct("<IIQQ")  # Elf64_Chdr: type, reserved, size, alignment
ZLIB, ZSTD = 1, 2
EXPANSION = 100  # maximum decompression ratio; a kernel's sections have ratios of 3 to 10
SMALL = 4096  # maximum size in bytes of a note or a debug link
MAX_PARTS = 1 << 16  # maximum number of sections with the same name


class DebugDataError(KinstError):
    """Error raised if debug data is missing, damaged or unsupported."""


def elf_file(path: Path) -> ElfFile:
    """Open a file that may have debug data.

    :raises DebugDataError: if the file is damaged or cannot be read.
    """
    try:
        return parsed(read_file(path))
    except ImageError as error:
        reason = str(error).removeprefix(f"{path}: ")
        raise DebugDataError(f"{path}: {reason}") from None


def parsed(file: InputFile) -> ElfFile:
    """Parse the headers of a file that may have debug data.

    :raises DebugDataError: if the file is damaged.
    """
    path = file.path
    try:
        return ElfFile(file)
    except ImageError as error:
        reason = str(error).removeprefix(f"{path}: ")
        raise DebugDataError(f"{path}: damaged debug data: {reason}") from None


def content(elf: ElfFile, name: str, limit: int = LIMIT) -> bytes:
    """Return the decompressed contents of the first section with a given name, or empty bytes.

    :raises DebugDataError: if the section is damaged.
    """
    one = elf.section(name)
    return b"" if one is None else _content(elf, one, limit)


def _content(elf: ElfFile, one: SectionHeader, limit: int = LIMIT) -> bytes:
    """Return the decompressed bytes of a section; for SHT_NOBITS, return an empty byte string."""
    return bytes(_view(elf, one, limit))


def _view(elf: ElfFile, one: SectionHeader, limit: int = LIMIT) -> memoryview:
    """Return a section's bytes like ``_content``, without copying an uncompressed section."""
    try:
        if one.size > limit and one.kind != SHT_NOBITS:
            raise ValueError(f"section {one.name} has {one.size} bytes; the limit is {limit}")
        raw = elf.view(one)
        if not one.flags & SHF_COMPRESSED or one.kind == SHT_NOBITS:
            return raw
        return memoryview(_decompressed(one, raw, limit))
    except (ImageError, ValueError, struct.error, zlib.error, zstandard.ZstdError) as error:
        reason = str(error).removeprefix(f"{elf.path}: ")
        raise DebugDataError(f"{elf.path}: damaged debug data: {reason}") from None


def _decompressed(one: SectionHeader, raw: memoryview, limit: int) -> bytes:
    kind, _zero, size, _alignment = COMPRESSION.unpack_from(raw)
    if size > min(limit, EXPANSION * len(raw) + (1 << 16)):
        raise ValueError(f"section {one.name} of {len(raw)} bytes expands to {size} bytes; the "
                         f"limit is {min(limit, EXPANSION * len(raw) + (1 << 16))}")
    packed = raw[COMPRESSION.size :]
    if kind == ZLIB:
        out = zlib.decompressobj().decompress(packed, size + 1)
    elif kind == ZSTD:
        out = zstandard.ZstdDecompressor().stream_reader(packed).read(size + 1)
    else:
        raise ValueError(f"section {one.name} has unknown compression type {kind}")
    if len(out) != size:
        raise ValueError(f"section {one.name} does not have the {size} bytes that its header "
                         "specifies")
    return out


def _build_id(elf: ElfFile) -> str:
    """Return the build ID in hexadecimal, or an empty string."""
    return build_id_of(bytes(content(elf, ".note.gnu.build-id", SMALL)))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False  # the host does not accept the file name


def _with_section(elf: ElfFile, name: str) -> ElfFile | None:
    """Return the file that contains a kernel's section of a given name, or None; cache the result.

    This is the kernel itself, a file that its .gnu_debuglink or build ID names, or ``<name>.debug``
    in the same directory.

    :raises DebugDataError: if a file is damaged or comes from a different build.
    """
    if elf.section(name) is not None:
        return elf
    if name not in elf.companions:
        known = {one.path: one for one in elf.companions.values() if one is not None}
        elf.companions[name] = _companion(elf, name, known)
    return elf.companions[name]


def _companion(elf: ElfFile, name: str, known: Mapping[Path, ElfFile]) -> ElfFile | None:
    """Find a kernel's companion file that has a section of a given name, or return None.

    :param known: companion files that were opened before, by path.
    """
    kernel = elf.path
    link, build_id = content(elf, ".gnu_debuglink", SMALL), _build_id(elf)
    linked = Path(link.split(b"\0", 1)[0].decode("utf-8", "replace")).name
    names = [n for n in (linked, kernel.name + ".debug") if n]
    candidates = [kernel.parent / directory / n for n in names for directory in (".", ".debug")]
    if build_id:
        candidates.append(SYSTEM / ".build-id" / build_id[:2] / f"{build_id[2:]}.debug")
    for path in candidates:
        if not _is_file(path) or path.resolve() == kernel.resolve():
            continue
        other = known.get(path) or elf_file(path)
        if other.section(name) is None:
            continue
        theirs = _build_id(other)
        wrong = build_id != theirs if build_id and theirs else (
            path.name == linked and len(link) >= 4 and _checksum(other) != link[-4:])
        if wrong:
            raise DebugDataError(f"{path}: comes from a different build than {kernel}; "
                                 "get the matching file")
        return other
    return None


def _checksum(elf: ElfFile) -> bytes:
    """Return a file's CRC-32 as .gnu_debuglink stores it."""
    return struct.pack("<I", zlib.crc32(elf.data))


def debug_file(kernel: ElfFile) -> ElfFile | None:
    """Return the file that contains a kernel's DWARF, or None.

    :raises DebugDataError: if the kernel or its debug file is damaged.
    """
    return _with_section(kernel, ".debug_info")


def ctf_sections(kernel: ElfFile) -> tuple[bytes, bytes, bytes] | None:
    """Return a kernel's CTF section with the entries and strings of its symbol table, or None.

    :raises DebugDataError: if a section is damaged or larger than 1 GiB.
    """
    elf = _with_section(kernel, ".SUNW_ctf")
    if elf is None:
        return None
    data, symbols = content(elf, ".SUNW_ctf"), elf.section(".symtab")
    if symbols is None:
        return data, b"", b""
    if symbols.link >= len(elf.sections):
        raise DebugDataError(f"{elf.path}: damaged debug data: the symbol table has no string "
                             "table")
    return data, _content(elf, symbols), _content(elf, elf.sections[symbols.link])


def sections(elf: ElfFile, names: tuple[str, ...]) -> dict[str, bytes]:
    """Return the contents of the named sections that exist, decompressed and relocated.

    Sections of a relocatable file (an amd64 module) are linked to address 0.  Type units and the
    entries of a supplementary file (dwz) are appended to .debug_info.

    :raises DebugDataError: if a section is damaged, larger than 1 GiB, or in a missing file.
    """
    return {name: bytes(view) for name, view in views(elf, names).items()}


def views(elf: ElfFile, names: tuple[str, ...]) -> dict[str, memoryview]:
    """Return section contents like ``sections``, but without copying uncompressed sections.

    A kernel's debug data is a hundred MB, and most callers need a few bytes of it.

    :raises DebugDataError: if a section is damaged, larger than 1 GiB, or in a missing file.
    """
    found = _contents(elf, names)
    if not any(name in SHARED for name in names):
        return found
    in_parts = any(elf.section(name) is not None for name in (TYPES, ALTERNATE, SUPPLEMENT))
    if in_parts or has_type_units(found.get(".debug_info", b"")):
        joined = _joined(elf)
        found |= {name: memoryview(part) for name, part in joined.items() if name in names}
    return found


@functools.lru_cache(maxsize=2)
def _joined(elf: ElfFile) -> dict[str, bytes]:
    """Return a file's debug sections joined with its type units and its supplementary file.

    The result is cached, because it is large and needed several times.
    """
    own = {name: bytes(view) for name, view in _contents(elf, (*SHARED, TYPES)).items()}
    types = own.pop(TYPES, b"")
    named = link(functools.partial(content, elf, limit=SMALL))
    other = None
    if named is not None:
        if SUPPLEMENT not in elf.companions:
            elf.companions[SUPPLEMENT] = _supplement(elf.path, named)
        supplement = elf.companions[SUPPLEMENT]
        assert supplement is not None
        other = {name: bytes(view) for name, view in _contents(supplement, SHARED).items()}
    try:
        return join(own, types, other)
    except NotJoined as error:
        raise DebugDataError(f"{elf.path}: {error}") from None


def _supplement(path: Path, named: SupplementLink) -> ElfFile:
    """Find the supplementary file, to which dwz moved entries that several files have in common.

    :raises DebugDataError: if the file is missing or comes from a different build.
    """
    identity = named.identity.hex()
    candidates = [path.parent / named.name, path.parent / Path(named.name).name,
                  SYSTEM / ".dwz" / Path(named.name).name]
    if identity:
        candidates.append(SYSTEM / ".build-id" / identity[:2] / f"{identity[2:]}.debug")
    for candidate in candidates:
        if not _is_file(candidate):
            continue
        elf = elf_file(candidate)
        theirs = own_identity(functools.partial(content, elf, limit=SMALL),
                              bytes.fromhex(_build_id(elf)))
        if named.identity and theirs != named.identity:
            raise DebugDataError(f"{candidate}: comes from a different build than {path}, "
                                 "which shares debug data with it (dwz); get the matching file")
        return elf
    raise DebugDataError(f"{path}: some of its debug data is in {plain(named.name)} (dwz), "
                         "which is missing; put that file in the same directory")


def _contents(elf: ElfFile, names: tuple[str, ...]) -> dict[str, memoryview]:
    """Return sections by name, decompressed and relocated; sections of the same name are joined."""
    wanted = set(names)
    headers: dict[str, list[SectionHeader]] = {}
    for header in elf.sections:
        if header.name in wanted and (header.size or header.name not in headers):
            headers.setdefault(header.name, []).append(header)
    found, offsets = {}, {}
    for name, parts in headers.items():
        contents = [_view(elf, header) for header in parts[:MAX_PARTS]]
        at = 0
        for header, part in zip(parts, contents, strict=False):
            if len(part):  # an empty section may share its offset with the next one
                offsets[header.offset] = at
            at += len(part)
        if at > LIMIT or len(parts) > MAX_PARTS:
            raise DebugDataError(
                f"{elf.path}: damaged debug data: {len(parts)} {name} sections with {at} bytes "
                f"exceed the limit of {MAX_PARTS} sections and {LIMIT} bytes")
        found[name] = contents[0] if len(contents) == 1 else memoryview(b"".join(contents))
    relocated = elf.kind == ET_REL and any(elf.of_kind(SHT_RELA))  # ET_REL dwz files lack SHT_RELA
    return _linked(elf, found, offsets) if relocated and found else found


def _linked(elf: ElfFile, found: dict[str, memoryview], places: dict[int, int]
            ) -> dict[str, memoryview]:
    """Return sections with their relocations applied, as if the file were linked at address 0.

    :param places: file offset of a section -> its offset among the sections with its name.
    """
    try:
        file = ModuleFile(elf.file)
    except ImageError as error:
        raise DebugDataError(str(error)) from None
    contents = {name: bytearray(plain) for name, plain in found.items()}
    for target, at, data in file.written(0, lambda name: None, contents):
        into, at = contents[target.name], at + places.get(target.offset, 0)
        if at + len(data) <= len(into):
            into[at : at + len(data)] = data
    return {name: memoryview(plain) for name, plain in contents.items()}
