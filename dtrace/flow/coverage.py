"""Executed code of a recorded run: counts of instructions, basic blocks, lines and branches.

The counts come from a control flow (``emu/replay/flow.py``).  Code of user programs is not counted.
"""

import bisect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from dtrace.debug.debug_data import Sources
from dtrace.flow.code import KernelCode
from dtrace.flow.control import ControlFlow
from dtrace.flow.user_code import in_program
from emu.elf.symbols import Symbol
from emu.host.errors import KinstError
from emu.replay.flow import ENTRY, PIECE, TAKEN, THREAD
from kinst.code.transfer import Transfer, ending
from kinst.relocation.trap import TRAPS

Piece = tuple[int, int]  # address of straight-line code, and the number of its instructions
MOST = 1 << 24  # maximum number of distinct pieces and transfers


class Coverage:
    """Counts of executed kernel code.

    :param programs: whether the guest runs programs, which have the low addresses.
    :ivar counts: executed instructions: address -> count.
    :ivar taken: conditional branches that jumped: address of the branch -> count.
    """

    def __init__(self, code: KernelCode, programs: bool) -> None:
        self._code, self._trap, self._programs = code, TRAPS[code.arch.name], programs
        self._pieces: Counter[Piece] = Counter()
        self._after: Counter[tuple[Piece, int]] = Counter()  # (piece, address executed next)
        self._before: Piece | None = None
        self._thread = 0
        # Per thread, the pieces that exceptions have interrupted, the outermost first
        self._interrupted: dict[int, list[Piece | None]] = {}
        self._excepted = False
        self._returns: dict[Piece, bool] = {}  # whether a piece ends with a return from a trap
        self.counts: Counter[int] = Counter()
        self.taken: Counter[int] = Counter()

    def follow(self, entries: bytes) -> None:
        """Count a part of a control flow, which must consist of complete entries.

        :raises KinstError: if there is too much different code.
        """
        for value, count, kind in ENTRY.iter_unpack(entries):
            if kind == PIECE:
                self._piece(value, count)
            elif kind == THREAD:
                if value != self._thread:
                    self._before = None  # the switch function does not branch here
                    self._thread = value
            elif kind == TAKEN:
                self._excepted = True
        if len(self._pieces) + len(self._after) > MOST:
            raise KinstError(f"the run executes more than {MOST} different pieces of code; choose "
                             "a shorter one")

    def _piece(self, address: int, count: int) -> None:
        before = self._before
        if self._excepted:
            self._interrupted.setdefault(self._thread, []).append(before)
            self._excepted = False
        elif before is not None:
            if before not in self._returns:
                last = self._last(before)
                code = self._code.instruction(last)
                self._returns[before] = bool(code) and ending(
                    self._trap, code, last).transfer is Transfer.TRAP_RETURN
            if self._returns[before]:
                waiting = self._interrupted.get(self._thread)
                before = waiting.pop() if waiting else None
            if before is not None:
                self._after[before, address] += 1
        if self._programs and in_program(address):
            self._before = None
            return
        piece = address, count
        self._pieces[piece] += 1
        self._before = piece

    def _last(self, piece: Piece) -> int:
        return self._code.addresses(*piece)[-1]

    def finish(self) -> None:
        """Compute ``counts`` and ``taken`` from what was followed since the last call."""
        for (address, count), times in self._pieces.items():
            for at in self._code.addresses(address, count):
                self.counts[at] += times
        for (piece, address), times in self._after.items():
            last = self._last(piece)
            code = self._code.instruction(last)
            end = ending(self._trap, code, last) if code else None
            if (end is not None and end.transfer is Transfer.BRANCH and address == end.target
                    and end.target != end.after):
                self.taken[last] += times
        self._pieces.clear()
        self._after.clear()
        self._interrupted.clear()
        self._before, self._thread, self._excepted = None, 0, False


@dataclass
class FileLines:
    """Coverage of one source file.

    :param lines: line -> count: the sum of the counts of the basic blocks with code of the line.
    :param functions: (name, line of its code) -> number of calls, without those of inline copies.
    :param branches: (line, address of a conditional branch) -> (jumped, did not jump).
    """

    lines: Counter[int] = field(default_factory=Counter)
    functions: Counter[tuple[str, int]] = field(default_factory=Counter)
    branches: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)


class SourceCoverage:
    """Coverage of source files, from the coverage of instructions."""

    def __init__(self, coverage: Coverage, code: KernelCode) -> None:
        self._coverage, self._code = coverage, code
        self._sources = Sources(code.image)
        self.files: dict[str, FileLines] = {}

    def executed(self) -> list[Symbol]:
        """Return the functions of which any instruction was executed, in address order."""
        symbols = self._code.image.symbols
        found = {symbol.address: symbol for address in self._coverage.counts
                 if (symbol := symbols.function_at(address)) is not None}
        return [found[address] for address in sorted(found)]

    def file_of(self, function: Symbol) -> str:
        """Return the source file of a function's first instruction, or an empty string."""
        line = self._sources.line(function.address)
        return "" if line == "?" else line.rpartition(":")[0]

    def add(self, function: Symbol, executed: bool) -> None:
        """Add the lines of a function.

        :param executed: whether any of its instructions was executed.
        """
        end = function.address + function.size
        ranges = self._sources.lines(function.address, end)
        for _begin, _end, line in ranges:
            file, number = _split(line)
            self._file(file).lines[number] += 0
        line = self._sources.line(function.address)
        if line != "?":
            file, number = _split(line)
            self._file(file).functions[function.name, number] += (
                self._coverage.counts[function.address])
        if executed:
            try:
                self._count(ControlFlow(self._code, function), ranges)
            except KinstError:
                return  # its code cannot be decoded: only its lines are known

    def blocks(self, flow: ControlFlow) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yield the basic blocks of a function in address order, and how often each was entered."""
        for start in sorted(flow.blocks):
            addresses = flow.blocks[start].addresses
            yield addresses, self._coverage.counts[addresses[0]]

    def _count(self, flow: ControlFlow, ranges: list[tuple[int, int, str]]) -> None:
        begins = [begin for begin, _end, _line in ranges]
        counts, taken = self._coverage.counts, self._coverage.taken

        def line_of(address: int) -> str:
            at = bisect.bisect_right(begins, address) - 1
            return ranges[at][2] if at >= 0 and address < ranges[at][1] else ""

        for addresses, count in self.blocks(flow):
            for line in {line_of(address) for address in addresses} - {""}:
                file, number = _split(line)
                self._file(file).lines[number] += count
            last, line = addresses[-1], line_of(addresses[-1])
            if line and self._branches(last):
                file, number = _split(line)
                self._file(file).branches[number, last] = taken[last], counts[last] - taken[last]

    def _branches(self, address: int) -> bool:
        code, trap = self._code.instruction(address), TRAPS[self._code.arch.name]
        return bool(code) and ending(trap, code, address).transfer is Transfer.BRANCH

    def _file(self, name: str) -> FileLines:
        return self.files.setdefault(name, FileLines())


def _split(line: str) -> tuple[str, int]:
    file, _colon, number = line.rpartition(":")
    return file, int(number)
