"""Text of source lines, from source trees that the user names."""

import functools
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from emu.host.errors import KinstError
from emu.host.progress import PROGRESS

MAX_FILE = 4 << 20  # maximum size of a source file in bytes
MAX_PARTS = 16  # maximum number of trailing path components to look up
WIDTH = 90  # maximum number of characters of a line to show


class SourceText:
    """Source files in directories that the user names, looked up by paths from the debug data.

    The file with the longest matching path suffix is used.  Nothing outside the directories is
    read.

    :param trees: directories, searched in this order.
    :raises KinstError: if one is not a directory.
    """

    def __init__(self, trees: Sequence[Path]) -> None:
        for tree in trees:
            if not tree.is_dir():
                raise KinstError(f"--sources {tree}: no such directory")
        self._trees = [tree.resolve() for tree in trees]
        self._lines = functools.lru_cache(maxsize=256)(self._read)

    def line(self, location: str) -> str:
        """Return the text at ``file:line`` without surrounding space, or "" if unknown."""
        path, colon, number = location.rpartition(":")
        if not colon or not (number.isascii() and number.isdecimal()):
            return ""
        lines, at = self._lines(path), int(number[:9])
        return lines[at - 1].strip()[:WIDTH] if 0 < at <= len(lines) else ""

    def lines(self, path: str) -> list[str]:
        """Return the lines of the file for a path in the debug data; none if it is unknown."""
        return self._lines(path)

    def file(self, path: str) -> Path | None:
        """Return the file for a path in the debug data, or None if it is in no directory."""
        parts = [part for part in PurePosixPath(path).parts if part not in ("/", ".")][-MAX_PARTS:]
        for tree in self._trees:
            for first in range(len(parts)):
                found = tree.joinpath(*parts[first:]).resolve()
                if found.is_relative_to(tree) and found.is_file():
                    return found
        return None

    def _read(self, path: str) -> list[str]:
        found = self.file(path)
        if found is None or found.stat().st_size > MAX_FILE:
            return []
        with PROGRESS.working(f"reading {found}"):
            return found.read_text(errors="replace").splitlines()
