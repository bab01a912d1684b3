"""Instruction traces on the command line: the window to trace, and the output formats."""

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
DEEP = 1000  # maximum depth of a call stack, in frames


def add_options(parser: argparse.ArgumentParser, more: tuple[str, ...] = ()) -> None:
    """Add ``--as``, ``--output`` and ``--mark``.

    :param more: more formats to offer for ``--as``.
    """
    parser.add_argument("--as", dest="format", choices=(*more, *FORMATS),
                        help="output format; text, json: one line per instruction; calls: calls as "
                        "they happen; tree: call tree with totals; perfetto: for "
                        "https://ui.perfetto.dev; flame: flame graph in SVG; trace (only kinst "
                        "replay): compact format that kinst trace reads (default: text; kinst "
                        "replay with --output: trace)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE",
                        help="write to this file (default: standard output)")
    parser.add_argument("--mark", action="append", default=[], metavar="PROBE",
                        help="mark the instructions at which a probe (PROVIDER::FUNCTION:NAME) "
                        "would fire; may be repeated (default: no marks)")


def window(text: str) -> tuple[str, str]:
    """Split ``FROM:TO`` into (from, to); a position may be a probe, which contains colons.

    :raises KinstError: when the text does not consist of two positions.
    """
    parts = text.split(":")
    probes = {provider.name for provider in PROVIDERS}
    first = 4 if parts[0] in probes and len(parts) > 4 else 1
    begin, end = ":".join(parts[:first]), ":".join(parts[first:])
    if len(parts) == first or (":" in end and end.split(":")[0] not in probes):
        raise KinstError(f"--trace-insns '{text[:80]}': give two positions as FROM:TO")
    return begin or "start", end or "end"


def find_window(player: Player, text: str) -> Position:
    """Move the player to the start of a window and return the position of the window's end.

    :param text: the window, as ``FROM:TO``.
    :raises KinstError: when the recording does not reach a position, or TO is before FROM.
    """
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
    """Return the addresses of the matching probes, as one list for each probe description."""
    return [probed(player, text).addresses for text in descriptions]


def stack_of(player: Player) -> tuple[tuple[int, int | None], ...]:
    """Return the call stack at the player's position, outermost frame first.

    Each entry is an address in the calling function and the return address, None in the innermost
    frame.
    """
    machine = player.machine
    frames = list(Stacks(machine).addresses(machine.read_register, DEEP))
    frames.reverse()
    # A return address follows its call instruction, so the preceding byte belongs to the call.
    return tuple((at - is_return, at if is_return else None) for at, is_return in frames)


def check_output(path: Path | None, kind: str, source: Path) -> None:
    """Check that the output can be written before the trace starts.

    :param path: output file; None for standard output.
    :param kind: output format.
    :param source: file that is read, which must not be overwritten.
    :raises KinstError: when the file cannot be written, or a binary format has no file.
    """
    if path is not None:
        if path.exists() and path.samefile(source):
            raise KinstError(f"--output {path}: is also the input file; choose another file")
        check_writable(path, "--output")
    elif kind in (TRACE, PERFETTO):
        raise KinstError(f"--as {kind} is a binary format; give a file with -o")


@contextmanager
def opened(path: Path | None) -> Iterator[IO[bytes]]:
    """Open an output file that is replaced only on success; the path None means standard output."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with replacing(path) as file:
        yield file


def seen_threads(piece: bytes) -> Iterator[int]:
    """Yield the addresses of the threads that appear in a part of an instruction trace."""
    return (value for value, _count, kind in ENTRY.iter_unpack(piece) if kind == THREAD)


def write_trace(player: Player, end: Position, arguments: argparse.Namespace) -> int:
    """Trace a window of a recording, write it in the requested format, and return the exit status.

    :param player: player at the start of the window.
    :param end: end of the window.
    :raises KinstError: when options contradict each other, or the output cannot be written.
    """
    kind = arguments.format or (TRACE if arguments.output is not None else TEXT)
    check_output(arguments.output, kind, player.recording.path)
    details = arguments.registers or arguments.stores
    if details and kind not in (TRACE, TEXT, JSON):
        raise KinstError(f"--registers and --stores cannot be used with --as {kind}")
    machine, begin = player.machine, player.position
    player.give()
    head = Head(machine.arch.name, machine.image.identity, begin, thread_of(machine),
                stack_of(player), details)
    marks = marks_of(player, arguments.mark)
    pieces: Iterable[Piece] = (
        steps(player, end, arguments.registers, arguments.stores) if details else flow(player, end))
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
              f"display it with: kinst trace {arguments.output}")
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
    """Add the names of new threads in ``piece`` to ``names`` before the threads can end."""
    for thread in set(seen_threads(piece)) - names.keys():
        if name := threads.name(thread):
            names[thread] = name
