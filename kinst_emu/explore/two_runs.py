"""Firings of several runs in one schedule, with per-thread and with shared trampolines."""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from emu.arch.architectures import arch_of
from emu.elf.image import Image
from emu.guests.registry import guest_of
from emu.host.errors import KinstError
from emu.machine.machine import StopReason
from emu.unicorn._flow import Flow, FlowKind
from images import catalog
from kinst.probes.rewritten_trampolines import PER_THREAD, SHARED
from kinst.relocation.trap import NO_TRAMPOLINES, trap_of
from kinst_emu.explain.steps.beside import beside
from kinst_emu.explain.steps.step import Step, Table
from kinst_emu.explain.view.film import film, together
from kinst_emu.explain.view.lane_scenes import BEGIN, END, LaneRow, lane_pictures
from kinst_emu.explain.view.page import page_beside
from kinst_emu.explain.view.pictures import Pictures
from kinst_emu.explore.exploration import Runs, for_runs, stage_of
from kinst_emu.explore.schedule import LETTERS, read_schedule
from kinst_emu.explore.stage import Played, Stage

ENTRY = struct.Struct("<QII")  # structure of an entry of ``Flow``
MAX_ROWS = 400
MOST_INSTRUCTIONS = 10_000_000  # instruction budget of a schedule
WIDTH = 66
NAMES = ("a trampoline for each thread", "one for all")
TITLES = {PER_THREAD: "Each thread has its own trampoline, as in FreeBSD's kinst",
          SHARED: "All threads share one trampoline (incorrect)"}


@dataclass(frozen=True)
class FiringRow:
    """One event of a run, with the instruction count at which the event happens.

    :param trampoline: trampoline that the run writes, or an empty string.
    :param holds: instruction in the trampoline after the write.
    """

    position: int
    run: int
    text: str
    trampoline: str = ""
    holds: str = ""


@dataclass(frozen=True)
class PlayedRuns:
    """Events of the runs in a schedule that was executed with one kind of trampoline."""

    title: str
    runs: tuple[str, ...]
    rows: list[FiringRow]
    outcome: str

    def lines(self, number: int) -> Iterator[str]:
        """Yield the events as lines of text, in one column per run.

        :param number: number for the heading.
        """
        yield f"{number}. {self.title}"
        yield ""
        yield "".join(f"   {LETTERS[n]}  {text}".ljust(WIDTH)
                      for n, text in enumerate(self.runs)).rstrip()
        for row in self.rows:
            yield " " * (3 + WIDTH * row.run) + row.text
        yield f"   {self.outcome}"
        yield ""

    def pictures(self) -> Pictures[LaneRow]:
        """Return the pictures of the events, with one lane per run."""
        return lane_pictures(
            [f"{LETTERS[n]}  {text}" for n, text in enumerate(self.runs)],
            [LaneRow(row.run, (row.text,), ((row.trampoline, row.holds),) if row.holds else ())
             for row in self.rows], self.outcome)

    def steps(self) -> list[Step]:
        """Return the steps of the explanation: the start, and the outcome with a table."""
        table = Table(tuple(f"{LETTERS[n]}  {text}" for n, text in enumerate(self.runs)), tuple(
            tuple(row.text if row.run == n else "" for n in range(len(self.runs)))
            for row in self.rows))
        return [Step(BEGIN, "The runs begin", (f"{self.title}.",)),
                Step(END, "Outcome", (f"{self.outcome}.", table))]


def played_runs(image: Image, runs: Runs, schedule: str, memory: int, cpus: int | None
                ) -> Iterator[PlayedRuns]:
    """Execute a schedule with each kind of trampoline, and yield the events of the runs.

    :param runs: the runs and their breakpoints; ``trampolines`` is ignored.
    :param schedule: text of the schedule.
    :raises KinstError: invalid runs, schedule or breakpoints.
    """
    arch = arch_of(image).name
    if trap_of(guest_of(image, arch), arch).kernel_effects:
        raise KinstError(f"{image.path}: has no trampolines to share: {NO_TRAMPOLINES}")
    runs.parsed()
    turns = read_schedule(schedule, len(runs.texts))
    image = for_runs(image, len(runs.texts), cpus)
    for trampolines, title in TITLES.items():
        chosen = Runs(runs.texts, runs.setup, "", runs.probes, trampolines)
        stage, _judge = stage_of(image, chosen, memory)
        stage.limit = MOST_INSTRUCTIONS
        pieces: list[bytes] = []
        flow = Flow(stage.machine.engine, pieces.append)
        try:
            played = stage.play(turns)
            flow.flush()
        finally:
            flow.close()
        rows = sorted(_rows(stage, played, b"".join(pieces)), key=lambda row: row.position)
        yield PlayedRuns(title, tuple(runs.texts), rows[-MAX_ROWS:], _outcome(stage, played))


def runs_page(image: Image, schedule: str, found: Sequence[PlayedRuns]) -> str:
    """Return an HTML page that plays the runs with both kinds of trampoline side by side."""
    steps = {NAMES[number]: one.steps() for number, one in enumerate(found)}
    films = {NAMES[number]: film(one.pictures()) for number, one in enumerate(found)}
    return page_beside(
        f"{' and '.join(found[0].runs)}, schedule {schedule}", f"{catalog.described(image)}; "
        "each row belongs to one run.", list(steps), beside(steps), {},
        together(films, [BEGIN, END]), {}, "The runs, one step after the other")


def _rows(stage: Stage, played: Played, flow: bytes) -> Iterator[FiringRow]:
    """Yield rows for the returns from trampolines, followed by rows for the other events.

    A stable sort by position keeps this order for rows at the same position.
    """
    assert stage.probed is not None
    symbols, area = stage.machine.image.symbols, stage.probed.area
    position, within = stage.begin, set[int]()
    for value, count, kind in ENTRY.iter_unpack(flow):
        if kind != FlowKind.FLOW_PIECE:
            continue
        run = _run_at(played, position)
        if run is not None and value in area:
            within.add(run)
        elif run in within:
            within.discard(run)
            yield FiringRow(position, run, f"continues at {symbols.where(value)}")
        position += count
    # With one trampoline per run, name each trampoline after the run that writes it.
    alone = {event.at: event.run for event in stage.probed.events if event.holds}
    own = len(set(alone.values())) == len(alone) > 1
    for event in stage.probed.events:
        whose = f"{LETTERS[event.run]}'s trampoline" if own else "the trampoline"
        yield FiringRow(event.position, event.run, event.text, whose, event.holds)


def _run_at(played: Played, position: int) -> int | None:
    return next((one.run for one in played.stretches if one.begin <= position < one.end), None)


def _outcome(stage: Stage, played: Played) -> str:
    end = played.end
    if end is None:
        return "; ".join(f"{LETTERS[n]} returns {value:#x}"
                         for n, value in sorted(played.results.items()))
    if end.reason is StopReason.PANIC:
        return f"the kernel panics: {end.detail or 'at ' + hex(end.pc)}"
    return f"execution stops: {end}"
