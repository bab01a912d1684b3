"""Every function and inline copy of a kernel, by name; made once and kept in a file.

The file is written for mapping into memory: a header, then tables of the native scan
(``dwarf/_scan.pyx``), names in order, and for each name the records that belong to it.
"""

import bisect
import hashlib
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dwarf._scan import PIECE_FORMAT, RECORD_FORMAT, RECORD_SIZE, UNIT_FORMAT, Scan, ScanError
from dwarf.debug_file import DebugDataError, debug_file, sections
from emu.elf import Symbol, SymbolTable
from emu.replacing import replacing

MAGIC, FORMAT = b"KINSTDWF", 2
HEADER = struct.Struct("<8sIIQQQQQQ32s")  # magic, format, 0, six lengths, digest of the rest
RECORD, PIECE = struct.Struct(RECORD_FORMAT), struct.Struct(PIECE_FORMAT)
NAME = struct.Struct("<III")  # offset of the name, first member, members
NAMES = (".debug_info", ".debug_abbrev", ".debug_ranges", ".debug_rnglists", ".debug_addr",
         ".debug_str_offsets", ".debug_str", ".debug_line_str")
NONE32 = 0xFFFFFFFF
INLINED, SUBPROGRAM = 0x1D, 0x2E


@dataclass(frozen=True)
class Function:
    """A function, or a copy of one that was inlined.

    :param number: of its record, in the order of .debug_info.
    :param pieces: its code, as [low, high), in the order the debug data has them.
    :param parent: the record it lies in; None at the top.
    :param inlined: whether it is a copy in another function.
    :param call_line: where it is called, in a copy; 0: not known.
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


def caller_of(symbols: SymbolTable, copy: Function) -> Symbol | None:
    """The function an inline copy lies in: a symbol around its lowest address."""
    return symbols.function_at(min(low for low, _high in copy.pieces))


class DebugIndex:
    """An index, mapped or in memory.

    :raises DebugDataError: when the data is no index.
    """

    def __init__(self, data: "bytes | mmap.mmap", where: Path) -> None:
        self._data = memoryview(data)
        try:
            magic, version, _zero, *lengths, _digest = HEADER.unpack_from(self._data)
        except struct.error:
            raise DebugDataError(f"{where}: not an index") from None
        if magic != MAGIC or version != FORMAT or HEADER.size + sum(lengths) != len(self._data):
            raise DebugDataError(f"{where}: not an index of this program's")
        tables, at = [], HEADER.size
        for length in lengths:
            tables.append(self._data[at : at + length])
            at += length
        (self._records, self._pieces, self._names, self._members, self._lines,
         self._text) = tables
        self.count = len(self._records) // RECORD_SIZE
        self._tops: list[tuple[int, int, int]] | None = None

    # -- looking up ---------------------------------------------------------------------------

    def _name_at(self, entry: int) -> bytes:
        offset = NAME.unpack_from(self._names, entry * NAME.size)[0]
        end = offset
        chunk = bytes(self._text[offset : offset + 4096])
        end = chunk.find(b"\0")
        return chunk[:end] if end >= 0 else chunk

    def _find(self, name: str) -> int | None:
        wanted = name.encode("utf-8", "surrogateescape")
        low, high = 0, len(self._names) // NAME.size
        while low < high:
            middle = (low + high) // 2
            if self._name_at(middle) < wanted:
                low = middle + 1
            else:
                high = middle
        if low < len(self._names) // NAME.size and self._name_at(low) == wanted:
            return low
        return None

    def names(self) -> Iterator[str]:
        """All names, in order."""
        for entry in range(len(self._names) // NAME.size):
            yield self._name_at(entry).decode("utf-8", "surrogateescape")

    def named(self, name: str) -> list[Function]:
        """Everything of that name: functions, abstract ones, and inline copies."""
        entry = self._find(name)
        if entry is None:
            return []
        _offset, first, count = NAME.unpack_from(self._names, entry * NAME.size)
        members = self._members[4 * first : 4 * (first + count)].cast("I")
        return [self._function(number, name) for number in members]

    def copies(self, name: str) -> list[Function]:
        """The inline copies of a function that have code."""
        return [f for f in self.named(name) if f.inlined and f.pieces]

    def function(self, number: int) -> Function:
        """The function of that number."""
        return self._function(number, self.name_of(number))

    def name_of(self, number: int) -> str:
        """The name of a record; empty where it has none."""
        subject = RECORD.unpack_from(self._records, number * RECORD_SIZE)[12]
        if subject == NONE32:
            return ""
        offset = RECORD.unpack_from(self._records, subject * RECORD_SIZE)[2]
        if offset >= len(self._text):
            return ""
        return bytes(self._text[offset : offset + 4096]).split(b"\0", 1)[0].decode(
            "utf-8", "surrogateescape")

    def _function(self, number: int, name: str) -> Function:
        (_offset, _origin, _name, parent, unit, first, count, call_file, call_line, call_column,
         _decl_file, _decl_line, _subject, tag, _inlined, _declaration) = RECORD.unpack_from(
            self._records, number * RECORD_SIZE)
        pieces = tuple(PIECE.iter_unpack(self._pieces[16 * first : 16 * (first + count)]))
        return Function(
            number, name, pieces, None if parent == NONE32 else parent, tag == INLINED, call_file,
            call_line, call_column, unit,
        )

    def line_table(self, unit: int) -> int:
        """Where in .debug_line a unit's line program is."""
        return int(struct.unpack_from("<Q", self._lines, 8 * unit)[0])

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


