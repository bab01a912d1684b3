"""Firings of several runs beside each other, in one order: with a trampoline for each thread, and
with one that all share."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from emu.architectures import arch_of
from emu.elf import Image
from emu.errors import KinstError
from emu.guests import guest_of
from emu.machine import StopReason
from emu.unicorn._engine import Flow, FlowKind
from kinst.rewritten_trampolines import PER_THREAD, SHARED
from kinst.trap import NO_TRAMPOLINES, trap_of
from kinst_emu.explore.exploration import Runs, for_runs, stage_of
from kinst_emu.explore.order import LETTERS, read_order
from kinst_emu.explore.stage import Played, Stage

ENTRY = struct.Struct("<QII")  # of Flow
MAX_ROWS = 400
MOST_INSTRUCTIONS = 10_000_000  # of an order
WIDTH = 66
TITLES = {PER_THREAD: "Each thread has a trampoline of its own, as FreeBSD's kinst gives it",
          SHARED: "All threads share one trampoline (done wrong)"}


@dataclass(frozen=True)
class FiringRow:
    """What a run does, at a count of the machine's instructions."""

    position: int
    run: int
    text: str


def explained_runs(image: Image, runs: Runs, schedule: str, memory: int, cpus: int | None
                   ) -> Iterator[str]:
    """Lines of both.

    :param runs: with probes; their ``trampolines`` do not count.
    :raises KinstError: for runs, an order or probes that there cannot be.
    """
    arch = arch_of(image).name
    if trap_of(guest_of(image, arch), arch).told:
        raise KinstError(f"{image.path}: {NO_TRAMPOLINES}: there are no trampolines that threads "
                         "could share")
    runs.parsed()
    order = read_order(schedule, len(runs.texts))
    image = for_runs(image, len(runs.texts), cpus)
    for number, (trampolines, title) in enumerate(TITLES.items(), 1):
        chosen = Runs(runs.texts, runs.setup, "", runs.probes, trampolines)
        stage, _judge = stage_of(image, chosen, memory)
        yield f"{number}. {title}"
        yield ""
        stage.limit = MOST_INSTRUCTIONS
        pieces: list[bytes] = []
        flow = Flow(stage.machine.engine, pieces.append)
        try:
            played = stage.play(order)
            flow.flush()
        finally:
            flow.close()
        yield "".join(f"   {LETTERS[n]}  {text}".ljust(WIDTH)
                      for n, text in enumerate(runs.texts)).rstrip()
        rows = sorted(_rows(stage, played, b"".join(pieces)), key=lambda row: row.position)
        for row in rows[-MAX_ROWS:]:
            yield " " * (3 + WIDTH * row.run) + row.text
        yield f"   {_outcome(stage, played)}"
        yield ""


def _rows(stage: Stage, played: Played, flow: bytes) -> Iterator[FiringRow]:
    """Where runs go on behind a trampoline, then what they did there: in this order where it is at
    one position."""
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
            yield FiringRow(position, run, f"goes on at {symbols.where(value)}")
        position += count
    for position, run, text in stage.probed.events:
        yield FiringRow(position, run, text)


def _run_at(played: Played, position: int) -> int | None:
    return next((one.run for one in played.stretches if one.begin <= position < one.end), None)


def _outcome(stage: Stage, played: Played) -> str:
    end = played.end
    if end is None:
        return "; ".join(f"{LETTERS[n]} gives {value:#x}"
                         for n, value in sorted(played.results.items()))
    if end.reason is StopReason.PANIC:
        return f"the kernel panics: {end.detail or 'at ' + hex(end.pc)}"
    return f"it ends there: {end}"
