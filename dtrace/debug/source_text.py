"""The text of source lines, from trees that the user has named."""

import functools
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from emu.host.errors import KinstError
from emu.host.progress import PROGRESS

MAX_FILE = 4 << 20  # bytes of a source file
MAX_PARTS = 16  # of a path, that are tried
WIDTH = 90  # characters of a line


class SourceText:
    """:param trees: directories: a file whose path ends as one in them does is that.  Debug data
        says which; nothing outside of them is read.
    :raises KinstError: when one is no directory.
    """

    def __init__(self, trees: Sequence[Path]) -> None:
        for tree in trees:
            if not tree.is_dir():
                raise KinstError(f"--sources {tree}: there is no such directory")
        self._trees = [tree.resolve() for tree in trees]
        self._lines = functools.lru_cache(maxsize=256)(self._read)

    def line(self, location: str) -> str:
        """The text at ``file:line``, without the space around it; empty where it is not known."""
        path, colon, number = location.rpartition(":")
        if not colon or not (number.isascii() and number.isdecimal()):
            return ""
        lines, at = self._lines(path), int(number[:9])
        return lines[at - 1].strip()[:WIDTH] if 0 < at <= len(lines) else ""

    def _read(self, path: str) -> list[str]:
        parts = [part for part in PurePosixPath(path).parts if part not in ("/", ".")][-MAX_PARTS:]
        for tree in self._trees:
            for first in range(len(parts)):
                found = tree.joinpath(*parts[first:]).resolve()
                if not found.is_relative_to(tree) or not found.is_file():
                    continue
                if found.stat().st_size > MAX_FILE:
                    return []
                with PROGRESS.working(f"reading {found}"):
                    return found.read_text(errors="replace").splitlines()
        return []
