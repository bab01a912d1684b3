"""Probes that a program declares for DTrace (USDT), from the DOF in its file.

DOF (DTrace object format) is a header, a table of sections and their contents.  A section
``.SUNW_dof`` of a program holds one for each object file that ``dtrace -G`` made.  Only what
describes probes is read here; ``dtrace/usdt`` writes it.
"""

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from emu.host.errors import ImageError

SECTION = ".SUNW_dof"
MAGIC, IDENT, ALIGNMENT = b"\x7fDOF", 16, 8
LP64, LSB, VERSION_1, VERSION_2 = 2, 1, 1, 2
HEADER = struct.Struct("<16sIIIIQQQQ")  # identification, flags, then sizes (see ``_Dof``)
SECTION_HEADER = struct.Struct("<IIIIQQ")  # type, alignment, flags, size of an entry, offset, size
PROVIDER = struct.Struct("<11I")  # sections, name, five attributes, section of is-enabled offsets
PROBE = struct.Struct("<QIIIIIIBBHIHHI")
RELOCATION_HEADER = struct.Struct("<III")  # sections of names, of relocations, and of the target
RELOCATION = struct.Struct("<IIQQ")  # name, kind, offset in the target, data
STRTAB, RELTAB, URELHDR, PROVIDERS, PROBES, PRARGS, PROFFS, PRENOFFS = (
    8, 10, 12, 15, 16, 17, 18, 26)  # types of sections
BY_BASE, BY_PLACE = 1, 2  # kinds of relocations: add the load address, or the field's own address
OFFSET = struct.Struct("<I")
NO_SECTION = (0, 0xFFFFFFFF)  # values that stand for a missing section of is-enabled offsets
MOST_SECTIONS = 65_536
MOST_PROBES = 100_000
MOST_TYPES = 1_000_000  # maximum number of types of arguments in a file
MOST_OFFSETS = 1_000_000  # maximum number of instructions in a file with probes
MOST_TEXT = 16 << 20  # maximum length of the names and types in a file
LONGEST_TYPE, LONGEST_NAME = 1024, 4096
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
HIGHEST = (7, 7, 5)  # highest stability of a name and of data, and highest class


class DofError(ImageError):
    """Error in the DOF of a program."""


@dataclass(frozen=True)
class DofProbe:
    """A probe of one function.

    :param address: address of the function, before the file is moved.
    :param native: C types of the arguments that the program passes.
    :param translated: C types of the arguments that D programs see.
    :param mapping: for each of the latter, the index of the argument that it comes from.
    :param offsets: offsets in the function at which the probe fires.
    :param enabled: offsets at which the program asks whether the probe is enabled.
    """

    function: str
    name: str
    address: int
    native: tuple[str, ...]
    translated: tuple[str, ...]
    mapping: tuple[int, ...]
    offsets: tuple[int, ...]
    enabled: tuple[int, ...]


