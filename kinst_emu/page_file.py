"""Writes a page that a command was asked for."""

import sys
from pathlib import Path

from emu.replacing import replacing


def write_page(path: Path, content: str, program: str) -> None:
    """What is no text (names and arguments may be any bytes) stands in it as escapes.

    :raises OSError: when it cannot be written.
    """
    with replacing(path) as file:
        file.write(content.encode("utf-8", "backslashreplace"))
    print(f"{program}: wrote {path}", file=sys.stderr)
