"""Object file that declares a program's probes: ``kdtrace -G``.

It has the DOF, and relocations for the addresses of the functions with probes.
"""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from dtrace.d.language.attributes import CLASSES, STABILITIES
from dtrace.d.language.syntax import ProviderDeclaration
from dtrace.usdt.dof_writer import Dof, write_dof
from dtrace.usdt.program_objects import (
    RELA,
    SHF_ALLOC,
    STB_GLOBAL,
    STB_WEAK,
    STV_HIDDEN,
    SYMBOL,
    ProbeSite,
    ProgramObject,
)
from dwarf.dof import SECTION as DOF_SECTION
from dwarf.dof import DofProbe, DofProvider
from dwarf.types import Type, declare
from emu.elf.reader import ET_REL, HEADER, MACHINES, SECTION, SHT_RELA, SHT_SYMTAB
from emu.host.atomic_file import replacing
from emu.host.errors import KinstError
from kinst.code.usdt_code import USDT_CODES

PARTS = ("provider", "module", "function", "name", "args")
PRIVATE = "Private/Private/Unknown"  # stability of what no pragma describes
SHT_PROGBITS, SHT_STRTAB, SHT_DOF, STT_OBJECT, STT_SECTION = 1, 3, 0x6FFFFFF4, 1, 3
SHF_INFO_LINK, SHF_GNU_RETAIN = 0x40, 0x200000  # nothing refers to the DOF, but it is needed
MOST_OFFSETS = 65_535  # maximum number of calls for a probe in a function
# Symbol of the DOF for the code that shows the probes to the kernel (drti.o).  It is weak, because
# a program may have several of these object files; drti.o then shows the first one.
DOF_SYMBOL = "__SUNW_dof"
EM = {name: number for number, name in MACHINES.items()}
FREEBSD = 9  # ELFOSABI_FREEBSD
NAMES = ("", DOF_SECTION, f".rela{DOF_SECTION}", ".symtab", ".strtab", ".note.GNU-stack")


def link_probes(providers: Mapping[str, ProviderDeclaration], paths: Sequence[Path], arch: str,
                machine: str, out: Path) -> int:
    """Replace the calls for probes in object files, and write an object file that declares them.

    Nothing is written if there is an error.

    :param providers: the declared providers by name.
    :param machine: the architecture's ``e_machine`` without the EM_ prefix.
    :return: number of calls.
    :raises KinstError: if an object file is unsuitable, or calls a probe that is not declared.
    :raises OSError: if a file cannot be written.
    """
    for number, path in enumerate(paths):
        if any(path.samefile(other) for other in paths[:number] if path.exists()):
            raise KinstError(f"{path}: is given twice")
    objects = [ProgramObject(path, arch, machine) for path in paths]
    sites: dict[str, list[ProbeSite]] = {name: [] for name in providers}
    for one in objects:
        for site in one.sites:
            _declared(providers, site, one.path)
            sites[site.provider].append(site)
    for name, found in sites.items():
        if not found:
            raise KinstError(f"no object file has a probe of the declared provider {name}")
    made = [_provider(providers[name], found) for name, found in sites.items()]
    dof = write_dof([provider for provider, _symbols in made], [names for _p, names in made])
    content = _object(dof, arch, EM[machine], objects[0].flags if objects else 0)
    with contextlib.ExitStack() as written:  # all files are written before the first is renamed
        written.enter_context(replacing(out)).write(content)
        for one in objects:
            if one.changed:
                written.enter_context(replacing(
                    one.path, one.path.stat().st_mode & 0o777)).write(one.content)
    return sum(len(probe.offsets) + len(probe.enabled)
               for provider, _symbols in made for probe in provider.probes)


def _declared(providers: Mapping[str, ProviderDeclaration], site: ProbeSite, path: Path) -> None:
    provider = providers.get(site.provider)
    if provider is None:
        raise KinstError(f"{path}: no such provider {site.provider}; the script must declare it")
    if all(probe.name != site.probe for probe in provider.probes):
        raise KinstError(f"{path}: no such probe {site.probe}; the declaration of provider "
                         f"{site.provider} must have it")


