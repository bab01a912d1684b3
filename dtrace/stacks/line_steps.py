"""Steps through code by source lines and functions, forward and backward, as in gdb."""

import bisect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from dtrace.debug.debug_index import debug_index
from dtrace.flow.code import KernelCode
from dtrace.flow.control import EXIT, ControlFlow
from dtrace.flow.windows import Windows
from dtrace.stacks.source_frames import SourceFrame, SourceFrames
from emu.elf.symbols import Symbol
from emu.gdb.target import PlayedTarget, Poll, StopEvent, Target, Why
from emu.host.errors import KinstError
from kinst.code.transfer import Transfer, ending
from kinst.relocation.trap import TRAPS

MAX_STEPS = 100_000  # maximum number of instructions that ``step`` executes
UNKNOWN = "?"  # line of code that the compiler attributes to no line


@dataclass(frozen=True)
class Mark:
    """Place of an instruction in the source.

    :param copies: numbers of the inlined functions and of the function around them in the debug
        data, innermost first; empty without debug data.
    :param line: ``file:line``, or ``?``.
    """

    copies: tuple[int, ...]
    line: str


@dataclass(frozen=True)
class Activation:
    """Call of a function that has not returned yet.

    :param back: address to which it returns.
    :param sp: stack pointer after it has returned.
    """

    back: int
    sp: int


class _Function:
    """Instructions of a function, each with those that may be executed after and before it.

    A jump from one part of a function to another may lead to each block there.

    :param parts: control flow of the function's parts, such as ``NAME`` and ``NAME.cold``.
    """

    def __init__(self, parts: Sequence[ControlFlow]) -> None:
        self._after: dict[int, tuple[int, ...]] = {}
        self._before: dict[int, list[int]] = {}
        self._sorted: list[int] | None = None
        for part in parts:
            others = tuple(start for other in parts if other is not part for start in other.blocks)
            for block in part.blocks.values():
                self._after |= {one: (following,) for one, following in pairwise(block.addresses)}
                known = tuple(to for to in block.following if to != EXIT)
                self._after[block.addresses[-1]] = known + (
                    others if EXIT in block.following else ())
        for address, following in self._after.items():
            for to in following:
                self._before.setdefault(to, []).append(address)

    def containing(self, address: int) -> int:
        """Return the address of the instruction that contains an address."""
        if self._sorted is None:
            self._sorted = sorted(self._after)
        at = bisect.bisect_right(self._sorted, address) - 1
        return self._sorted[at] if at >= 0 else address

    def after(self, address: int) -> Iterable[int]:
        """Return the instructions that may be executed after an instruction."""
        return self._after.get(address, ())

    def before(self, address: int) -> Iterable[int]:
        """Return the instructions that may be executed before an instruction."""
        return self._before.get(address, ())