def build(kernel: Path) -> bytes:
    """The index of a kernel, as the bytes of its file.

    :raises DebugDataError: when there is no debug data, or it is damaged.
    """
    path = debug_file(kernel)
    if path is None:
        raise DebugDataError(
            f"{kernel}: has no debug data, and no {kernel.name}.debug is beside it")
    found = sections(path, NAMES)
    try:
        info, abbrev, ranges, lists, addr, offsets = (found.get(name, b"") for name in NAMES[:6])
        scan = Scan(info, abbrev, ranges, lists, addr, offsets)
    except ScanError as error:
        raise DebugDataError(f"{path}: damaged debug data: {error}") from None
    records, pieces, units = scan.tables()
    del scan
    # Of a unit, only where its line table is.
    lines = b"".join(struct.pack("<Q", u[7]) for u in struct.iter_unpack(UNIT_FORMAT, units))
    return _assemble(bytearray(records), pieces, lines, found)


def _assemble(
    records: bytearray, pieces: bytes, lines: bytes, found: dict[str, bytes]
) -> bytes:
    """Names in order, and who belongs to each.  Names of records become offsets in the text."""
    strings = (found.get(".debug_str", b""), found.get(".debug_line_str", b""),
               found.get(".debug_info", b""))
    named: dict[int, bytes] = {}  # place of a name -> the name
    members: dict[bytes, list[int]] = {}
    subjects = [r[12] for r in RECORD.iter_unpack(records)]
    places = [r[2] for r in RECORD.iter_unpack(records)]
    for number, subject in enumerate(subjects):
        place = places[subject] if subject != NONE32 else (1 << 64) - 1
        if place == (1 << 64) - 1:
            continue
        name = named.get(place)
        if name is None:
            section, offset = place >> 60, place & (1 << 60) - 1
            source = strings[section] if section < 3 else b""
            end = source.find(b"\0", offset)
            name = named[place] = source[offset:end] if 0 <= offset <= end else b""
        members.setdefault(name, []).append(number)
    text, offsets, entries, order = bytearray(), {}, bytearray(), bytearray()
    first = 0
    for name in sorted(members):
        offsets[name] = len(text)
        text += name + b"\0"
        entries += NAME.pack(offsets[name], first, len(members[name]))
        order += struct.pack(f"<{len(members[name])}I", *members[name])
        first += len(members[name])
    for number, place in enumerate(places):
        known = named.get(place)
        offset = offsets[known] if known is not None else (1 << 64) - 1
        struct.pack_into("<Q", records, number * RECORD_SIZE + 16, offset)
    rest = b"".join((bytes(records), pieces, bytes(entries), bytes(order), lines,
                     bytes(text)))
    head = HEADER.pack(MAGIC, FORMAT, 0, len(records), len(pieces), len(entries), len(order),
                       len(lines), len(text), hashlib.sha256(rest).digest())
    return head + rest


def load(kernel: Path, cache: Path) -> DebugIndex:
    """The index of a kernel: from the cache, or made and kept there.

    :param cache: the file; it appears whole or not at all.
    :raises DebugDataError: when there is no debug data, or it is damaged.
    """
    try:
        with open(cache, "rb") as file:
            return DebugIndex(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), cache)
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
