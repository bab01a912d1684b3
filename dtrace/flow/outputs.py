"""Output formats of a control flow; each is written while the flow is produced."""

import json
from collections.abc import Callable, Iterator
from typing import IO, Protocol

from dtrace.bpf.interpreter import signed
from dtrace.debug.debug_data import Sources
from dtrace.flow.call_lines import CallLines
from dtrace.flow.call_tree import CallTree, lines
from dtrace.flow.code import KernelCode
from dtrace.flow.flame_graph import of_threads, svg
from dtrace.flow.perfetto import PerfettoTrace
from dtrace.flow.walk import Listener, Walk
from emu.elf.symbols import Symbol
from emu.replay.flow import ENTRY, PIECE, SKEW, Executed, Head, Piece

TEXT, JSON, CALLS, TREE, PERFETTO, FLAME = "text", "json", "calls", "tree", "perfetto", "flame"
MOST_WAITING = 1 << 18  # maximum number of instructions held back until their effects are read
FORMATS = (TEXT, JSON, CALLS, TREE, PERFETTO, FLAME)


class Output(Protocol):
    """Writer of one output format."""

    def take(self, piece: Piece) -> None:
        """Process the next piece of the flow."""

    def finish(self) -> None:
        """Write the remaining output at the end of the flow."""


class _Walked:
    """Output format that shows function calls, which a ``Walk`` reconstructs.

    :param finish: called after all functions were left.
    """

    def __init__(self, code: KernelCode, head: Head, listener: Listener,
                 finish: Callable[[], None]) -> None:
        self._walk = Walk(code, head, listener)
        self._finish = finish

    def take(self, piece: Piece) -> None:
        if isinstance(piece, bytes):
            self._walk.follow(piece)

    def finish(self) -> None:
        self._walk.end()
        self._finish()


class _Instructions:
    """Output format with a line for each instruction and its effects."""

    def __init__(self, code: KernelCode, head: Head, show: Callable[[str], None],
                 as_json: bool) -> None:
        self._code, self._show, self._json = code, show, as_json
        self._sources = Sources(code.image)
        self._position = head.begin.instructions
        self._skew = head.begin.time - head.begin.instructions
        self._texts: dict[int, tuple[str, str, str]] = {}
        self._lines: dict[int, list[tuple[int, int, str]]] = {}
        # (position, skew, address) of each instruction whose effects come later in the flow.
        self._waiting: list[tuple[int, int, int]] = []
        self._steps = head.steps

    def take(self, piece: Piece) -> None:
        if not isinstance(piece, bytes):
            done = {step.position: step for step in piece}
            for position, skew, address in self._waiting:
                self._row(position, skew, address, done.get(position))
            self._waiting.clear()
            return
        for value, count, kind in ENTRY.iter_unpack(piece):
            if kind == SKEW:
                self._skew = signed(value)
            elif kind == PIECE:
                addresses = self._code.addresses(value, count)
                for n, address in enumerate(addresses):
                    if self._steps and len(self._waiting) < MOST_WAITING:
                        self._waiting.append((self._position + n, self._skew, address))
                    else:
                        self._flush()
                        self._row(self._position + n, self._skew, address, None)
                self._position += count

    def _flush(self) -> None:
        for position, skew, address in self._waiting:
            self._row(position, skew, address, None)
        self._waiting.clear()

    def finish(self) -> None:
        self._flush()

    def _text(self, address: int) -> tuple[str, str, str]:
        """Return (function+offset, instruction, source line) of an address."""
        found = self._texts.get(address)
        if found is None:
            image = self._code.image
            symbol = image.symbols.function_at(address) or image.symbols.label_at(address)
            where = f"{address:#x}" if symbol is None else (
                f"{symbol.name}+{address - symbol.address:#x}")
            code = self._code.instruction(address)
            found = self._texts[address] = (
                where, self._code.arch.disassemble(code, address) if code else "?",
                self._line_of(symbol, address))
        return found

    def _line_of(self, function: Symbol | None, address: int) -> str:
        """Return the ``file:line`` of an address; cache the lines of the whole function."""
        if function is None or not function.size:
            return ""
        rows = self._lines.get(function.address)
        if rows is None:
            rows = self._lines[function.address] = self._sources.lines(
                function.address, function.address + function.size)
        return next((line for low, high, line in rows if low <= address < high), "")

    def _row(self, position: int, skew: int, address: int, step: Executed | None) -> None:
        where, text, line = self._text(address)
        if self._json:
            row: dict[str, object] = {"position": position, "time": position + skew, "pc": address,
                                      "at": where, "instruction": text, "line": line or None}
            if step is not None:
                row["registers"] = step.registers
                row["stores"] = [{"address": at, "physical": physical, "data": data.hex()}
                                 for at, physical, data in step.stores]
            self._show(json.dumps(row))
            return
        changes = ""
        if step is not None:
            changes = "".join(
                [f"  {name}={value:#x}" for name, value in step.registers.items()]
                + [f"  [{f'{at:#x}' if at is not None else f'physical {physical:#x}'}]="
                   f"{int.from_bytes(data, 'little'):#x}" for at, physical, data in step.stores])
        self._show(f"{position:>12}  {where:<36} {text:<40}{changes}".rstrip())


def output(kind: str, code: KernelCode, head: Head, file: IO[bytes], title: str,
           names: dict[int, str], marks: list[str]) -> Output:
    """Return the writer of a format.

    :param names: names of threads by address; may be completed while the flow is written.
    :param marks: names of the marks of ``code``.
    :raises KinstError: if a required library is not installed.
    """
    def show(line: str) -> None:
        file.write(line.encode("utf-8", "replace") + b"\n")

    def nothing() -> None:
        return None

    def write(parts: Iterator[str], end: str = "") -> None:
        for part in parts:
            file.write((part + end).encode("utf-8", "replace"))

    if kind in (TEXT, JSON):
        return _Instructions(code, head, show, kind == JSON)
    if kind == CALLS:
        return _Walked(code, head, CallLines(show, names, marks), nothing)
    if kind == PERFETTO:
        trace = PerfettoTrace(file, title, names, marks)
        return _Walked(code, head, trace, trace.finish)
    tree = CallTree()
    if kind == TREE:
        return _Walked(code, head, tree, lambda: write(lines(tree.finish(), names), "\n"))
    return _Walked(code, head, tree, lambda: write(svg(of_threads(tree.finish(), names), title)))
