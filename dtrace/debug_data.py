"""A kernel's debug data as the commands use it: the index from the cache, names of files."""

import hashlib
from dataclasses import dataclass, field

from dwarf._lines import LineError, LineTable
from dwarf.debug_file import DebugDataError, debug_file, sections
from dwarf.files import file_table
from dwarf.index import DebugIndex, Function, load
from emu.elf import Image
from emu.fingerprint import fingerprint
from emu.progress import PROGRESS
from images.cache import cache_directory

NO_TABLE = (1 << 64) - 1
NAMES = (".debug_line", ".debug_line_str", ".debug_str")
FRAME = ".debug_frame"
MADE_BY = ("dwarf.index", "dwarf._scan", "dwarf.debug_file")  # what an index is


def debug_index(image: Image) -> DebugIndex:
    """The index of a kernel's debug data, from the user's cache.

    :raises DebugDataError: when it has none.
    """
    path = debug_file(image.path)
    if path is None:
        raise DebugDataError(f"{image.path}: has no debug data, and no {image.path.name}.debug is "
                             "beside it")
    stat = path.stat()
    # Offsets in the file: another file, or the same one changed, needs another index.
    key = (f"{image.identity} {stat.st_dev} {stat.st_ino} {stat.st_size} {stat.st_mtime_ns} "
           f"{fingerprint(MADE_BY)}")
    cache = cache_directory() / "dwarf" / f"{hashlib.sha256(key.encode()).hexdigest()}.index"
    with PROGRESS.working(f"indexing the debug data of {image.path}"):
        return load(image.path, cache)


@dataclass
class Sources:
    """Files and lines of a kernel.

    :raises DebugDataError: from every question, when the line tables are damaged.
    """

    image: Image
    _tables: dict[int, dict[int, str]] = field(default_factory=dict)
    _sections: dict[str, bytes] | None = None

    def section(self, name: str) -> bytes:
        if self._sections is None:
            path = debug_file(self.image.path)
            self._sections = sections(path, (*NAMES, FRAME)) if path is not None else {}
        return self._sections.get(name, b"")

    def files(self, table: int) -> dict[int, str]:
        """The files of the line program at an offset of .debug_line."""
        if table not in self._tables:
            try:
                line, line_str, string = (self.section(name) for name in NAMES)
                self._tables[table] = {} if table == NO_TABLE else file_table(
                    line, line_str, string, table)
            except DebugDataError as error:
                raise DebugDataError(f"{self.image.path}: {error}") from None
        return self._tables[table]

    def call(self, index: DebugIndex, copy: Function) -> str:
        """``file:line`` of an inline copy's call."""
        files = self.files(index.line_table(copy.unit))
        return f"{files.get(copy.call_file, '?')}:{copy.call_line}"

    def line(self, address: int) -> str:
        """``file:line`` of an address, or ``?``: also for code that the compiler says is of no line
        (line 0: DWARF 5, 6.2.2)."""
        try:
            found = LineTable(self.section(".debug_line")).find(address)
        except LineError as error:
            raise DebugDataError(f"{self.image.path}: damaged debug data: {error}") from None
        if found is None or not found[2]:
            return "?"
        table, file, line = found
        return f"{self.files(table).get(file, '?')}:{line}"

    def lines(self, low: int, high: int) -> list[tuple[int, int, str]]:
        """(first address, end, ``file:line``) of the code at [low, high), where it has a line."""
        try:
            rows = LineTable(self.section(".debug_line")).within(low, high)
        except LineError as error:
            raise DebugDataError(f"{self.image.path}: damaged debug data: {error}") from None
        return [(begin, end, f"{self.files(table).get(file, '?')}:{line}")
                for begin, end, table, file, line in rows if line]

    def code(self, path: str, line: int) -> list[tuple[int, int]]:
        """The pieces of code of a line, by address; path suffixes match.

        :raises DebugDataError: also when no file has that name.
        """
        if line < 1:
            raise DebugDataError(f"{path}:{line}: lines are counted from 1")
        content = self.section(".debug_line")
        name = path.rpartition("/")[2].encode()
        elsewhere = name in self.section(".debug_line_str")
        found: set[tuple[int, int]] = set()
        known = False
        try:
            table = LineTable(content)
            for start, first, _end in table.programs():
                if not elsewhere and name not in content[start:first]:
                    continue
                wanted = {n for n, file in self.files(start).items()
                          if file == path or file.endswith("/" + path)}
                known = known or bool(wanted)
                if wanted:
                    found.update(table.pieces(start, wanted, line))
        except LineError as error:
            raise DebugDataError(f"{self.image.path}: damaged debug data: {error}") from None
        if not known:
            raise DebugDataError(f"{self.image.path}: no source file is named {path}")
        return sorted(found)
