"""Tables of the functions' code with the firings of each instruction, for the page of a trace."""

from collections.abc import Iterator
from dataclasses import dataclass

from kinst_emu.trace_page.collected import Collected, HotFunction
from kinst_emu.trace_page.heat import heat


@dataclass(frozen=True)
class TableRow:
    """Row of an instruction; the source line is empty if it is the same as in the previous row."""

    heat: int
    count: str
    offset: int
    instruction: str
    verdict: str
    source: str
    text: str


@dataclass(frozen=True)
class FunctionTable:
    """Table of a function's code.

    :param has_text: whether the text of any source line is known.
    """

    name: str
    count: int
    has_text: bool
    rows: list[TableRow]


def functions(trace: Collected) -> list[FunctionTable]:
    """Return the tables of all functions whose code is shown."""
    most = max((line.count or 0 for code in trace.code for line in code.lines), default=1)
    return [FunctionTable(f"{code.module}`{code.name}", code.count,
                     any(line.line for line in code.lines), list(_rows(code, most)))
            for code in trace.code]


def _rows(code: HotFunction, most: int) -> Iterator[TableRow]:
    last = ""
    for line in code.lines:
        source, text = ("", "") if line.source == last else (line.source, line.line)
        last = line.source
        yield TableRow(heat(line.count or 0, most), "" if line.count is None else str(line.count),
                  line.offset, line.text, line.verdict, source, text)
