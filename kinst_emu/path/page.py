"""HTML page of a path: one file without external resources."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from dtrace.debug.source_text import SourceText
from dtrace.debug.variable_scopes import VariableScopes
from dtrace.flow.code import KernelCode
from dtrace.flow.thread_path import ThreadPath
from kinst_emu.path.code_table import CodeTable, code_table
from kinst_emu.path.packed import streams
from kinst_emu.path.variables import variable_table
from kinst_emu.report.page_file import packed_json, write_page
from kinst_emu.report.page_file import page as filled
from kinst_emu.report.time_units import exact

MOST_LINES = 20_000  # maximum number of source lines in a page
MOST_WIDTH = 200  # maximum number of characters of a source line
FAR = 40  # number of lines without code after which a function is taken to have ended


@dataclass(frozen=True)
class LockSpan:
    """A lock that the thread of a path held.

    :param name: its kind and name.
    :param address: its virtual address; None: it is unknown.
    :param begin: moment of the instruction that acquired it; -1: before the path.
    :param end: moment of the instruction that released it; the number of instructions: later.
    :param where: the code that asked for it.
    """

    name: str
    address: int | None
    shared: bool
    begin: int
    end: int
    where: str


@dataclass(frozen=True)
class Shown:
    """What a page shows.

    :param thread: name of the thread.
    :param locks: the locks that the thread held; None: they are unknown.
    :param notes: sentences for the reader.
    """

    path: ThreadPath
    code: KernelCode
    scopes: VariableScopes | None
    text: SourceText | None
    title: str
    thread: str
    notes: tuple[str, ...] = ()
    locks: tuple[LockSpan, ...] | None = None


def write(path: Path, shown: Shown, advance: Callable[[int, int], object]) -> None:
    """Write the page.

    :param advance: called after each instruction with 1 and the number of instructions.
    :raises OSError: if the page cannot be written.
    """
    write_page(path, page(shown, advance), "kinst")


def page(shown: Shown, advance: Callable[[int, int], object]) -> str:
    """Return the page of a path."""
    path = shown.path
    table = code_table(shown.code, path.pcs)
    duration = path.time(len(path.pcs)) - path.time(0)
    about = (f"{len(path.pcs):,} instructions of {shown.thread} in {exact(duration)} of virtual "
             f"time, from instruction {path.begin.instructions} of the recording on.")
    content = packed_json(data(shown, table, advance))
    return filled("path.html", shown.title, about, notes=shown.notes,
                  data=content, streams=streams(path, table.index))


def data(shown: Shown, table: CodeTable, advance: Callable[[int, int], object]) -> dict[str, Any]:
    """Return everything on the page that is not in a stream, as JSON data."""
    path, index = shown.path, table.index
    executed = sorted({index[pc] for pc in path.pcs})
    scopes: list[Any] = []
    places: list[Any] = []
    types: list[Any] = []
    scope_of = [-1] * len(table.addresses)
    if shown.scopes is not None:
        found, numbers = variable_table(
            shown.scopes, path.registers, [table.addresses[n] for n in executed],
            lambda: advance(1, len(executed)))
        scopes, places, types = found.scopes, found.places, found.types.rows
        for at, number in zip(executed, numbers, strict=True):
            scope_of[at] = number
    registers = {name: number for number, name in enumerate(path.registers)}
    mentions: dict[tuple[int, ...], int] = {}
    mentioned = [mentions.setdefault(tuple(sorted(
        registers[name] for name in names if name in registers)), len(mentions))
        for names in table.mentions]
    pages = {physical: number for number, physical in enumerate(path.pages)}
    files: dict[str, int] = {}
    return {
        "thread": shown.thread, "begin": path.begin.instructions, "registers": path.registers,
        "first": [f"{path.first[name]:x}" for name in path.registers],
        "sp": registers[shown.code.arch.sp],
        "instructions": len(path.pcs), "others": path.others, "outer": path.outer,
        "addresses": [f"{address:x}" for address in table.addresses],
        "texts": table.texts, "lines": table.lines, "scopeOf": scope_of,
        "branches": [[at, target] for at, target in table.branches.items()],
        "mentionLists": list(mentions), "mentionOf": mentioned,
        "functions": table.functions,
        "places": [[files.setdefault(file, len(files)), line] for file, line in table.places],
        "files": list(files),
        "source": _source(shown.text, table, files),
        "frames": [[frame.name, frame.how, frame.parent, frame.begin, frame.end, frame.own]
                   for frame in path.frames],
        "locks": None if shown.locks is None else [
            [one.name, None if one.address is None else f"{one.address:x}", one.shared,
             one.begin, one.end, one.where]
            for one in shown.locks],
        "scopes": scopes, "variablePlaces": places, "types": types,
        "mapped": [[f"{virtual:x}", pages[physical]] for virtual, physical in path.mapped.items()],
        "outside": [[pages[address & -4096], address % 4096, size]
                    for address, size in path.outside],
    }


def _source(text: SourceText | None, table: CodeTable, files: dict[str, int]
            ) -> list[tuple[int, int, list[str]]]:
    """Return the source text of the functions, as (index of a file, first line, lines)."""
    if text is None:
        return []
    wanted: dict[str, set[int]] = {}
    for _name, first, count in table.functions:
        around: dict[str, set[int]] = {}
        for number in table.lines[first : first + count]:
            file, line = table.places[number]
            around.setdefault(file, set()).add(line)
        for file, lines in around.items():
            # Lines far from the others are those of code in another function.
            wanted.setdefault(file, set()).update(
                at for low, high in pairwise(sorted(lines)) if high - low < FAR
                for at in range(low, high))
            wanted[file] |= lines
    found, left = list[tuple[int, int, list[str]]](), MOST_LINES
    for file, lines in sorted(wanted.items()):
        content = text.lines(file)
        for first, last in _runs(sorted(lines - {0})):
            rows = [row.expandtabs()[:MOST_WIDTH] for row in content[first - 1 : last]][:left]
            left -= len(rows)
            if rows:
                found.append((files[file], first, rows))
    return found


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Return the runs of consecutive numbers, as (first, last)."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return runs
