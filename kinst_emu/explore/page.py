"""HTML page of findings, with the source lines that each run executed and the values it saw."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from dtrace.debug.debug_data import Sources
from dtrace.debug.source_text import SourceText
from dwarf.debug_file import DebugDataError
from emu.host.errors import KinstError
from kinst_emu.explain.view.film import alone, film
from kinst_emu.explain.view.lane_scenes import LaneRow, lane_pictures
from kinst_emu.explain.view.page import movable
from kinst_emu.explain.view.pictures import Pictures
from kinst_emu.explore.explorer import Explored, Finding
from kinst_emu.explore.schedule import LETTERS
from kinst_emu.explore.stage import Stage
from kinst_emu.explore.telling import Row, of_race, rows
from kinst_emu.report.page_file import page


@dataclass(frozen=True)
class Cell:
    """One execution of a source line by a run in a schedule.

    :param source: position of the line, e.g. ``file.c:12``.
    :param text: text of the line; empty: unknown.
    :param accesses: accesses to shared memory, e.g. ``counter is 0x0``.
    :param shared: names of the accessed variables, with their values after the accesses.
    """

    source: str
    text: str
    accesses: tuple[str, ...]
    shared: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class FindingPart:
    """Section of an HTML page that describes one finding.

    :param table: rows of (instructions of all runs so far, a cell or None for each run).
    :param lines: description of a data race, or why there is no table.
    """

    title: str
    message: str
    schedule: str
    table: list[tuple[int, list[Cell | None]]]
    lines: list[str]


def explored_page(stage: Stage, explored: Explored, runs: Sequence[str], about: str,
                  trees: SourceText) -> str:
    """Return the HTML page about the findings of an exploration.

    :param runs: texts of the runs.
    :param about: summary of the executed schedules.
    :param trees: source trees with the text of the lines.
    """
    try:
        sources: Sources | None = Sources(stage.machine.image)
    except DebugDataError:
        sources = None
    parts = [_part(stage, one, len(runs), sources, trees) for one in explored.findings]
    shown = next((part for part in parts if part.table), None)
    return page("explored.html", "Interleavings of " + " and ".join(runs), about, parts=parts,
                runs=list(zip(LETTERS, runs, strict=False)),
                **movable(None if shown is None else alone(film(_pictures(runs, shown))),
                          "The first failure, line by line", {}))


def _pictures(runs: Sequence[str], part: FindingPart) -> Pictures[LaneRow]:
    return lane_pictures(
        [f"{letter}  {text}" for letter, text in zip(LETTERS, runs, strict=False)],
        [LaneRow(run, (f"{cell.source}  {cell.text}".strip(), *cell.accesses), cell.shared)
         for _position, cells in part.table for run, cell in enumerate(cells) if cell is not None],
        part.message)


def _part(stage: Stage, finding: Finding, runs: int, sources: Sources | None,
          trees: SourceText) -> FindingPart:
    table: list[tuple[int, list[Cell | None]]] = []
    lines: list[str] = []
    if sources is not None and finding.race is not None:
        lines = list(of_race(stage, sources, finding.race, finding.turns))
    elif sources is not None:
        try:
            played = stage.play(finding.turns, look=True)
        except KinstError as error:  # the runs make too many memory accesses to record
            return FindingPart(finding.kind, finding.message, finding.schedule, [],
                               [f"(not available: {error})"])
        found = rows(stage.machine, sources, played.accesses, runs, stage.probed)
        for (run, source), some in groupby(found, key=lambda row: (row.run, row.source)):
            together = list(some)
            cells: list[Cell | None] = [None] * runs
            cells[run] = Cell(source, trees.line(source), tuple(map(_access, together)),
                              tuple((one.place, f"{one.value:#x}") for one in together
                                    if not one.note))
            table.append((together[0].position - stage.begin, cells))
    return FindingPart(finding.kind, finding.message, finding.schedule, table, lines)


def _access(row: Row) -> str:
    return row.note or f"{row.place} {'=' if row.stores else 'is'} {row.value:#x}"
