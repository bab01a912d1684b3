"""DOF that declares the probes of a program (``dwarf/dof.py`` has the format)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dwarf.dof import (
    BY_PLACE,
    HEADER,
    IDENT,
    LP64,
    LSB,
    MAGIC,
    OFFSET,
    PRARGS,
    PRENOFFS,
    PROBE,
    PROBES,
    PROFFS,
    PROVIDER,
    PROVIDERS,
    RELOCATION,
    RELOCATION_HEADER,
    RELTAB,
    SECTION_HEADER,
    STRTAB,
    URELHDR,
    VERSION_2,
    DofProvider,
)

DIF = bytes((2, 8, 8))  # version of DTrace's instruction set, and its numbers of registers
LOADED = 1  # flag of a section that the kernel reads


@dataclass
class Dof:
    """Finished DOF.

    :param fields: offset of each field with the address of a probe's function, and the symbol that
        belongs there.
    """

    content: bytes
    fields: list[tuple[int, str]] = field(default_factory=list)


class _Strings:
    """A table of strings, in which strings that belong together follow one another."""

    def __init__(self) -> None:
        self.content = bytearray(1)

    def add(self, *texts: str) -> int:
        at = len(self.content)
        for text in texts:
            self.content += text.encode("utf-8", "surrogateescape") + b"\0"
        return at


def write_dof(providers: Sequence[DofProvider], symbols: Sequence[Sequence[str]]) -> Dof:
    """Return the DOF that declares providers; the addresses of their functions are left out.

    :param symbols: for each provider, the symbol of each probe's function.
    """
    strings = _Strings()
    # (type, alignment, size of an entry, content); the first section has the strings
    sections: list[tuple[int, int, int, bytes]] = [(STRTAB, 1, 0, b"")]
    wanted: list[tuple[int, int, str]] = []  # (section, offset in it, symbol)

    def add(kind: int, alignment: int, entry: int, content: bytes) -> int:
        sections.append((kind, alignment, entry, content))
        return len(sections) - 1

    for provider, names in zip(providers, symbols, strict=True):
        probes, arguments, offsets, enabled, relocations = (bytearray() for _ in range(5))
        places = []
        for probe, name in zip(provider.probes, names, strict=True):
            places.append((len(probes), name))
            relocations += RELOCATION.pack(strings.add(name), BY_PLACE, len(probes), 0)
            probes += PROBE.pack(
                0, strings.add(probe.function), strings.add(probe.name),
                strings.add(*probe.native), strings.add(*probe.translated), len(arguments),
                len(offsets) // OFFSET.size, len(probe.native), len(probe.translated),
                len(probe.offsets), len(enabled) // OFFSET.size, len(probe.enabled), 0, 0)
            arguments += bytes(probe.mapping)
            offsets += b"".join(map(OFFSET.pack, probe.offsets))
            enabled += b"".join(map(OFFSET.pack, probe.enabled))
        of_probes = add(PROBES, 8, PROBE.size, bytes(probes))
        wanted += [(of_probes, at, name) for at, name in places]
        numbers = [add(PRARGS, 1, 1, bytes(arguments)), add(PROFFS, 4, 4, bytes(offsets)),
                   add(PRENOFFS, 4, 4, bytes(enabled)) if enabled else 0]
        add(PROVIDERS, 4, 0, PROVIDER.pack(
            0, of_probes, *numbers[:2], strings.add(provider.name),
            *(name << 24 | data << 16 | depends << 8 for name, data, depends in
              provider.attributes), numbers[2]))
        add(URELHDR, 4, 0, RELOCATION_HEADER.pack(
            0, add(RELTAB, 8, RELOCATION.size, bytes(relocations)), of_probes))
    sections[0] = (STRTAB, 1, 0, bytes(strings.content))
    return _laid_out(sections, wanted)


def _laid_out(sections: Sequence[tuple[int, int, int, bytes]],
              wanted: Sequence[tuple[int, int, str]]) -> Dof:
    at = HEADER.size + len(sections) * SECTION_HEADER.size
    headers, contents, starts = bytearray(), bytearray(), []
    first = at
    # The strings come last, as DTrace has them.
    for index in [*range(1, len(sections)), 0]:
        _kind, alignment, _entry, content = sections[index]
        contents += bytes(-(first + len(contents)) % alignment)
        starts.append((index, first + len(contents)))
        contents += content
    offsets = dict(starts)
    for index, (kind, alignment, entry, content) in enumerate(sections):
        headers += SECTION_HEADER.pack(kind, alignment, LOADED, entry, offsets[index],
                                       len(content))
    size = first + len(contents)
    ident = (MAGIC + bytes((LP64, LSB, VERSION_2)) + DIF).ljust(IDENT, b"\0")
    head = HEADER.pack(ident, 0, HEADER.size, SECTION_HEADER.size, len(sections), HEADER.size, size,
                       size, 0)
    return Dof(head + bytes(headers) + bytes(contents),
               [(offsets[section] + at, name) for section, at, name in wanted])
