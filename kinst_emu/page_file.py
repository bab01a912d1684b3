"""A page that a command was asked for: its head, and how it is written."""

import html
import sys
from collections.abc import Iterator
from pathlib import Path

from emu.replacing import replacing


def head(title: str, style: str, scripts: bool) -> Iterator[str]:
    """The beginning of a page, up to its body: nothing comes from elsewhere.

    :param scripts: whether it has any, within it.
    """
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    if scripts:
        policy += "; script-src 'unsafe-inline'"
    yield "<!DOCTYPE html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield f"<title>{html.escape(title)}</title><style>{style}</style></head>"


def write_page(path: Path, content: str, program: str) -> None:
    """What is no text (names and arguments may be any bytes) stands in it as escapes.

    :raises OSError: when it cannot be written.
    """
    with replacing(path) as file:
        file.write(content.encode("utf-8", "backslashreplace"))
    print(f"{program}: wrote {path}", file=sys.stderr)
