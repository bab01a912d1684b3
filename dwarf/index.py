"""Index of all functions, inline copies, types and variables of a kernel, cached in a file.

The file is laid out for memory mapping: a header, the tables of the native scan
(``dwarf/_scan.pyx``), the sorted names, and the records that belong to each name.
"""

import array
import bisect
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dwarf._scan import (
    DECLARED_FORMAT,
    PIECE_FORMAT,
    RECORD_FORMAT,
    RECORD_SIZE,
    UNIT_FORMAT,
    Scan,
    ScanError,
    SplitError,
)
from dwarf.debug_file import DebugDataError, debug_file, sections
from emu.elf.reader import ElfFile
from emu.host.atomic_file import replacing
from emu.host.printable import name as printable_name

MAGIC, FORMAT = b"KINSTDWF", 5
HEADER = struct.Struct("<8sIIQQQQQQQ")  # magic, format, CRC-32 of the rest, sizes of the 7 tables
MAX_NAME = 4096  # maximum size of a name in bytes; longer names are truncated
MAX_NAMES = 1 << 28  # maximum total size of all distinct names in bytes
RECORD, PIECE = struct.Struct(RECORD_FORMAT), struct.Struct(PIECE_FORMAT)
NAME_AT, SUBJECT_AT = 16, 60  # offsets of the name and the subject in a record
NAME = struct.Struct("<III")  # name (offset), first member, number of members
DECLARED = struct.Struct("<IIQQII")  # name (offset), unit, entry, value, line, tag
UNIT = struct.Struct("<QQ")  # offsets of the unit header and of the line number program
NAMES = (".debug_info", ".debug_abbrev", ".debug_ranges", ".debug_rnglists", ".debug_addr",
         ".debug_str_offsets", ".debug_str", ".debug_line_str")
MANY = 1000  # number of searches after which all names are kept in a table
MAX_INLINED = 4096  # maximum number of functions whose inline copies are kept
NONE32 = 0xFFFFFFFF
NONE64 = (1 << 64) - 1
INLINED, SUBPROGRAM, VARIABLE = 0x1D, 0x2E, 0x34


@dataclass(frozen=True)
class Function:
    """A function, or an inline copy of one (a concrete inlined instance in DWARF).

    :param number: index of its record, in .debug_info order.
    :param pieces: address ranges [low, high) of its code, in the order of the debug data.
    :param parent: record that contains the function, or None at the top level.
    :param inlined: whether it is an inline copy in another function.
    :param call_line: line of an inline copy's call; 0 if unknown.
    :param begins: address at which control enters the code (DW_AT_entry_pc), or None if unknown.
    """

    number: int
    name: str
    pieces: tuple[tuple[int, int], ...]
    parent: int | None
    inlined: bool
    call_file: int
    call_line: int
    call_column: int
    unit: int
    begins: int | None = None


@dataclass(frozen=True)
class Declared:
    """A type or a variable, as recorded in the index.

    :param tag: DW_TAG of its entry.
    :param entry: offset of its entry in .debug_info.
    :param unit: offset of its unit in .debug_info.
    :param value: size of a type in bytes (0 if unknown), or address of a variable.
    :param line: line of the declaration.
    """

    name: str
    tag: int
    entry: int
    unit: int
    value: int
    line: int


def shown(name: bytes) -> str:
    """Return a name in printable form."""
    return printable_name(name)


