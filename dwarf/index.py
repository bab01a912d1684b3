"""Every function, inline copy, type and variable of a kernel; made once and kept in a file.

The file is written for mapping into memory: a header, then tables of the native scan
(``dwarf/_scan.pyx``), names in order, and for each name the records that belong to it.
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
HEADER = struct.Struct("<8sIIQQQQQQQ")  # magic, format, CRC-32 of the rest, seven lengths
MAX_NAME = 4096  # bytes; what is longer is cut
MAX_NAMES = 1 << 28  # bytes of all different names
RECORD, PIECE = struct.Struct(RECORD_FORMAT), struct.Struct(PIECE_FORMAT)
NAME_AT, SUBJECT_AT = 16, 60  # in a record
NAME = struct.Struct("<III")  # offset of the name, first member, members
DECLARED = struct.Struct("<IIQQII")  # offset of the name, unit, entry, value, line, tag
UNIT = struct.Struct("<QQ")  # offset of its header, of its line program
NAMES = (".debug_info", ".debug_abbrev", ".debug_ranges", ".debug_rnglists", ".debug_addr",
         ".debug_str_offsets", ".debug_str", ".debug_line_str")
NONE32 = 0xFFFFFFFF
NONE64 = (1 << 64) - 1
INLINED, SUBPROGRAM, VARIABLE = 0x1D, 0x2E, 0x34


@dataclass(frozen=True)
class Function:
    """A function, or a copy of one that was inlined.

    :param number: of its record, in the order of .debug_info.
    :param pieces: its code, as [low, high), in the order the debug data has them.
    :param parent: the record it lies in; None at the top.
    :param inlined: whether it is a copy in another function.
    :param call_line: where it is called, in a copy; 0: not known.
    :param begins: where control enters it (DW_AT_entry_pc); None: the debug data does not say.
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
    """A type or a variable.

    :param tag: DW_TAG of its entry.
    :param entry: the entry's offset in .debug_info; ``unit`` is the offset of its unit.
    :param value: of a type the size in bytes (0: not said), of a variable the address.
    :param line: of the declaration.
    """

    name: str
    tag: int
    entry: int
    unit: int
    value: int
    line: int


def shown(name: bytes) -> str:
    """A name as it may be printed."""
    return printable_name(name)


