"""Functions that render HTML pages from templates and write the page files."""

import base64
import json
import sys
import zlib
from pathlib import Path

from emu.host.atomic_file import replacing
from emu.host.templates import templates

LEVEL = 9  # of the compression


def packed(content: bytes) -> str:
    """Return compressed content as text, for ``unpack`` of ``templates/unpack.js``."""
    return base64.b64encode(zlib.compress(content, LEVEL)).decode()


def packed_json(data: object) -> str:
    """Return data as compressed JSON, for ``unpackJson`` of ``templates/unpack.js``."""
    return packed(json.dumps(data, separators=(",", ":")).encode())


def page(template: str, title: str, about: str, **values: object) -> str:
    """Return a self-contained HTML page made from a template.

    :param template: a file in ``kinst_emu/templates``.
    :param title: title and heading of the page.
    :param about: sentence below the heading.
    :param values: variables of the template.
    """
    return templates("kinst_emu").get_template(template).render(
        title=title, about=about, **values)


def write_page(path: Path, content: str, program: str) -> None:
    """Write a page to a file, and print the file's path on standard error.

    Names and arguments may have bytes that are not text; these are written as escapes.

    :raises OSError: when the file cannot be written.
    """
    with replacing(path) as file:
        file.write(content.encode("utf-8", "backslashreplace"))
    print(f"{program}: wrote {path}", file=sys.stderr)
