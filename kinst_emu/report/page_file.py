"""A page that a command was asked for: its template filled in, and how it is written."""

import sys
from pathlib import Path

from emu.host.atomic_file import replacing
from emu.host.templates import templates


def page(template: str, title: str, about: str, **values: object) -> str:
    """A page, in which nothing comes from elsewhere.

    :param template: a file of ``kinst_emu/templates``, and ``values`` what it is given.
    :param title: the page's heading, too; ``about``: a sentence below it.
    """
    return templates("kinst_emu").get_template(template).render(
        title=title, about=about, **values)


def write_page(path: Path, content: str, program: str) -> None:
    """What is no text (names and arguments may be any bytes) stands in it as escapes.

    :raises OSError: when it cannot be written.
    """
    with replacing(path) as file:
        file.write(content.encode("utf-8", "backslashreplace"))
    print(f"{program}: wrote {path}", file=sys.stderr)
