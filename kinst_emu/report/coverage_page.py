"""Coverage as a self-contained HTML page: files, functions, and lines with their counts."""

import bisect
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from os.path import commonpath

from dtrace.debug.source_text import SourceText
from dtrace.flow.coverage import FileLines
from kinst_emu.report.page_file import packed_json
from kinst_emu.report.page_file import page as filled

MAX_TEXT = 24 << 20  # maximum number of characters of source text in a page


def page(files: Mapping[str, FileLines], text: SourceText | None, about: str,
         new: Collection[tuple[str, int]] | None) -> str:
    """Return the page.

    :param files: coverage by the path of the source file in the debug data.
    :param text: the source files, if the user has any; the page contains the functions of which
        anything was executed.
    :param new: (path in the debug data, line) of lines to mark as new; None: nothing is compared.
    """
    left, rows, notes = MAX_TEXT, [], list[str]()
    marked: dict[str, list[int]] = {}
    for name, line in new or ():
        marked.setdefault(name, []).append(line)
    for name in sorted(files):
        found = files[name]
        pieces = list(_pieces(found, text.lines(name))) if text is not None else []
        size = sum(len(piece) for _first, piece in pieces)
        if size > left:
            pieces, size = [], 0
            notes = [f"Only {MAX_TEXT >> 20} MiB of source text are part of the page; some files "
                     "have line numbers only."]
        left -= size
        rows.append({
            "name": name, "lines": sorted(found.lines.items()),
            "functions": sorted([*key, count] for key, count in found.functions.items()),
            "branches": [[line, *ways]
                         for (line, _address), ways in sorted(found.branches.items())],
            "text": pieces, "new": sorted(marked.get(name, ()))})
    return filled("coverage.html", "Coverage", about, notes=notes, data=packed_json(
        {"prefix": _prefix(list(files)), "compared": new is not None, "files": rows}))


def _prefix(names: list[str]) -> str:
    """Return the folder that all files share, with a slash, or an empty string."""
    absolute = [name for name in names if name.startswith("/")]
    if len(absolute) < 2:
        return ""
    common = commonpath(absolute)
    return "" if common == "/" else common + "/"


def _pieces(found: FileLines, rows: list[str]) -> Iterator[tuple[int, str]]:
    """Yield (first line, text) for the parts of a file with functions that were executed.

    A function extends from its first line, and the two lines before it, to the next function.
    """
    starts = sorted({line for _name, line in found.functions if line <= len(rows)} | {1})
    executed = sorted(line for line, count in found.lines.items() if count)
    end = 0
    for first, following in pairwise([*starts, len(rows) + 1]):
        if bisect.bisect_left(executed, following) > bisect.bisect_left(executed, first):
            begin = max(first - 2, end + 1, 1)
            end = min(following - 1, len(rows))
            if begin <= end:
                yield begin, "\n".join(row.expandtabs(8) for row in rows[begin - 1 : end])
