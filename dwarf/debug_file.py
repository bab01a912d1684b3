"""Where a kernel's debug data is, and its sections."""

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

# What the library raises on damaged files, beside its own errors.
DAMAGE = (DWARFError, ELFError, ValueError, KeyError, IndexError, AttributeError, TypeError,
          OverflowError, AssertionError, NotImplementedError, RecursionError, struct.error,
          zlib.error, zstandard.ZstdError)
SYSTEM = Path("/usr/lib/debug")
LIMIT = 1 << 30  # bytes of a section, uncompressed
SHF_COMPRESSED = 0x800
COMPRESSION = struct.Struct("<IIQQ")  # Elf64_Chdr: type, 0, size, alignment
ZLIB, ZSTD = 1, 2
EXPANSION = 100  # times its size a section may become; a kernel's become 3 to 10 times
SMALL = 4096  # bytes of a note, or of a link
MAX_PARTS = 1 << 16  # sections of one name


class DebugDataError(KinstError):
    """The debug data cannot be read."""


def elf_file(path: Path) -> ElfFile:
    """A file that may have debug data.

    :raises DebugDataError: when it is damaged, or cannot be read.
    """
    try:
        return parsed(read_file(path))
    except ImageError as error:
        said = str(error).removeprefix(f"{path}: ")
        raise DebugDataError(f"{path}: {said}") from None


def parsed(file: InputFile) -> ElfFile:
    """The headers of a file that may have debug data.

    :raises DebugDataError: when it is damaged.
    """
    path = file.path
    try:
        return ElfFile(file)
    except ImageError as error:
        said = str(error).removeprefix(f"{path}: ")
        raise DebugDataError(f"{path}: damaged debug data: {said}") from None


def content(elf: ElfFile, name: str, limit: int = LIMIT) -> bytes:
    """What is in the first section of a name, decompressed; nothing where there is none.

    :raises DebugDataError: when it is damaged.
    """
    one = elf.section(name)
    return b"" if one is None else _content(elf, one, limit)


def _content(elf: ElfFile, one: SectionHeader, limit: int = LIMIT) -> bytes:
    """A section's bytes, decompressed; none of one that has none in the file."""
    return bytes(_view(elf, one, limit))


def _view(elf: ElfFile, one: SectionHeader, limit: int = LIMIT) -> memoryview:
    """The same, without a copy of what lies in the file as it is."""
    try:
        if one.size > limit and one.kind != SHT_NOBITS:
            raise ValueError(f"{one.name} has {one.size} bytes")
        raw = elf.view(one)
        if not one.flags & SHF_COMPRESSED or one.kind == SHT_NOBITS:
            return raw
        return memoryview(_decompressed(one, raw, limit))
    except (ImageError, ValueError, struct.error, zlib.error, zstandard.ZstdError) as error:
        said = str(error).removeprefix(f"{elf.path}: ")
        raise DebugDataError(f"{elf.path}: damaged debug data: {said}") from None


def _decompressed(one: SectionHeader, raw: memoryview, limit: int) -> bytes:
    kind, _zero, plain, _alignment = COMPRESSION.unpack_from(raw)
    if plain > min(limit, EXPANSION * len(raw) + (1 << 16)):
        raise ValueError(f"{one.name} would have {plain} bytes, from {len(raw)}")
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


def _build_id(elf: ElfFile) -> str:
    """In hexadecimal, or empty."""
    return build_id_of(bytes(content(elf, ".note.gnu.build-id", SMALL)))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False  # a name that cannot be one


def _with_section(elf: ElfFile, name: str) -> ElfFile | None:
    """The file that has a section for a kernel, as it is when somebody asks first: itself, or one
    of those that its .gnu_debuglink and its build id name, or the one beside it in
    ``<name>.debug``.

    :raises DebugDataError: when a file is damaged, or of another build.
    """
    if elf.section(name) is not None:
        return elf
    if name not in elf.companions:
        known = {one.path: one for one in elf.companions.values() if one is not None}
        elf.companions[name] = _companion(elf, name, known)
    return elf.companions[name]


