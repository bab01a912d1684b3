"""Source files, lines and unwind rules of a kernel and its modules, from their debug data."""

import bisect
from dataclasses import dataclass, field

from dwarf._lines import LineError, LineTable
from dwarf.debug_file import DebugDataError, debug_file, sections
from dwarf.files import file_table
from dwarf.frames import Frames, Rule
from dwarf.index import DebugIndex, Function
from dwarf.linked_index import OWN, SHIFT
from emu.elf.image import Image
from emu.elf.reader import ElfFile

NO_TABLE = (1 << 64) - 1
NAMES = (".debug_line", ".debug_line_str", ".debug_str")
FRAME = ".debug_frame"
MOST = 4_000_000  # maximum number of rows of that index
MANY = 32  # number of searches of the line programs after which an index is faster


class NoSuchFile(DebugDataError):
    """Error raised if no source file has the given name."""


@dataclass
class FileSources:
    """Source files, lines and unwind rules of one kernel or module file, keyed by file addresses.

    :raises DebugDataError: from every method, if the line tables are damaged.
    """

    file: ElfFile
    _tables: dict[int, dict[int, str]] = field(default_factory=dict)
    _sections: dict[str, bytes] | None = None
    _frames: Frames | None = None
    _asked: int = 0
    _rows: list[tuple[int, int, int, int, int]] = field(default_factory=list)

    def section(self, name: str) -> bytes:
        """Return the contents of a debug section, or empty bytes if the file lacks the section."""
        if self._sections is None:
            found = debug_file(self.file)
            self._sections = sections(found, (*NAMES, FRAME)) if found is not None else {}
        return self._sections.get(name, b"")

    def files(self, table: int) -> dict[int, str]:
        """Return the file names, keyed by number, of the line program at a .debug_line offset."""
        if table not in self._tables:
            try:
                line, line_str, string = (self.section(name) for name in NAMES)
                self._tables[table] = {} if table == NO_TABLE else file_table(
                    line, line_str, string, table)
            except DebugDataError as error:
                raise DebugDataError(f"{self.file.path}: {error}") from None
        return self._tables[table]

    def line(self, address: int) -> str:
        """Return the ``file:line`` of an address, or ``?`` if the line is unknown.

        Code that the compiler attributes to no line (line 0: DWARF 5, 6.2.2) is unknown, too.
        """
        try:
            if self._indexes():
                found = self._indexed(address)
            else:
                found = LineTable(self.section(".debug_line")).find(address)
        except LineError as error:
            raise DebugDataError(f"{self.file.path}: damaged debug data: {error}") from None
        if found is None or not found[2]:
            return "?"
        table, file, line = found
        return f"{self.files(table).get(file, '?')}:{line}"

    def _indexes(self) -> bool:
        """Return whether to search the index, which is built once there were many searches."""
        self._asked += 1
        if self._asked == MANY:
            rows = self._within(0, NO_TABLE)
            self._rows = rows if len(rows) < MOST else []
        return bool(self._rows)

    def _indexed(self, address: int) -> tuple[int, int, int] | None:
        """Return the line program, file and line of an address, from an index of all addresses."""
        at = bisect.bisect_right(self._rows, address, key=lambda row: row[0]) - 1
        if at < 0 or address >= self._rows[at][1]:
            return None
        _begin, _end, table, file, line = self._rows[at]
        return table, file, line

    def lines(self, low: int, high: int) -> list[tuple[int, int, str]]:
        """Return (begin, end, ``file:line``) of each range in [low, high) with a known line."""
        if self._indexes() and self._indexed(low) is not None:
            first = bisect.bisect_right(self._rows, low, key=lambda row: row[0]) - 1
            last = bisect.bisect_left(self._rows, high, key=lambda row: row[0])
            rows = [(max(begin, low), min(end, high), table, file, line)
                    for begin, end, table, file, line in self._rows[first:last]]
        else:
            rows = self._within(low, high)
        return [(begin, end, f"{self.files(table).get(file, '?')}:{line}")
                for begin, end, table, file, line in rows if line]

    def _within(self, low: int, high: int) -> list[tuple[int, int, int, int, int]]:
        try:
            return LineTable(self.section(".debug_line")).within(low, high)
        except LineError as error:
            raise DebugDataError(f"{self.file.path}: damaged debug data: {error}") from None

    def code(self, path: str, line: int) -> list[tuple[int, int]]:
        """Return the sorted address ranges of a source line; ``path`` may be a path suffix.

        :raises DebugDataError: also if no source file has that name.
        """
        if line < 1:
            raise DebugDataError(f"{path}:{line}: line numbers start at 1")
        content = self.section(".debug_line")
        name = path.rpartition("/")[2].encode()
        separate_names = name in self.section(".debug_line_str")
        found: set[tuple[int, int]] = set()
        known = False
        try:
            table = LineTable(content)
            for start, first, _end in table.programs():
                if not separate_names and name not in content[start:first]:
                    continue
                wanted = {n for n, file in self.files(start).items()
                          if file == path or file.endswith("/" + path)}
                known = known or bool(wanted)
                if wanted:
                    found.update(table.pieces(start, wanted, line))
        except LineError as error:
            raise DebugDataError(f"{self.file.path}: damaged debug data: {error}") from None
        if not known:
            raise NoSuchFile(f"{self.file.path}: no source file is named {path}")
        return sorted(found)

    def rule(self, address: int) -> Rule | None:
        """Return the unwind rule of an address, or None if the rule is unknown."""
        if self._frames is None:
            self._frames = Frames(self.section(FRAME))
        return self._frames.rule(address)


