"""The way that a recorded run takes through the code, and the file it is kept in.

A flow is a sequence of entries: pieces of straight code (an address, and how many instructions from
there on were executed), and between them what is so from there on: the thread, virtual time beyond
the instructions, that an exception or interrupt was taken.  The file has parts
(``emu/replay/parts.py``): HEAD, once; FLOW, coded entries (``_pieces.pyx``); STEPS, what single
instructions did; TAIL, where it ends and what its threads are called.
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emu.arch.architectures import ARCHITECTURES
from emu.host.bounded_json import check
from emu.host.printable import plain
from emu.machine.machine import StopReason, Until
from emu.replay._pieces import PieceCoder, PieceDecoder
from emu.replay.inputs import Position, ReplayError, position_from_json, position_to_json
from emu.replay.parts import FEW_VALUES, PartReader, PartWriter
from emu.replay.player import Player
from emu.replay.recording import BUILD_ID, SHAPE
from emu.unicorn._flow import Flow, FlowKind
from emu.unicorn.running_thread import newer, thread_words

HEAD, FLOW, STEPS, TAIL = b"FLOW", b"PCES", b"STEP", b"TAIL"
ENTRY = struct.Struct("<QII")  # value, count, FlowKind
PIECE, THREAD, SKEW, TAKEN = (int(kind) for kind in (
    FlowKind.FLOW_PIECE, FlowKind.FLOW_THREAD, FlowKind.FLOW_SKEW, FlowKind.FLOW_TAKEN))
CHUNK = 2_000_000  # instructions between two looks at where the thread is kept
MOST = 1 << 17  # entries of a part; the engine gives half as many at once
MAX_FLOW = 1 << 26  # bytes of a part of entries
MAX_STEPS = 1 << 26  # bytes of a part of steps, and of values in it
MAX_STEP_VALUES = 1 << 22
MOST_STEPS = 1 << 14  # in a part
MAX_TAIL = 1 << 24  # bytes
MAX_NAMES = 1 << 16
MAX_NAME = 64
MAX_STACK = 1000
AGAIN = "trace it again"


@dataclass(frozen=True)
class Executed:
    """What one instruction did.

    :param registers: those that it changed, after it.
    :param stores: (virtual address where it is known, else None, physical address, bytes).
    """

    position: int
    pc: int
    registers: dict[str, int]
    stores: tuple[tuple[int | None, int, bytes], ...]


Piece = bytes | list[Executed]  # whole entries, or steps of those before


def flow(player: Player, end: Position | int) -> Iterator[bytes]:
    """The flow from where a player stands to a position, or a count of instructions: whole entries,
    now and then.

    :raises KeyboardInterrupt: by the user's wish.
    """
    machine = player.machine
    found: list[bytes] = []
    words = thread_words(machine)
    collected = Flow(machine.engine, found.append, words)
    try:
        last = end.instructions if isinstance(end, Position) else end
        while (here := player.position).instructions < last or (
                isinstance(end, Position) and here < end):
            count = here.instructions + CHUNK
            if count < last or not isinstance(end, Position):
                stop = player.run(Until(instructions=min(count, last)))
            else:
                stop = player.advance(end)
            if stop is not None and stop.reason is StopReason.INTERRUPTED:
                raise KeyboardInterrupt
            if (now := newer(words, thread_words(machine))) != words:
                words = now
                collected.watch_words(words)
            yield from found
            found.clear()
    finally:
        collected.close()
    yield from found


@dataclass(frozen=True)
class Head:
    """:param begin: where the flow begins.
    :param thread: that runs there: the address of its ``struct thread``; 0: there is none yet.
    :param stack: what is on the stack there, outer ones first: (an address in a function, the
        address that its callee returns to; None: it is not known).
    :param steps: whether what single instructions did comes behind their entries.
    """

    architecture: str
    build_id: str
    begin: Position
    thread: int = 0
    stack: tuple[tuple[int, int | None], ...] = ()
    steps: bool = False


@dataclass(frozen=True)
class Tail:
    """:param threads: their names, by the address of their ``struct thread``."""

    end: Position
    threads: dict[int, str]


class FlowWriter:
    """Writes a flow to a file, as it comes.

    :raises ReplayError: here and later, when it cannot be written.
    """

    def __init__(self, path: Path, head: Head) -> None:
        self._coder = PieceCoder()
        self._writer = PartWriter(path, [(HEAD, json.dumps({
            "architecture": head.architecture, "build_id": head.build_id,
            "begin": position_to_json(head.begin), "thread": head.thread,
            "stack": head.stack, "steps": head.steps}).encode())])

    @property
    def size(self) -> int:
        return self._writer.size

    @property
    def instructions(self) -> int:
        return self._coder.instructions

    def write(self, piece: Piece) -> None:
        if isinstance(piece, bytes):
            self._writer.write(FLOW, self._coder.code(piece))
        else:
            rows = [[s.position, s.pc, s.registers,
                     [[at, physical, data.hex()] for at, physical, data in s.stores]]
                    for s in piece]
            for first in range(0, len(rows), MOST_STEPS):
                text = json.dumps(rows[first : first + MOST_STEPS]).encode()
                try:
                    check(text, MAX_STEP_VALUES)
                except ValueError:
                    raise ReplayError(f"{self._writer.path}: {MOST_STEPS} instructions have "
                                      "changed too much for a trace of steps") from None
                self._writer.write(STEPS, text)

    def end(self, tail: Tail) -> None:
        self._writer.write(TAIL, json.dumps({
            "end": position_to_json(tail.end),
            "threads": {str(at): name for at, name in tail.threads.items()}}).encode())
        self._writer.close()

    def close(self) -> None:
        self._writer.close()


@dataclass
class FlowFile:
    """A flow in a file.

    :ivar tail: None where the writer did not come to it.
    :ivar problem: why the file ends before its end; empty: it does not.
    :raises ReplayError: when it is none, or damaged within a part.
    """

    path: Path
    head: Head = field(init=False)
    tail: Tail | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._reader = reader = PartReader(self.path)
        self.problem = reader.problem
        if not reader.parts or reader.parts[0][0] != HEAD:
            raise ReplayError(f"{self.path}: is no instruction trace (kinst replay --trace-insns "
                              "writes one)")
        try:
            self.head = _head(reader.json(reader.parts[0]))
            if reader.parts[-1][0] == TAIL:
                self.tail = _tail(reader.json(
                    reader.parts[-1], MAX_TAIL, 2 * MAX_NAMES + FEW_VALUES))
            elif not self.problem:
                self.problem = "it is cut off"
        except SHAPE as error:
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> ReplayError:
        return ReplayError(f"{self.path}: damaged ({type(error).__name__} in a part); {AGAIN}")

    def pieces(self) -> Iterator[Piece]:
        """What was written, in its order."""
        decoder = PieceDecoder()
        for part in self._reader.parts[1:]:
            try:
                if part[0] == FLOW:
                    yield decoder.decode(self._reader.content(part, MAX_FLOW), MOST)
                elif part[0] == STEPS:
                    yield [_step(row) for row in
                           self._reader.json(part, MAX_STEPS, MAX_STEP_VALUES)]
            except SHAPE as error:
                raise self._damaged(error) from None


def _head(row: Any) -> Head:
    stack = tuple((at, back) for at, back in row["stack"])
    head = Head(row["architecture"], row["build_id"], position_from_json(row["begin"]),
                row["thread"], stack, row["steps"] is True)
    if not all(type(number) is int for at, back in stack for number in (at, back or 0)) \
            or type(head.thread) is not int or len(stack) > MAX_STACK:
        raise ValueError("a stack of no kind")
    if head.architecture not in ARCHITECTURES or not BUILD_ID.fullmatch(head.build_id):
        raise ValueError("of no kernel")
    return head


def _tail(row: Any) -> Tail:
    threads = {int(at): plain(str(name)[:MAX_NAME]) for at, name in row["threads"].items()}
    if len(threads) > MAX_NAMES:
        raise ValueError("too many threads")
    return Tail(position_from_json(row["end"]), threads)


def _step(row: Any) -> Executed:
    position, pc, registers, stores = row
    if not (type(position) is type(pc) is int and isinstance(registers, dict)
            and all(type(value) is int for value in registers.values())):
        raise ValueError("a step of no kind")
    if not all((at is None or type(at) is int) and type(physical) is int
               for at, physical, _data in stores):
        raise ValueError("a store of no kind")
    return Executed(position, pc, registers, tuple(
        (at, physical, bytes.fromhex(data)) for at, physical, data in stores))
