"""Instruction traces on the command line: where they begin and end, what they become."""

import argparse
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO

from dtrace.calls.positions import go, probed
from dtrace.descriptions.providers import PROVIDERS
from dtrace.flow.code import KernelCode
from dtrace.flow.outputs import FORMATS, JSON, PERFETTO, TEXT, output
from dtrace.flow.steps import steps
from dtrace.stacks.stack import Stacks
from dtrace.stacks.threads import Threads
from emu.host.atomic_file import replacing
from emu.host.errors import KinstError
from emu.host.progress import PROGRESS
from emu.machine.running_thread import thread_of
from emu.replay.flow import ENTRY, THREAD, FlowWriter, Head, Piece, Tail, flow
from emu.replay.inputs import Position
from emu.replay.player import Player
from images.catalog import described
from kinst_emu.terminal.terminal import check_writable

TRACE = "trace"
DEEP = 1000  # frames


def add_options(parser: argparse.ArgumentParser, more: tuple[str, ...] = ()) -> None:
    parser.add_argument("--as", dest="format", choices=(*more, *FORMATS),
                        help="what to write: the trace's own compact format; a line of text or of "
                        "JSON for each instruction; calls, as they happen; a tree of calls, added "
                        "up; Perfetto's format; a flame graph (SVG)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write to this file")
    parser.add_argument("--mark", action="append", default=[], metavar="PROBE",
                        help="mark where a probe would fire (PROVIDER::FUNCTION:NAME)")


def window(text: str) -> tuple[str, str]:
    """(from, to) of ``FROM:TO``; a position may be a probe's, with colons of its own.

    :raises KinstError: when it is none.
    """
    parts = text.split(":")
    probes = {provider.name for provider in PROVIDERS}
    first = 4 if parts[0] in probes and len(parts) > 4 else 1
    begin, end = ":".join(parts[:first]), ":".join(parts[first:])
    if len(parts) == first or (":" in end and end.split(":")[0] not in probes):
        raise KinstError(f"--trace-insns '{text[:80]}': give FROM:TO, two positions")
    return begin or "start", end or "end"


def find_window(player: Player, text: str) -> Position:
    """Bring a recording to the window's start; gives its end."""
    begin, end = window(text)
    _wish(go(player, begin))
    start = player.position
    _wish(go(player, end, start))
    found = player.position
    if found < start:
        raise KinstError(f"--trace-insns {text}: ends at {found}, before its start at {start}")
    _wish(player.seek(start))
    return found


def _wish(stop: object) -> None:
    if stop is not None:
        raise KeyboardInterrupt


def marks_of(player: Player, descriptions: list[str]) -> list[list[int]]:
    """The addresses of probes, of each description."""
    return [probed(player, text).addresses for text in descriptions]


def stack_of(player: Player) -> tuple[tuple[int, int | None], ...]:
    """What is on the stack where a recording stands, outer ones first."""
    machine = player.machine
    frames = list(Stacks(machine).addresses(machine.read_register, DEEP))
    frames.reverse()
    # A frame's address is where its callee returns to.
    return tuple((at - is_return, at if is_return else None) for at, is_return in frames)


def check_output(path: Path | None, kind: str, source: Path) -> None:
    if path is not None:
        if path.exists() and path.samefile(source):
            raise KinstError(f"--output {path}: is the file that is read; give another name")
        check_writable(path, "--output")
    elif kind in (TRACE, PERFETTO):
        raise KinstError(f"--as {kind} is not text; give a file with -o")


@contextmanager
def opened(path: Path | None) -> Iterator[IO[bytes]]:
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with replacing(path) as file:
        yield file


def seen_threads(piece: bytes) -> Iterator[int]:
    return (value for value, _count, kind in ENTRY.iter_unpack(piece) if kind == THREAD)


def write_trace(player: Player, end: Position, arguments: argparse.Namespace) -> int:
    """Trace a window, and write what is asked for."""
    kind = arguments.format or (TRACE if arguments.output is not None else TEXT)
    check_output(arguments.output, kind, arguments.recording)
    looked = arguments.registers or arguments.stores
    if looked and kind not in (TRACE, TEXT, JSON):
        raise KinstError(f"--registers and --stores cannot be shown with --as {kind}")
    machine, begin = player.machine, player.position
    player.give()
    head = Head(machine.arch.name, machine.image.identity, begin, thread_of(machine),
                stack_of(player), looked)
    marks = marks_of(player, arguments.mark)
    pieces: Iterable[Piece] = (
        steps(player, end, arguments.registers, arguments.stores) if looked else flow(player, end))
    threads, names = Threads(machine), dict[int, str]()
    progress = (PROGRESS.working(f"tracing {end.instructions - begin.instructions} instructions")
                if arguments.output is not None or not sys.stdout.isatty() else nullcontext())
    if kind == TRACE:
        writer = FlowWriter(arguments.output, head)
        try:
            with progress:
                for piece in pieces:
                    if isinstance(piece, bytes):
                        _name(threads, names, piece)
                    writer.write(piece)
            writer.end(Tail(end, names))
        finally:
            writer.close()
        count = writer.instructions
        bits = f", {8 * writer.size / count:.2f} bits each" if count else ""
        print(f"traced {count} instructions in {arguments.output} ({writer.size} bytes{bits}); "
              f"look at it by: kinst trace {arguments.output}")
        return 0
    code = KernelCode(machine.image, marks)
    with opened(arguments.output) as file:
        out = output(kind, code, head, file, described(machine.image), names, arguments.mark)
        with progress:
            for piece in pieces:
                if isinstance(piece, bytes):
                    _name(threads, names, piece)
                out.take(piece)
            out.finish()
    if arguments.output is not None:
        print(f"wrote {arguments.output}")
    return 0


def _name(threads: Threads, names: dict[int, str], piece: bytes) -> None:
    """Threads are named when they run; their names may be others when they have ended."""
    for thread in set(seen_threads(piece)) - names.keys():
        if name := threads.name(thread):
            names[thread] = name