class LineSteps:
    """Steps of a live machine or a recording.

    Each step returns what stopped it: ``Why.BREAKPOINT`` or ``Why.STEP`` if it was completed.
    A function that is called on the way, or by another thread, does not stop the steps of its
    caller, even if it is the same function.

    :param target: the machine, or the recording; the backward steps need a recording.
    :param frames: reader of the machine's frames.
    """

    def __init__(self, target: Target, frames: SourceFrames) -> None:
        self._target, self._frames = target, frames
        self._machine = target.machine
        image = self._machine.image
        self._index = debug_index(image) if frames.sources.known else None
        self._code = KernelCode(image)
        self._marks: dict[int, Mark] = {}
        self._functions: dict[int, _Function] = {}
        self._windows: Windows | None = None

    # -- places -----------------------------------------------------------------------------------

    def mark(self, pc: int) -> Mark:
        """Return the place of an instruction in the source."""
        found = self._marks.get(pc)
        if found is None:
            copies = () if self._index is None else tuple(
                copy.number for copy in self._index.stack(pc))
            found = self._marks[pc] = Mark(copies, self._frames.sources.line(pc))
        return found

    def _symbols(self, pc: int) -> Iterator[Symbol]:
        """Yield the symbols with the code of the function at an instruction, its own first."""
        symbols, seen = self._machine.image.symbols, set[int]()
        stack = self._index.stack(pc) if self._index is not None else []
        for at in (pc, *(low for low, _high in (stack[-1].pieces if stack else ()))):
            symbol = symbols.function_at(at)
            if symbol is not None and symbol.address not in seen:
                seen.add(symbol.address)
                yield symbol

    def _function(self, pc: int) -> "_Function":
        """Return the code of the function at an instruction.

        :raises KinstError: if no function is known there, or its code cannot be decoded.
        """
        symbols = list(self._symbols(pc))
        if not symbols:
            raise KinstError(f"{pc:#x} is not in a C function of the kernel: step by instructions "
                             "here, or go to another place")
        first = symbols[0].address
        found = self._functions.get(first)
        if found is None:
            found = self._functions[first] = _Function(
                [ControlFlow(self._code, symbol) for symbol in symbols])
        return found

    def _first(self, pc: int, neighbors: Callable[[int], Iterable[int]],
               inside: Callable[[Mark], bool]) -> set[int]:
        """Return the instructions at which execution from an instruction first leaves a region.

        :param neighbors: returns the instructions that may follow, or precede, an instruction.
        :param inside: whether a place belongs to the region.
        """
        seen, found, todo = {pc}, set[int](), [pc]
        while todo:
            for address in neighbors(todo.pop()):
                if address in seen:
                    continue
                seen.add(address)
                if inside(self.mark(address)):
                    todo.append(address)
                else:
                    found.add(address)
        return found

    def _entry(self, pc: int) -> int:
        """Return the address of the first instruction of the function at an instruction."""
        stack = self._index.stack(pc) if self._index is not None else []
        if stack and stack[-1].begins is not None:
            return stack[-1].begins
        symbol = self._machine.image.symbols.function_at(pc)
        return pc if symbol is None else symbol.address

    def _activation(self, frame: int = 0) -> Activation | None:
        """Return the call that a stack frame belongs to, or None if the caller is unknown."""
        machine = self._machine
        stack = self._frames.physical(machine.read_register, frame + 1)
        caller = self._frames.stacks.caller(stack[frame]) if len(stack) > frame else None
        if caller is None:
            return None
        return Activation(caller[machine.arch.pc], caller[machine.arch.sp])

    # -- running ----------------------------------------------------------------------------------

    @contextmanager
    def _breaking(self, addresses: Collection[int]) -> Iterator[None]:
        before, self._target.breakpoints = self._target.breakpoints, set()
        try:
            for address in addresses:
                self._target.break_at(address)
            yield
        finally:
            self._target.breakpoints = before

    def _run(self, stops: Collection[int], activation: Activation | None, poll: Poll,
             go: Callable[[Poll], StopEvent]) -> StopEvent:
        """Run until one of the addresses is reached in an activation, or the activation returns.

        :param go: the target's method that runs forward or backward.
        """
        machine, forward = self._machine, go == self._target.go
        returns = {activation.back} if activation is not None and forward else set[int]()
        with self._breaking({*stops, *returns}):
            while True:
                event = go(poll)
                if event.why is not Why.BREAKPOINT:
                    return event
                if activation is not None and machine.pc in returns and (
                        machine.sp == activation.sp):
                    return event
                if machine.pc in stops and (activation is None
                                            or self._activation() == activation):
                    return event

    # -- forward ----------------------------------------------------------------------------------

    def _check_lines(self) -> None:
        if self._index is None:
            raise KinstError(f"{self._machine.image.path}: the kernel has no debug data, so its "
                             "lines are unknown: step by instructions")

    def next(self, poll: Poll) -> StopEvent:
        """Run to the next line of the current function, over calls, or to its caller.

        :raises KinstError: if lines are unknown here.
        """
        self._check_lines()
        pc = self._machine.pc
        here = self.mark(pc)
        stops = self._first(pc, self._function(pc).after, lambda mark: not _leaves(mark, here))
        return self._run(stops, self._activation(), poll, self._target.go)

    def step(self, poll: Poll) -> StopEvent:
        """Run to the next line, also if it is in a function that is called.

        Exceptions, interrupts and other CPUs in between do not stop it, except directly after a
        call or return; it stops where the kernel returns to a program.

        :raises KinstError: if lines are unknown here, or none is reached; a recording is then where
            it was.
        """
        self._check_lines()
        machine = self._machine
        here, back = self.mark(machine.pc), self._position()
        for number in range(MAX_STEPS):
            pc, sp = machine.pc, machine.sp
            event = self._target.step()
            if event.why is Why.STEP and not self._continues(pc, machine.pc):
                event = self._resumed({pc, pc + len(self._code.instruction(pc))}, sp, poll)
                if event.why is not Why.BREAKPOINT:
                    return event
            elif event.why is not Why.STEP or not machine.image.holds_code(machine.pc):
                return event
            mark = self.mark(machine.pc)
            if mark.line != UNKNOWN and mark != here:
                return StopEvent(Why.STEP)
            if number % 100 == 99 and poll():
                return StopEvent(Why.INTERRUPTED)
        back()
        raise KinstError(f"no other source line was reached within {MAX_STEPS} instructions")

    def _position(self) -> Callable[[], None]:
        """Return a callback that moves a recording back to where it is now."""
        target = self._target
        if not isinstance(target, PlayedTarget):
            return lambda: None
        here = target.player.position
        return lambda: target.seek(here)

    def _continues(self, pc: int, following: int) -> bool:
        """Return whether an instruction leads to another one, without an exception in between."""
        code = self._code.instruction(pc)
        if not code:
            return True
        end = ending(TRAPS[self._code.arch.name], code, pc)
        if end.transfer in (Transfer.NONE, Transfer.BRANCH, Transfer.JUMP):
            return following == end.target or (
                following == end.after and end.transfer is not Transfer.JUMP)
        return True

    def _resumed(self, addresses: set[int], sp: int, poll: Poll) -> StopEvent:
        """Run until code that was interrupted goes on.

        :param sp: stack pointer of the code.
        """
        with self._breaking(addresses):
            while True:
                event = self._target.go(poll)
                if event.why is not Why.BREAKPOINT or self._machine.sp == sp:
                    return event

    def reach(self, addresses: Collection[int], back: bool, poll: Poll) -> StopEvent:
        """Run to the next execution of one of the instructions, or back to the last one."""
        return self._run(addresses, None, poll, self._played().back if back else self._target.go)

    def finish(self, frame: SourceFrame, poll: Poll) -> StopEvent:
        """Run until a function on the stack has returned to its caller.

        :raises KinstError: if its caller is unknown.
        """
        activation = self._activation(frame.frame)
        stops = set[int]()
        if frame.copy is not None and frame.inlined:
            number, function = frame.copy.number, self._function(frame.code)
            stops = self._first(function.containing(frame.code), function.after,
                                lambda mark: number in mark.copies)
        if activation is None and not stops:
            raise KinstError(f"cannot finish {frame.function}: its caller is unknown")
        return self._run(stops, activation, poll, self._target.go)

    # -- backward ---------------------------------------------------------------------------------

    def back_next(self, poll: Poll) -> StopEvent:
        """Go back to the beginning of the current line, or else of the line before, over calls.

        From a function's first instruction, go back to its call.
        """
        target, machine = self._played(), self._machine
        self._check_lines()
        pc = machine.pc
        function, entry = self._function(pc), self._entry(pc)
        if pc == entry:
            return target.back_step()
        here, activation = self.mark(pc), self._activation()

        def is_own(mark: Mark) -> bool:
            return mark.line != UNKNOWN and (mark.copies == here.copies or _leaves(mark, here))

        stops = self._first(pc, function.before, lambda mark: not is_own(mark)) | {entry}
        event = self._run(stops, activation, poll, target.back)
        if event.why is not Why.BREAKPOINT or machine.pc == entry:
            return event
        there, last = target.player.position, machine.pc
        line = self.mark(last)
        stops = self._first(last, function.before, lambda mark: mark == line or not is_own(mark))
        event = self._run(stops | {entry}, activation, poll, target.back)
        if event.why is Why.BREAKPOINT:
            if self.mark(machine.pc) == line:
                return event
            stops = self._first(machine.pc, function.after, lambda mark: mark != line)
            return self._run(stops, activation, poll, target.go)
        target.seek(there)
        return event if event.why is Why.INTERRUPTED else StopEvent(Why.BREAKPOINT)

    def _run_before(self, mark: Mark, poll: Poll) -> int | None:
        """Return where the uninterrupted run of instructions with a mark begins before now.

        :return: an instruction count; None if ``poll`` has ended the search.
        """
        target = self._played()
        first, at = target.player.recording.start.position.instructions, target.count
        for pc, count in self._pcs_before(at):
            if self.mark(pc) != mark:
                return count + 1
            if poll():
                return None
        return first

    def _pcs_before(self, at: int) -> Iterator[tuple[int, int]]:
        """Yield the executed instructions before a count, the last one first, with their counts."""
        target = self._played()
        if self._windows is None:
            self._windows = Windows(target.player, self._code)
        first = target.player.recording.start.position.instructions
        while at > first:
            window = self._windows.before(at)
            for index in range(at - window.begin - 1, -1, -1):
                yield window.pcs[index], window.begin + index
            at = window.begin

    def back_step(self, poll: Poll) -> StopEvent:
        """Go back to the beginning of the current line, or else of the line executed before.

        That may be a line of an exception handler, or of another CPU.
        """
        target = self._played()
        self._check_lines()
        here, last = target.player.position, None
        for number, (pc, count) in enumerate(self._pcs_before(target.count)):
            mark = self.mark(pc)
            if mark.line != UNKNOWN:
                target.seek(count)
                begin = self._run_before(mark, poll)
                last = here.instructions if begin is None else begin
                break
            if number % 1000 == 999 and poll():
                last = here.instructions
                break
        if last is None:
            target.seek(target.player.recording.start.position)
            return StopEvent(Why.BEGIN)
        if last == here.instructions:
            target.seek(here)
            return StopEvent(Why.INTERRUPTED)
        target.seek(last)
        return StopEvent(Why.STEP)

    def back_finish(self, frame: SourceFrame, poll: Poll) -> StopEvent:
        """Go back to the call of a function on the stack."""
        target = self._played()
        entry, activation = self._entry(frame.code), self._activation(frame.frame)
        if activation is None:
            raise KinstError(f"cannot go back to the call of {frame.function}: its caller is "
                             "unknown")
        if frame.copy is not None and frame.inlined:
            number, function = frame.copy.number, self._function(frame.code)
            stops = self._first(function.containing(frame.code), function.before,
                                lambda mark: number in mark.copies)
            return self._run(stops | {entry}, activation, poll, target.back)
        if self._machine.pc != entry or frame.frame:
            event = self._run({entry}, activation, poll, target.back)
            if event.why is not Why.BREAKPOINT:
                return event
        return target.back_step()

    def _played(self) -> PlayedTarget:
        if not isinstance(self._target, PlayedTarget):
            raise KinstError("only a recording can be walked backward: make one with "
                             "machine.record(FILE)")
        return self._target


def _leaves(mark: Mark, here: Mark) -> bool:
    """Return whether a place is on another line of the same function, or in one around it."""
    if mark.line == UNKNOWN:
        return False
    if mark.copies == here.copies:
        return mark.line != here.line
    outer = len(mark.copies)
    return outer < len(here.copies) and here.copies[-outer:] == mark.copies
