"""File tables of line number programs, as DW_AT_call_file refers to them (DWARF 4 and 5, 6.2.4)."""

from dwarf.debug_file import DebugDataError
from emu.host.printable import name as printable_name

LIMIT = 1 << 16  # maximum number of files or directories of a unit
MAX_PATH = 4096  # maximum length of a path in bytes
DW_LNCT_path, DW_LNCT_directory_index = 1, 2


class _Reader:
    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at, self.wide = data, at, False

    def number(self, size: int) -> int:
        """Read an unsigned little-endian integer of ``size`` bytes."""
        if self.at + size > len(self.data):
            raise DebugDataError("damaged debug data: truncated line table")
        value = int.from_bytes(self.data[self.at : self.at + size], "little")
        self.at += size
        return value

    def offset(self) -> int:
        """Read an offset: 4 bytes, or 8 bytes in 64-bit DWARF."""
        return self.number(8 if self.wide else 4)

    def uleb(self) -> int:
        """Read a ULEB128 integer."""
        value = shift = 0
        while shift < 70:
            byte = self.number(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value
        raise DebugDataError("damaged debug data: unterminated LEB128 in a line table")

    def string(self) -> str:
        """Read a NUL-terminated path, in printable form."""
        end = self.data.find(b"\0", self.at, self.at + MAX_PATH)
        if end < 0:
            raise DebugDataError("damaged debug data: a path in a line table is unterminated or "
                                 f"longer than {MAX_PATH} bytes")
        text = printable_name(self.data[self.at : end])
        self.at = end + 1
        return text


def file_table(line: bytes, line_str: bytes, string: bytes, at: int) -> dict[int, str]:
    """Return the files, keyed by number, of the line number program at a .debug_line offset.

    :param line: contents of .debug_line.
    :param line_str: contents of .debug_line_str.
    :param string: contents of .debug_str.
    :raises DebugDataError: if the table is damaged.
    """
    r = _Reader(line, at)
    if r.number(4) == 0xFFFFFFFF:
        r.wide = True
        r.number(8)
    version = r.number(2)
    if not 2 <= version <= 5:
        raise DebugDataError(f"damaged debug data: unknown line table version {version}")
    if version >= 5:
        r.number(2)
    r.offset()
    r.number(4 if version < 4 else 5)
    opcodes = r.number(1)
    r.at += max(opcodes - 1, 0)
    if version >= 5:
        directories = [path for path, _directory in _entries(r, line_str, string)]
        files = _entries(r, line_str, string)
        return {i: _join(directories, d, path) for i, (path, d) in enumerate(files)}
    directories = [""]
    while (text := r.string()) and len(directories) < LIMIT:
        directories.append(text)
    table: dict[int, str] = {}
    while (text := r.string()) and len(table) < LIMIT:
        table[len(table) + 1] = _join(directories, r.uleb(), text)
        r.uleb()
        r.uleb()
    return table


def _join(directories: list[str], number: int, path: str) -> str:
    directory = directories[number] if number < len(directories) else ""
    return path if path.startswith("/") or not directory else f"{directory}/{path}"


def _entries(r: _Reader, line_str: bytes, string: bytes) -> list[tuple[str, int]]:
    """Read a version 5 table, and return (path, directory index) of each entry."""
    formats = [(r.uleb(), r.uleb()) for _ in range(r.number(1))]
    count = r.uleb()
    if count > LIMIT:
        raise DebugDataError(f"damaged debug data: too many files in a line table ({count})")
    entries = []
    for _ in range(count):
        path, directory = "", 0
        for content, form in formats:
            value = _value(r, form, line_str, string)
            if content == DW_LNCT_path and isinstance(value, str):
                path = value
            elif content == DW_LNCT_directory_index and isinstance(value, int):
                directory = value
        entries.append((path, directory))
    return entries


def _value(r: _Reader, form: int, line_str: bytes, string: bytes) -> str | int:
    if form == 0x08:
        return r.string()
    if form in (0x1F, 0x0E):
        return _Reader(line_str if form == 0x1F else string, r.offset()).string()
    if form in (0x0B, 0x05, 0x06, 0x07):
        return r.number({0x0B: 1, 0x05: 2, 0x06: 4, 0x07: 8}[form])
    if form == 0x0F:
        return r.uleb()
    if form == 0x1E:
        r.number(16)
        return 0
    if form == 0x09:
        r.number(r.uleb())
        return 0
    raise DebugDataError(f"damaged debug data: unsupported form {form:#x} in a line table")
