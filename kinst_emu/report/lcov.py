"""Coverage files that genhtml, editors and CI services read (geninfo(1), "TRACEFILE FORMAT")."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from dtrace.flow.coverage import FileLines
from emu.host.errors import KinstError
from emu.host.input_file import taken

MAX_PARTS = 2  # maximum number of trailing components of two paths that are compared
NUMBER = re.compile(r"[0-9]{1,18}")
MAX_FILE = 1 << 28  # maximum size in bytes of a coverage file that is read


def lcov(files: Mapping[str, FileLines], place: Callable[[str], str]) -> Iterator[str]:
    """Yield the lines of a coverage file.

    :param place: maps a path in the debug data to the path to write.
    """
    yield "TN:"
    for name in sorted(files):
        found = files[name]
        yield f"SF:{place(name)}"
        for (function, line), _count in sorted(found.functions.items(), key=lambda f: f[0][1]):
            yield f"FN:{line},{function}"
        for (function, _line), count in sorted(found.functions.items(), key=lambda f: f[0][1]):
            yield f"FNDA:{count},{function}"
        yield f"FNF:{len(found.functions)}"
        yield f"FNH:{sum(count > 0 for count in found.functions.values())}"
        yield from _branches(found)
        for line in sorted(found.lines):
            yield f"DA:{line},{found.lines[line]}"
        yield f"LF:{len(found.lines)}"
        yield f"LH:{sum(count > 0 for count in found.lines.values())}"
        yield "end_of_record"


def _branches(found: FileLines) -> Iterator[str]:
    reached = all_ways = 0
    for block, ((line, _address), ways) in enumerate(sorted(found.branches.items())):
        for way, count in enumerate(ways):
            yield f"BRDA:{line},{block},{way},{count if sum(ways) else '-'}"
            reached += count > 0
            all_ways += 1
    yield f"BRF:{all_ways}"
    yield f"BRH:{reached}"


def executed_lines(path: Path) -> set[tuple[str, int]]:
    """Return (file, line) of the lines that a coverage file says were executed.

    :raises KinstError: if it is not a coverage file.
    """
    found, file = set[tuple[str, int]](), ""
    text = bytes(taken(path, MAX_FILE).content).decode("utf-8", "replace")
    for number, row in enumerate(text.splitlines(), 1):
        kind, _colon, rest = row.partition(":")
        if kind == "SF":
            file = rest
        elif kind == "DA":
            words = rest.split(",")
            if len(words) < 2 or not file or not all(NUMBER.fullmatch(word) for word in words[:2]):
                raise KinstError(f"{path}:{number}: not a coverage file: '{row[:60]}'")
            if int(words[1]):
                found.add((file, int(words[0])))
    if not file:
        raise KinstError(f"{path}: not a coverage file; create one with kinst coverage -o")
    return found


def new_lines(files: Mapping[str, FileLines], place: Callable[[str], str],
              before: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return (file, line) of executed lines that were not executed before, sorted."""
    known: dict[tuple[str, int], set[str]] = {}
    for file, line in before:
        known.setdefault((Path(file).name, line), set()).add(file)
    return sorted(
        (place(name), line) for name, found in files.items()
        for line, count in found.lines.items() if count and not any(
            _same(file, place(name)) for file in known.get((Path(name).name, line), ())))


def _same(one: str, other: str) -> bool:
    """Return whether two paths may be those of one file in two source trees."""
    parts, others = Path(one).parts, Path(other).parts
    common = min(len(parts), len(others), MAX_PARTS)
    return parts[-common:] == others[-common:]