class DebugIndex:
    """Index of the functions, types and variables of a kernel or a module.

    :raises DebugDataError: if the data is not a valid index.
    """

    def __init__(self, data: bytes, where: Path) -> None:
        self._data = memoryview(data)
        try:
            magic, version, checksum, *lengths = HEADER.unpack_from(self._data)
        except struct.error:
            raise DebugDataError(f"{where}: not a debug data index") from None
        if magic != MAGIC or version != FORMAT or HEADER.size + sum(lengths) != len(self._data):
            raise DebugDataError(f"{where}: not a debug data index of this version")
        if zlib.crc32(self._data[HEADER.size :]) != checksum:
            raise DebugDataError(f"{where}: damaged debug data index")
        tables, at = [], HEADER.size
        for length in lengths:
            tables.append(self._data[at : at + length])
            at += length
        (self._records, self._pieces, self._names, self._members, self._units, self._declared,
         self._text) = tables
        self.count = len(self._records) // RECORD_SIZE
        self._by_address: dict[int, int] | None = None
        self._searches = 0  # number of names that were searched for
        self._rows: dict[bytes, int] = {}  # name -> its row, once many names were searched for
        self._tops: list[tuple[int, int, int]] | None = None
        self._inlined: dict[int, list[tuple[int, int, tuple[tuple[int, int], ...]]]] = {}

    # -- lookup -------------------------------------------------------------------------------

    def _text_at(self, offset: int) -> bytes:
        return bytes(self._text[offset : offset + MAX_NAME]).split(b"\0", 1)[0]

    def _find(self, table: memoryview, size: int, name: str) -> int:
        """Return the index of the first row with a given name, or where to insert the name.

        Rows begin with the offset of their name, and are sorted by name.
        """
        wanted = name.encode("utf-8", "surrogateescape")[: MAX_NAME - 1]
        low, high = 0, len(table) // size
        while low < high:
            middle = (low + high) // 2
            if self._text_at(*struct.unpack_from("<I", table, middle * size)) < wanted:
                low = middle + 1
            else:
                high = middle
        return low

    def _name_of_row(self, table: memoryview, size: int, row: int) -> str:
        if row >= len(table) // size:
            return ""
        return shown(self._text_at(*struct.unpack_from("<I", table, row * size)))

    def names(self) -> Iterator[str]:
        """Yield the names of all functions in sorted order."""
        for row in range(len(self._names) // NAME.size):
            yield self._name_of_row(self._names, NAME.size, row)

    def named(self, name: str) -> list[Function]:
        """Return the functions with a given name, including abstract ones and inline copies."""
        row = self._row(name)
        if row is None or self._name_of_row(self._names, NAME.size, row) != name:
            return []
        _offset, first, count = NAME.unpack_from(self._names, row * NAME.size)
        members = self._members[4 * first : 4 * (first + count)].cast("I")
        return [self._function(number, name) for number in members]

    def _row(self, name: str) -> int | None:
        """Return the row of a name in the table of names, or None or another row."""
        self._searches += 1
        if self._searches < MANY:
            return self._find(self._names, NAME.size, name)
        if not self._rows:
            self._rows = {self._text_at(offset): row for row, (offset, _first, _count)
                          in enumerate(NAME.iter_unpack(self._names))}
        return self._rows.get(name.encode("utf-8", "surrogateescape")[: MAX_NAME - 1])

    def copies(self, name: str) -> list[Function]:
        """Return the inline copies of a function that have code."""
        return [f for f in self.named(name) if f.inlined and f.pieces]

    def called_at(self, line: int) -> Iterator[Function]:
        """Yield the inline copies with a call site at a given line number, in any source file."""
        for number, row in enumerate(RECORD.iter_unpack(self._records)):
            if row[8] == line and row[13] == INLINED:
                yield self.function(number)

    def function(self, number: int) -> Function:
        """Return the function of a record."""
        return self._function(number, self.name_of(number))

    def name_of(self, number: int) -> str:
        """Return the name of a record, or an empty string."""
        subject = RECORD.unpack_from(self._records, number * RECORD_SIZE)[12]
        if subject == NONE32:
            return ""
        offset = RECORD.unpack_from(self._records, subject * RECORD_SIZE)[2]
        return shown(self._text_at(offset))

    def _function(self, number: int, name: str) -> Function:
        (_offset, _origin, _name, parent, unit, first, count, call_file, call_line, call_column,
         _decl_file, _decl_line, _subject, tag, _inlined, _declaration,
         begins) = RECORD.unpack_from(self._records, number * RECORD_SIZE)
        pieces = tuple(PIECE.iter_unpack(self._pieces[16 * first : 16 * (first + count)]))
        return Function(
            number, name, pieces, None if parent == NONE32 else parent, tag == INLINED, call_file,
            call_line, call_column, unit, None if begins == NONE64 else begins,
        )

    def line_table(self, unit: int) -> int:
        """Return the offset of a unit's line number program in .debug_line."""
        return int(UNIT.unpack_from(self._units, UNIT.size * unit)[1])

    def subject(self, number: int) -> tuple[int, int] | None:
        """Return the entry that describes a function, as (offset, offset of its unit), or None.

        Both offsets are in .debug_info; an inline copy is described by its abstract function.
        """
        subject = RECORD.unpack_from(self._records, number * RECORD_SIZE)[12]
        if subject == NONE32:
            return None
        return self.entry(subject)

    def entry(self, number: int) -> tuple[int, int]:
        """Return a record's own entry, as (offset, offset of its unit) in .debug_info."""
        record = RECORD.unpack_from(self._records, number * RECORD_SIZE)
        return int(record[0]), self.unit_offset(record[4])

    def unit_offset(self, unit: int) -> int:
        """Return the offset of a unit's header in .debug_info."""
        return int(UNIT.unpack_from(self._units, UNIT.size * unit)[0])

    def unit_holding(self, offset: int) -> int:
        """Return the offset of the header of the unit that contains an entry.

        :raises ValueError: if the entry is before all units.
        """
        low, high = 0, len(self._units) // UNIT.size
        while low < high:
            middle = (low + high) // 2
            if self.unit_offset(middle) <= offset:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            raise ValueError(f"no unit contains the entry at {offset:#x}")
        return self.unit_offset(low - 1)

    def _declaration(self, row: int) -> Declared:
        name, unit, entry, value, line, tag = DECLARED.unpack_from(
            self._declared, row * DECLARED.size)
        return Declared(shown(self._text_at(name)), tag, entry, self.unit_offset(unit), value,
                        line)

    def declared(self, name: str) -> list[Declared]:
        """Return the types and variables with a given name, in .debug_info order.

        Types with the same name but different sizes, lines or members are all included.
        """
        declarations = []
        row = self._find(self._declared, DECLARED.size, name)
        while name and self._name_of_row(self._declared, DECLARED.size, row) == name:
            declarations.append(self._declaration(row))
            row += 1
        return declarations

    def variable_at(self, address: int) -> Declared | None:
        """Return the variable that begins at an address, or None."""
        if self._by_address is None:
            self._by_address = {
                value: row for row, (_name, _unit, _entry, value, _line, tag) in enumerate(
                    DECLARED.iter_unpack(self._declared)) if tag == VARIABLE}
        row = self._by_address.get(address)
        return None if row is None else self._declaration(row)

    def declarations(self) -> Iterator[Declared]:
        """Yield all types and variables in order of their names."""
        return map(self._declaration, range(len(self._declared) // DECLARED.size))

    def stack(self, address: int) -> list[Function]:
        """Return the inline copies at an address, innermost first, followed by their function.

        The list is empty if no function contains the address.
        """
        if self._tops is None:
            self._tops = sorted(
                (low, high, number)
                for number, record in enumerate(RECORD.iter_unpack(self._records))
                if record[13] == SUBPROGRAM and record[6]
                for low, high in PIECE.iter_unpack(
                    self._pieces[16 * record[5] : 16 * (record[5] + record[6])])
            )
        at = bisect.bisect_right(self._tops, (address, 1 << 64, 0)) - 1
        if at < 0 or not self._tops[at][0] <= address < self._tops[at][1]:
            return []
        functions = [self.function(self._tops[at][2])]
        for number, parent, pieces in self._copies(functions[0].number):
            if parent == functions[0].number and any(low <= address < high
                                                     for low, high in pieces):
                functions.insert(0, self.function(number))
        return functions

    def _copies(self, function: int) -> list[tuple[int, int, tuple[tuple[int, int], ...]]]:
        """Return (number, parent, pieces) of each inline copy in a function, outer copies first."""
        found = self._inlined.get(function)
        if found is None:
            found, number = [], function + 1
            while number < self.count:
                record = RECORD.unpack_from(self._records, number * RECORD_SIZE)
                if record[3] == NONE32:
                    break
                if record[13] == INLINED and record[6]:
                    found.append((number, record[3], tuple(PIECE.iter_unpack(
                        self._pieces[16 * record[5] : 16 * (record[5] + record[6])]))))
                number += 1
            if len(self._inlined) >= MAX_INLINED:
                self._inlined.clear()
            self._inlined[function] = found
        return found

    def inside(self, low: int, high: int) -> list[Function]:
        """Return the inline copies with code in [low, high), outer copies first."""
        copies = []
        for number, record in enumerate(RECORD.iter_unpack(self._records)):
            first, count, tag = record[5], record[6], record[13]
            if tag == INLINED and count:
                pieces = PIECE.iter_unpack(self._pieces[16 * first : 16 * (first + count)])
                if any(low < end and begin < high for begin, end in pieces):
                    copies.append(self.function(number))
        return copies


def build(kernel: ElfFile) -> bytes:
    """Build the index of a kernel, and return the contents of the index file.

    :raises DebugDataError: if the debug data is missing or damaged.
    """
    file = debug_file(kernel)
    if file is None:
        raise DebugDataError(f"{kernel.path}: has no debug data; put the matching "
                             f"{kernel.path.name}.debug in its directory")
    path, found = file.path, sections(file, NAMES)
    try:
        info, abbrev, ranges, lists, addr, offsets = (found.get(name, b"") for name in NAMES[:6])
        scan = Scan(info, abbrev, ranges, lists, addr, offsets)
    except SplitError:
        raise DebugDataError(f"{path}: split debug data (.dwo or .dwp files) is not supported; "
                             "compile without -gsplit-dwarf") from None
    except ScanError as error:
        raise DebugDataError(f"{path}: damaged debug data: {error}") from None
    records, pieces, units, declared = scan.tables()
    del scan
    units = b"".join(UNIT.pack(u[0], u[7]) for u in struct.iter_unpack(UNIT_FORMAT, units))
    return _assemble(bytearray(records), pieces, units, declared, found)


def _assemble(
    records: bytearray, pieces: bytes, units: bytes, declared: bytes, found: dict[str, bytes]
) -> bytes:
    """Assemble the contents of the index file from the tables of the scan.

    Names are sorted, records are grouped by name, and the names in records become text offsets.
    """
    strings = (found.get(".debug_str", b""), found.get(".debug_line_str", b""),
               found.get(".debug_info", b""))
    named: dict[int, bytes] = {NONE64: b""}  # location of a name (section and offset) -> the name
    total = [0]

    def text_of(place: int) -> bytes:
        name = named.get(place)
        if name is None:
            section, offset = place >> 60, place & (1 << 60) - 1
            source = strings[section] if section < 3 else b""
            end = source.find(b"\0", offset, offset + MAX_NAME)
            name = source[offset : end if end >= 0 else offset + MAX_NAME - 1]
            named[place] = name
            total[0] += len(name)
            if total[0] > MAX_NAMES:
                raise DebugDataError("damaged debug data: the names have more than "
                                     f"{MAX_NAMES} bytes")
        return name

    members: dict[bytes, list[int]] = {}
    # Columns of the record table, as strided views
    names = memoryview(records).cast("Q")[NAME_AT // 8 :: RECORD_SIZE // 8]
    subjects = memoryview(records).cast("I")[SUBJECT_AT // 4 :: RECORD_SIZE // 4].tolist()
    places = names.tolist()
    at_place: dict[int, list[int]] = {}
    for number, subject in enumerate(subjects):
        if subject != NONE32:
            at_place.setdefault(places[subject], []).append(number)
    at_place.pop(NONE64, None)
    for place, numbers in at_place.items():
        same = members.setdefault(text_of(place), numbers)
        if same is not numbers:  # the same name is stored at two locations
            same += numbers
            same.sort()
    # The scan merged types whose names are at the same location; now merge types with equal names.
    first_of: dict[tuple[bytes, int, int, int, int], tuple[int, int]] = {}
    for entry, place, value, digest, unit, line, tag in struct.iter_unpack(
            DECLARED_FORMAT, declared):
        first_of.setdefault((text_of(place), tag, value, line, digest), (entry, unit))
    rows = sorted((name, entry, value, unit, line, tag)
                  for (name, tag, value, line, _digest), (entry, unit) in first_of.items())
    text, offsets = bytearray(), {}
    for name in sorted({*members, *(row[0] for row in rows)}):
        offsets[name] = len(text)
        text += name + b"\0"
    entries, order, first = bytearray(), bytearray(), 0
    for name in sorted(members):
        entries += NAME.pack(offsets[name], first, len(members[name]))
        order += struct.pack(f"<{len(members[name])}I", *members[name])
        first += len(members[name])
    new = {place: offsets.get(name, NONE64) for place, name in named.items() if place != NONE64}
    names[:] = memoryview(array.array("Q", [new.get(place, NONE64) for place in places]))
    types = b"".join(DECLARED.pack(offsets[name], unit, entry, value, line, tag)
                     for name, entry, value, unit, line, tag in rows)
    tables = (bytes(records), pieces, bytes(entries), bytes(order), units, types, bytes(text))
    rest = b"".join(tables)
    head = HEADER.pack(MAGIC, FORMAT, zlib.crc32(rest), *map(len, tables))
    return head + rest


def load(kernel: ElfFile, cache: Path) -> DebugIndex:
    """Load the index of a kernel from a cache file, or build and cache it.

    :param cache: path of the cache file, which is replaced atomically.
    :raises DebugDataError: if the debug data is missing or damaged.
    """
    try:
        with open(cache, "rb") as file:
            return DebugIndex(file.read(), cache)
    except (OSError, ValueError, DebugDataError):
        pass  # the cache file is missing or has another version: build the index
    data = build(kernel)
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        with replacing(cache) as file:
            file.write(data)
    except OSError:
        pass  # the index is not cached; the next run builds it again
    return DebugIndex(data, cache)