class DebugIndex:
    """An index.

    :raises DebugDataError: when the data is no index.
    """

    def __init__(self, data: bytes, where: Path) -> None:
        self._data = memoryview(data)
        try:
            magic, version, checksum, *lengths = HEADER.unpack_from(self._data)
        except struct.error:
            raise DebugDataError(f"{where}: not an index") from None
        if magic != MAGIC or version != FORMAT or HEADER.size + sum(lengths) != len(self._data):
            raise DebugDataError(f"{where}: not an index of this program's")
        if zlib.crc32(self._data[HEADER.size :]) != checksum:
            raise DebugDataError(f"{where}: a damaged index")
        tables, at = [], HEADER.size
        for length in lengths:
            tables.append(self._data[at : at + length])
            at += length
        (self._records, self._pieces, self._names, self._members, self._units, self._declared,
         self._text) = tables
        self.count = len(self._records) // RECORD_SIZE
        self._by_address: dict[int, int] | None = None
        self._tops: list[tuple[int, int, int]] | None = None

    # -- looking up ---------------------------------------------------------------------------

    def _text_at(self, offset: int) -> bytes:
        return bytes(self._text[offset : offset + MAX_NAME]).split(b"\0", 1)[0]

    def _find(self, table: memoryview, size: int, name: str) -> int:
        """The first row of that name, or where it would be: rows begin with their name's offset,
        and are in the order of the names."""
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
        """All names of functions, in order."""
        for row in range(len(self._names) // NAME.size):
            yield self._name_of_row(self._names, NAME.size, row)

    def named(self, name: str) -> list[Function]:
        """Everything of that name: functions, abstract ones, and inline copies."""
        row = self._find(self._names, NAME.size, name)
        if self._name_of_row(self._names, NAME.size, row) != name:
            return []
        _offset, first, count = NAME.unpack_from(self._names, row * NAME.size)
        members = self._members[4 * first : 4 * (first + count)].cast("I")
        return [self._function(number, name) for number in members]

    def copies(self, name: str) -> list[Function]:
        """The inline copies of a function that have code."""
        return [f for f in self.named(name) if f.inlined and f.pieces]

    def called_at(self, line: int) -> Iterator[Function]:
        """The inline copies whose call is in a line of that number, in any file."""
        for number, row in enumerate(RECORD.iter_unpack(self._records)):
            if row[8] == line and row[13] == INLINED:
                yield self.function(number)

    def function(self, number: int) -> Function:
        """The function of that number."""
        return self._function(number, self.name_of(number))

    def name_of(self, number: int) -> str:
        """The name of a record; empty where it has none."""
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
        """Where in .debug_line a unit's line program is."""
        return int(UNIT.unpack_from(self._units, UNIT.size * unit)[1])

    def subject(self, number: int) -> tuple[int, int] | None:
        """(offset in .debug_info, that of its unit) of the entry that says what a function is: of a
        copy, the abstract function's."""
        subject = RECORD.unpack_from(self._records, number * RECORD_SIZE)[12]
        if subject == NONE32:
            return None
        return self.entry(subject)

    def entry(self, number: int) -> tuple[int, int]:
        """(offset in .debug_info, that of its unit) of a record's own entry."""
        record = RECORD.unpack_from(self._records, number * RECORD_SIZE)
        return int(record[0]), self.unit_offset(record[4])

    def unit_offset(self, unit: int) -> int:
        """Where in .debug_info a unit's header is."""
        return int(UNIT.unpack_from(self._units, UNIT.size * unit)[0])

    def _declaration(self, row: int) -> Declared:
        name, unit, entry, value, line, tag = DECLARED.unpack_from(
            self._declared, row * DECLARED.size)
        return Declared(shown(self._text_at(name)), tag, entry, self.unit_offset(unit), value,
                        line)

    def declared(self, name: str) -> list[Declared]:
        """The types and variables of a name.  Types of one name that differ in size or line are all
        there, in the order of .debug_info."""
        found = []
        row = self._find(self._declared, DECLARED.size, name)
        while name and self._name_of_row(self._declared, DECLARED.size, row) == name:
            found.append(self._declaration(row))
            row += 1
        return found

    def variable_at(self, address: int) -> Declared | None:
        """The variable that begins at an address."""
        if self._by_address is None:
            self._by_address = {
                value: row for row, (_name, _unit, _entry, value, _line, tag) in enumerate(
                    DECLARED.iter_unpack(self._declared)) if tag == VARIABLE}
        row = self._by_address.get(address)
        return None if row is None else self._declaration(row)

    def declarations(self) -> Iterator[Declared]:
        """All types and variables, by name."""
        return map(self._declaration, range(len(self._declared) // DECLARED.size))

    def stack(self, address: int) -> list[Function]:
        """The inline copies at an address, innermost first, then the function around them; empty
        where no function is."""
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
        found = [self.function(self._tops[at][2])]
        number = found[0].number + 1
        while number < self.count:
            record = RECORD.unpack_from(self._records, number * RECORD_SIZE)
            if record[3] == NONE32:
                break
            pieces = PIECE.iter_unpack(self._pieces[16 * record[5] : 16 * (record[5] + record[6])])
            if record[13] == INLINED and record[3] == found[0].number and any(
                    low <= address < high for low, high in pieces):
                found.insert(0, self.function(number))
            number += 1
        return found

    def inside(self, low: int, high: int) -> list[Function]:
        """All inline copies with code in [low, high), outer ones first."""
        found = []
        for number, record in enumerate(RECORD.iter_unpack(self._records)):
            first, count, tag = record[5], record[6], record[13]
            if tag == INLINED and count:
                pieces = PIECE.iter_unpack(self._pieces[16 * first : 16 * (first + count)])
                if any(low < end and begin < high for begin, end in pieces):
                    found.append(self.function(number))
        return found


def build(kernel: ElfFile) -> bytes:
    """The index of a kernel, as the bytes of its file.

    :raises DebugDataError: when there is no debug data, or it is damaged.
    """
    file = debug_file(kernel)
    if file is None:
        raise DebugDataError(f"{kernel.path}: has no debug data, and no {kernel.path.name}.debug "
                             "is beside it")
    path, found = file.path, sections(file, NAMES)
    try:
        info, abbrev, ranges, lists, addr, offsets = (found.get(name, b"") for name in NAMES[:6])
        scan = Scan(info, abbrev, ranges, lists, addr, offsets)
    except SplitError:
        raise DebugDataError(f"{path}: split debug data is not read: its entries are in .dwo or "
                             ".dwp files; compile without -gsplit-dwarf") from None
    except ScanError as error:
        raise DebugDataError(f"{path}: damaged debug data: {error}") from None
    records, pieces, units, declared = scan.tables()
    del scan
    units = b"".join(UNIT.pack(u[0], u[7]) for u in struct.iter_unpack(UNIT_FORMAT, units))
    return _assemble(bytearray(records), pieces, units, declared, found)


def _assemble(
    records: bytearray, pieces: bytes, units: bytes, declared: bytes, found: dict[str, bytes]
) -> bytes:
    """Names in order, and who belongs to each.  Names of records become offsets in the text."""
    strings = (found.get(".debug_str", b""), found.get(".debug_line_str", b""),
               found.get(".debug_info", b""))
    named: dict[int, bytes] = {NONE64: b""}  # place of a name -> the name
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
                raise DebugDataError(f"damaged debug data: more than {MAX_NAMES} bytes of names")
        return name

    members: dict[bytes, list[int]] = {}
    # Columns of the table, at a time.
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
        if same is not numbers:  # written in two places
            same += numbers
            same.sort()
    # The scan knows names in .debug_str from each other; here also those written in place.
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
    """The index of a kernel: from the cache, or made and kept there.

    :param cache: the file; it appears whole or not at all.
    :raises DebugDataError: when there is no debug data, or it is damaged.
    """
    try:
        with open(cache, "rb") as file:
            return DebugIndex(file.read(), cache)
    except (OSError, ValueError, DebugDataError):
        pass  # not there, or of another version: made again
    data = build(kernel)
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        with replacing(cache) as file:
            file.write(data)
    except OSError:
        pass  # it is made again the next time
    return DebugIndex(data, cache)