def _provider(declared: ProviderDeclaration, sites: Sequence[ProbeSite]
              ) -> tuple[DofProvider, list[str]]:
    """Return a provider with the probes that are called, and the symbol of each one's function."""
    probes: list[DofProbe] = []
    symbols: list[str] = []
    grouped: dict[tuple[str, str, str], list[ProbeSite]] = {}
    for site in sites:
        grouped.setdefault((site.probe, site.function, site.symbol), []).append(site)
    for one in declared.probes:
        for (name, function, symbol), found in grouped.items():
            if name == one.name:
                probes.append(DofProbe(
                    function, name, 0, _spelled(one.native), _spelled(one.seen), one.mapping,
                    _offsets(found, False), _offsets(found, True)))
                symbols.append(symbol)
    attributes = tuple(_numbers(declared.attributes.get(part, PRIVATE)) for part in PARTS)
    return DofProvider(declared.name, attributes, tuple(probes)), symbols


def _spelled(kinds: Sequence[Type]) -> tuple[str, ...]:
    return tuple(declare(kind) for kind in kinds)


def _offsets(sites: Sequence[ProbeSite], asks: bool) -> tuple[int, ...]:
    found = tuple(dict.fromkeys(site.offset for site in sites if site.asks == asks))
    if len(found) > MOST_OFFSETS:
        raise KinstError(f"{sites[0].function} calls {sites[0].probe} more than {MOST_OFFSETS} "
                         "times")
    return found


def _numbers(attributes: str) -> tuple[int, int, int]:
    name, data, depends = attributes.lower().split("/")
    return STABILITIES.index(name), STABILITIES.index(data), CLASSES.index(depends)


def _object(dof: Dof, arch: str, machine: int, flags: int) -> bytes:
    """Return an ELF object file with DOF in a section of its own."""
    strings = bytearray(1)

    def named(text: str) -> int:
        at = len(strings)
        strings.extend(text.encode("utf-8", "surrogateescape") + b"\0")
        return at

    section_names = [named(name) if name else 0 for name in NAMES]
    rows = [SYMBOL.pack(0, 0, 0, 0, 0, 0), SYMBOL.pack(0, STT_SECTION, 0, 1, 0, 0)]
    place = 1  # the symbol of the section
    numbers: dict[str, int] = {}
    for _at, name in dof.fields:
        if name not in numbers:
            numbers[name] = len(rows)
            rows.append(SYMBOL.pack(named(name), STB_GLOBAL << 4, STV_HIDDEN, 0, 0, 0))
    rows.append(SYMBOL.pack(named(DOF_SYMBOL), STB_WEAK << 4 | STT_OBJECT, STV_HIDDEN, 1, 0,
                            len(dof.content)))
    first, *others = USDT_CODES[arch].difference
    relocations = b"".join(
        RELA.pack(at, numbers[name] << 32 | first, 0)
        + b"".join(RELA.pack(at, place << 32 | kind, at) for kind in others)
        for at, name in dof.fields)
    contents = (b"", dof.content, relocations, b"".join(rows), bytes(strings), b"")
    # type, flags, link, info, alignment and size of an entry of each section
    shapes = ((0, 0, 0, 0, 0, 0), (SHT_DOF, SHF_ALLOC | SHF_GNU_RETAIN, 0, 0, 8, 0),
              (SHT_RELA, SHF_INFO_LINK, 3, 1, 8, RELA.size),
              (SHT_SYMTAB, 0, 4, 2, 8, SYMBOL.size), (SHT_STRTAB, 0, 0, 0, 1, 0),
              (SHT_PROGBITS, 0, 0, 0, 1, 0))
    body, headers = bytearray(), bytearray()
    for section_name, content, (kind, how, link, info, alignment, entry) in zip(
            section_names, contents, shapes, strict=True):
        body += bytes(-len(body) % 8)
        headers += SECTION.pack(section_name, kind, how, 0, HEADER.size + len(body) if kind else 0,
                                len(content), link, info, alignment, entry)
        body += content
    body += bytes(-len(body) % 8)
    ident = b"\x7fELF\2\1\1" + bytes([FREEBSD]) + bytes(8)
    return HEADER.pack(ident, ET_REL, machine, 1, 0, 0, HEADER.size + len(body), flags, HEADER.size,
                       0, 0, SECTION.size, len(NAMES), 4) + bytes(body) + bytes(headers)
