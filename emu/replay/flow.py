"""Control flow of a recorded run, and the trace files that store it.

A flow is a sequence of entries.  A piece of straight-line code is an address and the number of
instructions executed from there.  Other entries report a change from that point on: the running
thread, the virtual time beyond the instruction count, or an exception or interrupt that was taken.
The file has parts (``emu/replay/parts.py``): HEAD, once; FLOW, coded entries (``_pieces.pyx``);
STEPS, the effects of single instructions; TAIL, the end position and the names of the threads.
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emu.arch.architectures import ARCHITECTURES
from emu.host.bounded_json import check
from emu.host.printable import plain, printable
from emu.machine.machine import StopReason, Until
from emu.replay._pieces import PieceCoder, PieceDecoder
from emu.replay.inputs import Position, ReplayError, position_from_json, position_to_json
from emu.replay.parts import FEW_VALUES, PartReader, PartWriter
from emu.replay.player import Player
from emu.replay.recording import BUILD_ID, SHAPE
from emu.unicorn._flow import Flow, FlowKind
from emu.unicorn.running_thread import newer, thread_words

HEAD, FLOW, STEPS, TAIL = b"FLOW", b"PCES", b"STEP", b"TAIL"
ENTRY = struct.Struct("<QII")  # flow entry: value, count, FlowKind
PIECE, THREAD, SKEW, TAKEN = (int(kind) for kind in (
    FlowKind.FLOW_PIECE, FlowKind.FLOW_THREAD, FlowKind.FLOW_SKEW, FlowKind.FLOW_TAKEN))
CHUNK = 2_000_000  # number of instructions between checks of the thread pointer's address
MOST = 1 << 17  # maximum number of entries in a part; the engine delivers at most half that at once
MAX_FLOW = 1 << 26  # maximum size of a part's entries in bytes
MAX_STEPS = 1 << 26  # maximum size of a STEPS part in bytes
MAX_STEP_VALUES = 1 << 22  # maximum number of JSON values in a STEPS part
MOST_STEPS = 1 << 14  # maximum number of instructions in a STEPS part
MAX_TAIL = 1 << 24  # maximum size of a TAIL part in bytes
MAX_NAMES = 1 << 16
MAX_NAME = 64
MAX_STACK = 1000
AGAIN = "trace it again"


@dataclass(frozen=True)
class Executed:
    """Effects of one executed instruction.

    :param position: instruction count before it.
    :param registers: new values of the registers that it changed.
    :param stores: (virtual address or None if it is unknown, physical address, bytes).
    """

    position: int
    pc: int
    registers: dict[str, int]
    stores: tuple[tuple[int | None, int, bytes], ...]


Piece = bytes | list[Executed]  # flow entries, or the effects of instructions in earlier entries


def flow(player: Player, end: Position | int) -> Iterator[bytes]:
    """Yield the control flow from the player's position to a position or an instruction count.

    Each item holds one or more complete entries.

    :raises KeyboardInterrupt: if the user interrupts the run.
    """
    machine = player.machine
    entries: list[bytes] = []
    words = thread_words(machine)
    collected = Flow(machine.engine, entries.append, words)
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
            yield from entries
            entries.clear()
    finally:
        collected.close()
    yield from entries


@dataclass(frozen=True)
class Head:
    """Header of a trace file.

    :param begin: position at which the flow begins.
    :param thread: address of the ``struct thread`` running there; 0: no thread exists yet.
    :param stack: call stack there, outermost function first: (address in a function, address to
        which its callee returns; None: unknown).
    :param steps: whether the effects of single instructions follow their entries.
    """

    architecture: str
    build_id: str
    begin: Position
    thread: int = 0
    stack: tuple[tuple[int, int | None], ...] = ()
    steps: bool = False


@dataclass(frozen=True)
class Tail:
    """Final part of a trace file.

    :param threads: names of the threads, by the address of their ``struct thread``.
    """

    end: Position
    threads: dict[int, str]


class FlowWriter:
    """Writer that appends pieces of control flow to a trace file.

    :raises ReplayError: here and in later calls, if the file cannot be written.
    """

    def __init__(self, path: Path, head: Head) -> None:
        self._coder = PieceCoder()
        self._writer = PartWriter(path, [(HEAD, json.dumps({
            "architecture": head.architecture, "build_id": head.build_id,
            "begin": position_to_json(head.begin), "thread": head.thread,
            "stack": head.stack, "steps": head.steps}).encode())])

    @property
    def size(self) -> int:
        """Number of bytes written to the file."""
        return self._writer.size

    @property
    def instructions(self) -> int:
        """Number of instructions written to the file."""
        return self._coder.instructions

    def write(self, piece: Piece) -> None:
        """Write flow entries or the effects of instructions."""
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
                    raise ReplayError(f"{self._writer.path}: cannot write the trace: {MOST_STEPS} "
                                      "instructions changed more registers and memory than one "
                                      "part of the file can hold; leave out --stores") from None
                self._writer.write(STEPS, text)

    def end(self, tail: Tail) -> None:
        """Write the end of the trace, and close the file."""
        self._writer.write(TAIL, json.dumps({
            "end": position_to_json(tail.end),
            "threads": {str(at): name for at, name in tail.threads.items()}}).encode())
        self._writer.close()

    def close(self) -> None:
        """Close the file; unless ``end`` was called, the trace counts as truncated."""
        self._writer.close()


@dataclass
class FlowFile:
    """Reader of a trace file.

    :ivar tail: the end of the trace; None if the writer did not reach it.
    :ivar problem: why reading stopped before the end of the trace; empty if it did not.
    :raises ReplayError: if the file is not a trace, or a part of it is damaged.
    """

    path: Path
    head: Head = field(init=False)
    tail: Tail | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._reader = reader = PartReader(self.path)
        self.problem = reader.problem
        if not reader.parts or reader.parts[0][0] != HEAD:
            raise ReplayError(f"{self.path}: not an instruction trace; create one with kinst "
                              "replay --trace-insns")
        try:
            self.head = _head(reader.json(reader.parts[0]))
            if reader.parts[-1][0] == TAIL:
                self.tail = _tail(reader.json(
                    reader.parts[-1], MAX_TAIL, 2 * MAX_NAMES + FEW_VALUES))
            elif not self.problem:
                self.problem = "the file is truncated"
        except SHAPE as error:
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> ReplayError:
        return ReplayError(f"{self.path}: damaged ({type(error).__name__}: {printable(error)}); "
                           f"{AGAIN}")

    def pieces(self) -> Iterator[Piece]:
        """Yield the flow entries and instruction effects in the order they were written."""
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
        raise ValueError("a trace has an invalid stack or thread")
    if head.architecture not in ARCHITECTURES or not BUILD_ID.fullmatch(head.build_id):
        raise ValueError("a trace has an invalid architecture or build ID")
    return head


def _tail(row: Any) -> Tail:
    threads = {int(at): plain(str(name)[:MAX_NAME]) for at, name in row["threads"].items()}
    if len(threads) > MAX_NAMES:
        raise ValueError("a trace has too many threads")
    return Tail(position_from_json(row["end"]), threads)


def _step(row: Any) -> Executed:
    position, pc, registers, stores = row
    if not (type(position) is type(pc) is int and isinstance(registers, dict)
            and all(type(value) is int for value in registers.values())):
        raise ValueError("the registers or the position of an instruction in a trace are invalid")
    if not all((at is None or type(at) is int) and type(physical) is int
               for at, physical, _data in stores):
        raise ValueError("a memory write in a trace is invalid")
    return Executed(position, pc, registers, tuple(
        (at, physical, bytes.fromhex(data)) for at, physical, data in stores))