def _companion(elf: ElfFile, name: str, known: Mapping[Path, ElfFile]) -> ElfFile | None:
    """Look for the file.

    :param known: those that were found before.
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
            raise DebugDataError(f"{path}: is of another build than {kernel}; get the matching one")
        return other
    return None


def _checksum(elf: ElfFile) -> bytes:
    """As .gnu_debuglink has it, at its end."""
    return struct.pack("<I", zlib.crc32(elf.data))


def debug_file(kernel: ElfFile) -> ElfFile | None:
    """The file that has a kernel's DWARF.

    :raises DebugDataError: when the kernel is damaged.
    """
    return _with_section(kernel, ".debug_info")


def ctf_sections(kernel: ElfFile) -> tuple[bytes, bytes, bytes] | None:
    """A kernel's CTF section, and the symbol table that it belongs to: its entries, its strings.

    :raises DebugDataError: when a section is damaged, or larger than 1 GiB.
    """
    elf = _with_section(kernel, ".SUNW_ctf")
    if elf is None:
        return None
    data, symbols = content(elf, ".SUNW_ctf"), elf.section(".symtab")
    if symbols is None:
        return data, b"", b""
    if symbols.link >= len(elf.sections):
        raise DebugDataError(f"{elf.path}: damaged debug data: symbols without names")
    return data, _content(elf, symbols), _content(elf, elf.sections[symbols.link])


def sections(elf: ElfFile, names: tuple[str, ...]) -> dict[str, bytes]:
    """The contents of the sections that are there, decompressed; of a relocatable file (a module of
    amd64) as they are when it is linked to address 0.  Type units and what a supplementary file has
    (dwz) are in .debug_info, behind the file's own entries.

    :raises DebugDataError: when one is damaged, or larger than 1 GiB, or in a file that is not
        there.
    """
    return {name: bytes(view) for name, view in views(elf, names).items()}


def views(elf: ElfFile, names: tuple[str, ...]) -> dict[str, memoryview]:
    """The same, without a second copy of what lies in the file as it is: a kernel's debug data is
    a hundred MB, and most questions want a few bytes of it.

    :raises DebugDataError: when one is damaged, or larger than 1 GiB, or in a file that is not
        there.
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
    """The sections of a file whose debug data is in several places; they are large, and asked for
    several times."""
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
    """The file that has the entries that dwz has taken out of several files.

    :raises DebugDataError: when it is not there, or is another one.
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
            raise DebugDataError(f"{candidate}: is of another build than {path}, whose debug data "
                                 "is partly in it (dwz); get the matching one")
        return elf
    raise DebugDataError(f"{path}: its debug data is partly in {plain(named.name)} (dwz), "
                         "and that is not there: put it beside the file")


def _contents(elf: ElfFile, names: tuple[str, ...]) -> dict[str, memoryview]:
    """Sections by name, decompressed and relocated; those of one name are joined."""
    wanted = set(names)
    there: dict[str, list[SectionHeader]] = {}
    for one in elf.sections:
        if one.name in wanted and (one.size or one.name not in there):
            there.setdefault(one.name, []).append(one)
    found, places = {}, {}
    for name, parts in there.items():
        contents = [_view(elf, one) for one in parts[:MAX_PARTS]]
        at = 0
        for one, part in zip(parts, contents, strict=False):
            if len(part):  # an empty one may lie where another begins
                places[one.offset] = at
            at += len(part)
        if at > LIMIT or len(parts) > MAX_PARTS:
            raise DebugDataError(
                f"{elf.path}: damaged debug data: {len(parts)} sections {name}, of {at} bytes")
        found[name] = contents[0] if len(contents) == 1 else memoryview(b"".join(contents))
    relocated = elf.kind == ET_REL and any(elf.of_kind(SHT_RELA))  # dwz's files are ET_REL, too
    return _linked(elf, found, places) if relocated and found else found


def _linked(elf: ElfFile, found: dict[str, memoryview], places: dict[int, int]
            ) -> dict[str, memoryview]:
    """Sections as they are when the file is linked to address 0.

    :param places: by its offset in the file: where a section begins among those of its name.
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