@dataclass(frozen=True)
class DofProvider:
    """A provider that a program declares.

    :param name: its name without a process ID.
    :param attributes: stability of the provider, module, function, name and arguments: three bytes
        each, for the name, the data and the class of dependency.
    :param left_out: why probes are missing from ``probes``.
    """

    name: str
    attributes: tuple[tuple[int, int, int], ...]
    probes: tuple[DofProbe, ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Part:
    kind: int
    entry: int
    offset: int
    size: int


def read_providers(content: bytes, address: int, narrow: bool = False) -> list[DofProvider]:
    """Return the providers that a section with DOF declares.

    :param address: address of the section, before the file is moved.
    :param narrow: whether relocations may have written only the lower half of addresses.
    :raises DofError: if the section is damaged.
    """
    found: list[DofProvider] = []
    at = 0
    left = [MOST_PROBES, MOST_TYPES, MOST_OFFSETS, MOST_TEXT]
    while at < len(content):
        if not content[at : at + ALIGNMENT].strip(b"\0"):
            at += ALIGNMENT
            continue
        dof = _Dof(content, at, address + at, narrow)
        found += dof.providers(left)
        at += -(-dof.size // ALIGNMENT) * ALIGNMENT
    return found


class _Dof:
    """One piece of DOF, which begins at an offset of a section."""

    def __init__(self, content: bytes, at: int, address: int, narrow: bool) -> None:
        if at + HEADER.size > len(content):
            raise DofError("its header is truncated")
        ident, _flags, header_size, entry, count, table, _loaded, size, _pad = HEADER.unpack_from(
            content, at)
        if not ident.startswith(MAGIC):
            raise DofError(f"it does not begin with {MAGIC!r}")
        if ident[4] != LP64 or ident[5] != LSB or ident[6] not in (VERSION_1, VERSION_2):
            raise DofError(f"data model {ident[4]}, encoding {ident[5]} or version {ident[6]} is "
                           "not supported")
        if header_size != HEADER.size or entry != SECTION_HEADER.size or count > MOST_SECTIONS:
            raise DofError("its header has other sizes than those of version 1 and 2")
        if not HEADER.size <= size <= len(content) - at or table % ALIGNMENT or (
                table + count * entry > size):
            raise DofError("it is truncated")
        self.size, self._address, self._version = size, address, ident[6]
        self._narrow = narrow
        self._content = content[at : at + size]
        self._parts: list[_Part] = []
        for index in range(count):
            kind, _align, _flags, width, offset, length = SECTION_HEADER.unpack_from(
                self._content, table + index * entry)
            if offset + length > size:
                raise DofError(f"its section {index} is truncated")
            self._parts.append(_Part(kind, width, offset, length))
        self._relocations = dict(self._relocated())

    def providers(self, left: list[int]) -> Iterator[DofProvider]:
        """Yield the providers.

        :param left: how many more probes, types of arguments, offsets and bytes of text may be
            read; all are lowered.
        """
        for part in self._parts:
            if part.kind != PROVIDERS:
                continue
            if part.size < PROVIDER.size:
                raise DofError("a provider is truncated")
            strings, probes, arguments, offsets, name, *attributes, enabled = PROVIDER.unpack_from(
                self._content, part.offset)
            table = self._part(strings, STRTAB)
            listed = self._part(probes, PROBES)
            if listed.entry != PROBE.size or listed.size % PROBE.size:
                raise DofError("its probes have an unknown size")
            numbers = [self._part(arguments, PRARGS), self._part(offsets, PROFFS)]
            if self._version != VERSION_1 and enabled not in NO_SECTION:
                numbers.append(self._part(enabled, PRENOFFS))
            provider = self._string(table, name, LONGEST_NAME)
            if not NAME.fullmatch(provider):
                raise DofError(f"'{provider}' is not the name of a provider")
            promised = tuple((one >> 24, one >> 16 & 0xFF, one >> 8 & 0xFF) for one in attributes)
            if any(value > most for one in promised
                   for value, most in zip(one, HIGHEST, strict=True)):
                raise DofError(f"{promised} are not stability attributes")
            made, left_out = list[DofProbe](), list[str]()
            for at in range(listed.offset, listed.offset + listed.size, PROBE.size):
                probe = self._probe(at, table, numbers, left)
                bad = [text for text in (probe.function, probe.name, *probe.native,
                                         *probe.translated)
                       if not text.isprintable() or not text]
                if bad or ":" in probe.function + probe.name:
                    left_out.append(f"a probe of {provider} has a name or type that is not "
                                    f"printable: {(bad or [probe.function])[0][:80]!a}")
                else:
                    made.append(probe)
            yield DofProvider(provider, promised, tuple(made), tuple(left_out))

    def _probe(self, at: int, table: _Part, numbers: Sequence[_Part], left: list[int]
               ) -> DofProbe:
        (address, function, name, native, translated, first, offset, passed, seen, count, enabled,
         asked, _pad, _pad2) = PROBE.unpack_from(self._content, at)
        for index, used in enumerate((1, passed + seen, count + asked)):
            left[index] -= used
        if min(left) < 0:
            raise DofError("it declares too many probes or arguments")
        text = self._string(table, function, LONGEST_NAME), self._string(table, name, LONGEST_NAME)
        types = self._strings(table, native, passed), self._strings(table, translated, seen)
        left[3] -= sum(map(len, (*text, *types[0], *types[1])))
        if left[3] < 0:
            raise DofError("its names and types are too long")
        mapping = self._bytes(numbers[0], first, seen)
        if any(one >= passed for one in mapping):
            raise DofError(f"an argument of {text[1]} comes from one that the program does not "
                           "pass")
        return DofProbe(
            *text, self._relocate(address, at), *types, tuple(mapping),
            self._offsets(numbers[1], offset, count),
            self._offsets(numbers[2], enabled, asked) if len(numbers) > 2 else ())

    def _relocate(self, stored: int, at: int) -> int:
        kind = self._relocations.get(at)
        if kind != BY_PLACE:
            return stored
        if self._narrow and stored >> 31 == 1:
            stored -= 1 << 32
        return stored + self._address + at & (1 << 64) - 1

    def _relocated(self) -> Iterator[tuple[int, int]]:
        """Yield the offset and the kind of each relocation."""
        left = len(self._content) // RELOCATION.size
        for part in self._parts:
            if part.kind != URELHDR or part.size < RELOCATION_HEADER.size:
                continue
            _names, table, target = RELOCATION_HEADER.unpack_from(self._content, part.offset)
            listed, where = self._part(table, RELTAB), self._part(target, None)
            if listed.entry != RELOCATION.size:
                raise DofError("its relocations have an unknown size")
            left -= listed.size // RELOCATION.size
            if left < 0:
                raise DofError("it has more relocations than it can hold")
            for at in range(listed.offset, listed.offset + listed.size - RELOCATION.size + 1,
                            RELOCATION.size):
                _name, kind, offset, _data = RELOCATION.unpack_from(self._content, at)
                if kind in (BY_BASE, BY_PLACE):
                    if offset + 8 > where.size:
                        raise DofError("a relocation is outside its section")
                    yield where.offset + offset, kind

    def _part(self, index: int, kind: int | None) -> _Part:
        if index >= len(self._parts) or kind not in (None, self._parts[index].kind):
            raise DofError(f"section {index} is missing, or of another type")
        return self._parts[index]

    def _string(self, table: _Part, index: int, longest: int) -> str:
        begin, end = table.offset + index, table.offset + table.size
        stop = self._content.find(b"\0", begin, min(end, begin + longest + 1))
        if index >= table.size or stop < 0:
            raise DofError("a string is too long, or outside its section")
        return self._content[begin:stop].decode("utf-8", "backslashreplace")

    def _strings(self, table: _Part, index: int, count: int) -> tuple[str, ...]:
        found = []
        for _ in range(count):
            found.append(self._string(table, index, LONGEST_TYPE))
            index = self._content.index(b"\0", table.offset + index) + 1 - table.offset
        return tuple(found)

    def _bytes(self, part: _Part, first: int, count: int) -> bytes:
        if first + count > part.size:
            raise DofError("the arguments of a probe are outside their section")
        return self._content[part.offset + first : part.offset + first + count]

    def _offsets(self, part: _Part, first: int, count: int) -> tuple[int, ...]:
        content = self._bytes(part, first * OFFSET.size, count * OFFSET.size)
        return tuple(value for value, in OFFSET.iter_unpack(content))
