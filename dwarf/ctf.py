"""C types from CTF, versions 2 and 3: the ``.SUNW_ctf`` section of FreeBSD kernels (ctf(5)).

The section has a header and, usually compressed, five parts: labels, the type of each data object
and of each function in the order of the symbol table, types, and strings.
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

from dwarf import types as c
from dwarf.debug_file import DebugDataError, ctf_sections
from dwarf.index import MAX_NAME, shown
from emu.elf.reader import ElfFile
from emu.elf.symbols import STT_FUNC, STT_OBJECT, SYMBOL

Found = TypeVar("Found")

MAGIC, COMPRESSED = 0xCFF1, 1
# Magic, version, flags, parent label and name, offsets of the five parts, length of the last part
HEADER = struct.Struct("<HBB8I")
LIMIT = 1 << 28  # maximum size of the decompressed section in bytes
EXPANSION = 100  # maximum decompression ratio; a kernel's section has a ratio of 4
MAX_TYPES = 1 << 20
SHN_UNDEF, SHN_ABS = 0, 0xFFF1
UNTYPED = ("_START_", "_END_")  # symbols without an entry in the CTF section

INTEGER, FLOAT, POINTER, ARRAY, FUNCTION, STRUCT, UNION, ENUM, FORWARD, TYPEDEF = range(1, 11)
QUALIFIERS = {11: "volatile", 12: "const", 13: "restrict"}
PREFIXES = {INTEGER: "", FLOAT: "", TYPEDEF: "", STRUCT: "struct ", UNION: "union ", ENUM: "enum "}
SIGNED, CHAR, BOOLEAN = 1, 2, 4  # flags in an integer's encoding


@dataclass(frozen=True)
class CtfLayout:
    """Binary layout of a CTF version.

    :param identifier: struct format of a type identifier, and of a word with kind and count.
    :param record: format of a type record: name, kind and count, size or type.
    :param large: value of the size field if a 64-bit size follows in two words.
    :param threshold: size in bytes from which a structure's members have long offsets.
    """

    identifier: str
    record: struct.Struct
    kind_shift: int
    count_mask: int
    large: int
    threshold: int
    array: struct.Struct
    member: struct.Struct  # name, type, offset
    long_member: struct.Struct  # name, type, high half and low half of the offset
    parent: int  # lowest identifier of a file's own types if the file has a parent


LAYOUTS = {
    2: CtfLayout("H", struct.Struct("<IHH"), 11, 0x3FF, 0xFFFF, 1 << 13, struct.Struct("<HHI"),
              struct.Struct("<IHH"), struct.Struct("<IHxxII"), 1 << 15),
    3: CtfLayout("I", struct.Struct("<III"), 26, 0xFFFFFF, 0xFFFFFFFF, 1 << 29,
              struct.Struct("<III"), struct.Struct("<III"), struct.Struct("<IIII"), 1 << 31),
}


@dataclass(frozen=True)
class TypeRecord:
    """A type record as stored in the section.

    :param value: size in bytes, or identifier of the type to which the record refers.
    :param at: offset of the data that follows the record.
    """

    name: int
    kind: int
    count: int
    value: int
    at: int


class CtfTypes(c.Types):
    """C types of a kernel's CTF section.

    :param data: contents of the section.
    :param entries: the symbol table that the section refers to.
    :param strings: the symbol table's string table.
    :raises DebugDataError: here and from every method, if the section is damaged.
    """

    def __init__(self, data: bytes, entries: bytes, strings: bytes, where: Path) -> None:
        self._where = where
        self._entries, self._strings = entries, strings
        if len(data) < HEADER.size:
            raise self._damage("truncated header")
        (magic, self.version, flags, _label, parent, _labels, objects, functions, types, text,
         length) = HEADER.unpack_from(data)
        if magic != MAGIC:
            raise self._damage("wrong magic number")
        if self.version not in LAYOUTS:
            raise DebugDataError(
                f"{where}: CTF version {self.version} is not supported (supported: 2 and 3)")
        self._layout = LAYOUTS[self.version]
        content = data[HEADER.size :]
        if text + length > min(LIMIT, EXPANSION * len(data)):
            raise self._damage(f"the section of {len(data)} bytes expands to {text + length} "
                               f"bytes; the limit is {min(LIMIT, EXPANSION * len(data))}")
        if flags & COMPRESSED:
            unpack = zlib.decompressobj()
            try:
                content = unpack.decompress(content, text + length + 1)
            except zlib.error as error:
                raise self._damage(str(error)) from None
        if not objects <= functions <= types <= text <= text + length <= len(content):
            raise self._damage("parts of the section are out of order or truncated")
        self._objects, self._functions = content[objects:functions], content[functions:types]
        self._types, self._text = content[types:text], content[text : text + length]
        if parent and self._name(parent):
            raise DebugDataError(
                f"{where}: this file's types extend those of '{self._name(parent)}'; "
                "specify that kernel instead")
        self._known: dict[int, c.Type] = {}

    @property
    def format(self) -> str:
        """User-visible name of the format, such as "CTF version 3"."""
        return f"CTF version {self.version}"

    # -- lookup ---------------------------------------------------------------------------------

    def named(self, name: str) -> list[c.Type]:
        """Return the types with a given C name, in any spelling ("long" or "long int")."""
        if name.strip() == "void":
            return [c.Void()]
        for spelling in c.spellings(name):
            if numbers := self._by_name.get(spelling):
                return [self._read(number) for number in numbers]
        return []

    def function(self, name: str, address: int | None = None) -> c.Procedure | None:
        """Return a function's type, or None; ``address`` selects among functions of this name."""
        entry = self._choose(self._procedures, name, address)
        if entry is None:
            return None
        count, at = entry
        result, *parameters = struct.unpack_from(f"<{count + 1}{self._layout.identifier}",
                                                 self._functions, at)
        return self._procedure(result, parameters)

    def variable(self, name: str, address: int | None = None) -> c.Type | None:
        """Return a variable's type, or None; ``address`` selects among variables of this name."""
        identifier = self._choose(self._variables, name, address)
        return None if not identifier else self._read(identifier)

    def names(self) -> Iterator[str]:
        """Yield the C names of all types in sorted order."""
        yield from sorted(self._by_name)

    # -- symbols --------------------------------------------------------------------------------

    @staticmethod
    def _choose(
        table: dict[str, list[tuple[int, Found]]], name: str, address: int | None
    ) -> Found | None:
        candidates = table.get(name, [])
        for at, value in candidates:
            if at == address:
                return value
        return candidates[0][1] if candidates else None

    def _symbols(self, kind: int) -> Iterator[tuple[str, int]]:
        """Yield (name, address) for each symbol of a given type with an entry in the section."""
        size = len(self._entries) - len(self._entries) % SYMBOL.size
        for name, info, _other, section, value, _size in SYMBOL.iter_unpack(self._entries[:size]):
            if info & 15 != kind or name == 0 or section == SHN_UNDEF:
                continue
            if kind == STT_OBJECT and section == SHN_ABS and value == 0:
                continue
            end = self._strings.find(b"\0", name, name + MAX_NAME)
            text = shown(self._strings[name : max(end, name)])
            if text not in UNTYPED:
                yield text, value

    @cached_property
    def _variables(self) -> dict[str, list[tuple[int, int]]]:
        """Map from variable name to a list of (address, type identifier)."""
        width = struct.calcsize(self._layout.identifier)
        size = len(self._objects) - len(self._objects) % width
        numbers = struct.unpack(f"<{size // width}{self._layout.identifier}", self._objects[:size])
        variables: dict[str, list[tuple[int, int]]] = {}
        for (name, address), identifier in zip(self._symbols(STT_OBJECT), numbers, strict=False):
            if identifier:
                variables.setdefault(name, []).append((address, identifier))
        return variables

    @cached_property
    def _procedures(self) -> dict[str, list[tuple[int, tuple[int, int]]]]:
        """Map from function name to a list of (address, (parameter count, offset of types))."""
        procedures: dict[str, list[tuple[int, tuple[int, int]]]] = {}
        layout, at = self._layout, 0
        width = struct.calcsize(layout.identifier)
        for name, address in self._symbols(STT_FUNC):
            if at + width > len(self._functions):
                break
            (word,) = struct.unpack_from(f"<{layout.identifier}", self._functions, at)
            at += width
            kind, count = word >> layout.kind_shift, word & layout.count_mask
            if kind == 0 and count == 0:
                continue
            if kind != FUNCTION or at + (count + 1) * width > len(self._functions):
                raise self._damage(f"the type of function {name} is not a function type")
            procedures.setdefault(name, []).append((address, (count, at)))
            at += (count + 1) * width
        return procedures

    # -- types ----------------------------------------------------------------------------------

    def _damage(self, what: str) -> DebugDataError:
        return DebugDataError(f"{self._where}: damaged .SUNW_ctf: {what}")

    def _name(self, offset: int) -> str:
        """Return the string at an offset; bit 31 selects the strings of the symbol table."""
        strings = self._strings if offset >> 31 else self._text
        offset &= 0x7FFFFFFF
        end = strings.find(b"\0", offset, offset + MAX_NAME)
        if offset > len(strings) or end < 0:
            raise self._damage(f"the string at {offset:#x} is missing or too long")
        return shown(strings[offset:end])

    @cached_property
    def _records(self) -> list[TypeRecord]:
        """Type records in order of their identifiers, starting with 1."""
        layout, at = self._layout, 0
        records: list[TypeRecord] = []
        while at < len(self._types):
            if at + layout.record.size > len(self._types):
                raise self._damage(f"type {len(records) + 1} is truncated")
            if len(records) == MAX_TYPES:
                raise self._damage(f"the section has more than {MAX_TYPES} types")
            name, word, value = layout.record.unpack_from(self._types, at)
            kind, count = word >> layout.kind_shift & 0x3F, word & layout.count_mask
            at += layout.record.size
            if value == layout.large and kind in (INTEGER, FLOAT, STRUCT, UNION, ENUM):
                if at + 8 > len(self._types):
                    raise self._damage(f"type {len(records) + 1} is truncated")
                high, low = struct.unpack_from("<II", self._types, at)
                value, at = high << 32 | low, at + 8
            records.append(TypeRecord(name, kind, count, value, at))
            at += self._following(records[-1])
            if at > len(self._types):
                raise self._damage(f"type {len(records)} is truncated")
        return records

    def _following(self, record: TypeRecord) -> int:
        """Return the size in bytes of the data that follows a type record."""
        layout = self._layout
        match record.kind:
            case 1 | 2:  # these types are followed by an encoding word
                return 4
            case 4:
                return layout.array.size
            case 5:
                return struct.calcsize(layout.identifier) * record.count + 3 & ~3
            case 6 | 7:
                return self._member_layout(record).size * record.count
            case 8:
                return 8 * record.count
        return 0

    def _member_layout(self, record: TypeRecord) -> struct.Struct:
        large = record.value >= self._layout.threshold
        return self._layout.long_member if large else self._layout.member

    @cached_property
    def _by_name(self) -> dict[str, list[int]]:
        numbers: dict[str, list[int]] = {}
        for number, record in enumerate(self._records, 1):
            prefix = PREFIXES.get(record.kind)
            if prefix is not None and record.name:
                numbers.setdefault(prefix + self._name(record.name), []).append(number)
        return numbers

    def _link(self, number: int) -> Callable[[], c.Type]:
        return partial(self._read, number)

    def _read(self, number: int) -> c.Type:
        if number == 0:
            return c.Void()
        if not number <= len(self._records):
            raise self._damage(f"reference to undefined type {number}")
        known = self._known.get(number)
        if known is None:
            known = self._known[number] = self._type(self._records[number - 1])
        return known

    def _type(self, record: TypeRecord) -> c.Type:
        name, link = self._name(record.name), self._link(record.value)
        if record.kind in QUALIFIERS:
            return c.Qualified(QUALIFIERS[record.kind], link)
        match record.kind:
            case 1:
                return self._integer(record, name)
            case 2:
                return c.Float(name, record.value)
            case 3:
                return c.Pointer(link)
            case 4:
                element, _index, count = self._layout.array.unpack_from(self._types, record.at)
                return c.Array(count, self._link(element))
            case 5:
                return self._procedure(record.value, struct.unpack_from(
                    f"<{record.count}{self._layout.identifier}", self._types, record.at))
            case 6 | 7:
                return c.Structure(PREFIXES[record.kind].strip(), name, record.value,
                                 partial(self._members, record))
            case 8:
                return c.Enumeration(name, record.value, partial(self._values, record))
            case 9:
                return self._definition(PREFIXES.get(record.value, "struct ").strip(), name)
            case 10:
                return c.Typedef(name, link)
        raise self._damage(f"unknown type kind {record.kind}")

    def _definition(self, kind: str, name: str) -> c.Type:
        """Return the definition of a declared type if exactly one exists, else the declaration."""
        found = self._by_name.get(f"{kind} {name}", []) if name else []
        return self._read(found[0]) if len(found) == 1 else c.Incomplete(kind, name)

    def _encoding(self, record: TypeRecord) -> int:
        return int(struct.unpack_from("<I", self._types, record.at)[0])

    def _integer(self, record: TypeRecord, name: str) -> c.Type:
        encoding = self._encoding(record)
        if encoding & 0xFFFF == 0:
            return c.Void()  # CTF tools write void as an integer of 0 bits
        flags = encoding >> 24
        kind = "boolean" if flags & BOOLEAN else "char" if flags & CHAR else "integer"
        return c.Integer(name, record.value, bool(flags & SIGNED) and kind != "boolean", kind)

    def _procedure(self, result: int, given: tuple[int, ...] | list[int]) -> c.Procedure:
        """Return a function type; a last parameter of type 0 denotes ``...``."""
        variadic = len(given) > 0 and given[-1] == 0
        named = given[:-1] if variadic else given
        return c.Procedure(tuple(c.Parameter("", self._link(n)) for n in named), variadic,
                         self._link(result))

    def _members(self, record: TypeRecord) -> tuple[c.Member, ...]:
        layout, members = self._member_layout(record), []
        for number in range(record.count):
            name, kind, *offsets = layout.unpack_from(
                self._types, record.at + number * layout.size)
            offset = offsets[0] if len(offsets) == 1 else offsets[0] << 32 | offsets[1]
            members.append(c.Member(self._name(name), offset, self._width(kind), self._link(kind)))
        return tuple(members)

    def _width(self, number: int) -> int | None:
        """Return a bit-field's width in bits from its integer type, or None for other types."""
        if not 0 < number <= len(self._records):
            return None
        record = self._records[number - 1]
        bits = self._encoding(record) & 0xFFFF if record.kind == INTEGER else 0
        return bits if bits and bits != 8 * record.value else None

    def _values(self, record: TypeRecord) -> tuple[tuple[str, int], ...]:
        words = struct.iter_unpack("<Ii", self._types[record.at : record.at + 8 * record.count])
        return tuple((self._name(name), value) for name, value in words)


def ctf_types(kernel: ElfFile) -> CtfTypes | None:
    """Return the C types from the CTF section of a kernel or its debug file, or None.

    :raises DebugDataError: if the section is damaged.
    """
    found = ctf_sections(kernel)
    return None if found is None else CtfTypes(*found, kernel.path)