class Sources:
    """Source files, lines and unwind rules of a kernel and its modules.

    :raises DebugDataError: from every method, if the line tables are damaged.
    """

    def __init__(self, image: Image) -> None:
        # (base address, begin, end, sources) of the kernel, whose base is 0, and of each module.
        self._parts = [(0, 0, 0, FileSources(image.file))]
        self._parts += [(m.address, m.address, m.end, FileSources(m.file.elf))
                        for m in image.modules]

    def _at(self, address: int) -> tuple[FileSources, int]:
        """Return the sources of the file that contains an address, and the file's base address."""
        for base, begin, end, sources in self._parts:
            if begin <= address < end:
                return sources, base
        return self._parts[0][3], 0

    @property
    def known(self) -> bool:
        """Whether any file has line information."""
        return any(sources.section(NAMES[0]) for _base, _begin, _end, sources in self._parts)

    def files(self, table: int) -> dict[int, str]:
        """Return the file names of a line program, given the program's number in the index."""
        if table == NO_TABLE:
            return {}
        return self._parts[table >> SHIFT][3].files(table & OWN)

    def call(self, index: DebugIndex, copy: Function) -> str:
        """Return the ``file:line`` of the call that an inline copy replaces."""
        files = self.files(index.line_table(copy.unit))
        return f"{files.get(copy.call_file, '?')}:{copy.call_line}"

    def line(self, address: int) -> str:
        """Return the ``file:line`` of an address, or ``?`` if the line is unknown.

        Code that the compiler attributes to no line (line 0: DWARF 5, 6.2.2) is unknown, too.
        """
        sources, base = self._at(address)
        return sources.line(address - base)

    def line_before(self, begin: int, address: int) -> str:
        """Return the last known ``file:line`` of the code in [begin, address], or an empty text."""
        known = self.lines(begin, address + 1)
        return known[-1][2] if known else ""

    def near(self, begin: int, address: int) -> str:
        """Return the line of an address, or else ``after`` and the line of the code before it.

        :param begin: address of the function.
        """
        line = self.line(address)
        before = self.line_before(begin, address) if line == "?" else ""
        return f"after {before}" if before else line

    def lines(self, low: int, high: int) -> list[tuple[int, int, str]]:
        """Return (begin, end, ``file:line``) of each range in [low, high) with a known line."""
        sources, base = self._at(low)
        return [(begin + base, end + base, line)
                for begin, end, line in sources.lines(low - base, high - base)]

    def rule(self, address: int) -> Rule | None:
        """Return the unwind rule of an address, or None if the rule is unknown."""
        sources, base = self._at(address)
        return sources.rule(address - base)

    def code(self, path: str, line: int) -> list[tuple[int, int]]:
        """Return the sorted address ranges of a source line; ``path`` may be a path suffix.

        :raises DebugDataError: also if no source file has that name.
        """
        found: list[tuple[int, int]] = []
        unknown: DebugDataError | None = None
        known = False
        for base, _begin, _end, sources in self._parts:
            try:
                found += [(low + base, high + base) for low, high in sources.code(path, line)]
                known = True
            except NoSuchFile as error:
                unknown = unknown or error
        if not known and unknown is not None:
            raise unknown
        return sorted(found)
