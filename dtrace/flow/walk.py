"""Reconstruction of function calls on the threads of a guest's kernel from a control flow.

A call enters the function that it leads to. A return leaves the function that was called from
before the return address. A jump to another function leaves one and enters the other (a tail
call). An exception or interrupt enters its vector on the thread that it interrupts. Inline copies
are entered and left where the code crosses their boundaries.
"""

import struct
from dataclasses import dataclass, field
from typing import Protocol

from dtrace.bpf.interpreter import signed
from dtrace.flow.code import KernelCode, StraightCode, Stretch
from dwarf.index import Function
from emu.replay.flow import PIECE, SKEW, TAKEN, THREAD, Head
from kinst.code.transfer import Transfer

# How a function was entered.
CALL, TAIL, INTERRUPT, ROOT, INLINE = "call", "tail call", "interrupt", "root", "inline"


class Listener(Protocol):
    """Callbacks for the events of a walk, called in the order of execution.

    ``position`` counts instructions, and ``time`` is in virtual nanoseconds. A thread is the
    address of its ``struct thread``; 0 before any thread exists.
    """

    def enter(self, thread: int, position: int, time: int, name: str, how: str,
              site: int | None) -> None:
        """Handle the entry of a function or inline copy.

        :param site: the address of the instruction before it.
        """

    def leave(self, thread: int, position: int, time: int) -> None:
        """Handle the end of the innermost function or inline copy."""

    def ran(self, thread: int, count: int) -> None:
        """Handle the execution of ``count`` instructions in the innermost function."""

    def mark(self, thread: int, position: int, time: int, number: int) -> None:
        """Handle the execution of a marked instruction."""

    def named(self, thread: int) -> None:
        """Handle the address of the thread that has been reported as thread 0 until now."""


@dataclass(slots=True)
class _Frame:
    """A stack frame.

    :param back: the return address; None if it is unknown.
    :param handles: the frame is that of an exception.
    :param interrupted: the code executed before the exception, which its return continues.
    """

    start: int
    back: int | None
    handles: bool = False
    interrupted: StraightCode | None = None
    inline: list[Function] = field(default_factory=list)


class Walk:
    """Converter of a control flow to function calls.

    :param head: the header of the flow.
    """

    def __init__(self, code: KernelCode, head: Head, listener: Listener) -> None:
        self._code, self._listener = code, listener
        self._position = head.begin.instructions
        self._skew = head.begin.time - self._position
        self._thread = head.thread
        self._threads: dict[int, list[_Frame]] = {self._thread: []}
        self._before: StraightCode | None = None
        self._taken = False
        back: int | None = None
        for address, returns in head.stack:
            name, start, inline = self._code.place(address)
            self._push(name, start, back, ROOT if back is None else CALL)
            self._inline(inline)
            back = returns

    def follow(self, entries: bytes) -> None:
        """Process a part of the control flow, which must consist of complete entries."""
        for value, count, kind in struct.iter_unpack("<QII", entries):
            if kind == PIECE:
                self._piece(value, count)
            elif kind == SKEW:
                self._skew = signed(value)
            elif kind == THREAD:
                self._switch(value)
            elif kind == TAKEN:
                self._taken = True

    def end(self) -> None:
        """Leave all functions on all threads."""
        for thread in list(self._threads):
            self._thread = thread
            while self._threads[thread]:
                self._pop()

    # -- threads and frames -----------------------------------------------------------------------

    def _switch(self, thread: int) -> None:
        if thread == self._thread:
            return
        if not self._thread:
            self._threads[thread] = self._threads.pop(0)
            self._listener.named(thread)
        self._thread = thread
        self._threads.setdefault(thread, [])

    @property
    def _time(self) -> int:
        return self._position + self._skew

    def _push(self, name: str, start: int, back: int | None, how: str) -> None:
        self._threads[self._thread].append(_Frame(start, back))
        site = None if self._before is None else self._before.last
        self._listener.enter(self._thread, self._position, self._time, name, how, site)

    def _pop(self) -> _Frame:
        frame = self._threads[self._thread].pop()
        for _ in range(len(frame.inline) + 1):
            self._listener.leave(self._thread, self._position, self._time)
        return frame

    def _inline(self, wanted: tuple[Function, ...]) -> None:
        frames = self._threads[self._thread]
        if not frames:
            return
        present = frames[-1].inline
        same = 0
        while same < min(len(present), len(wanted)) and present[same].number == wanted[same].number:
            same += 1
        while len(present) > same:
            present.pop()
            self._listener.leave(self._thread, self._position, self._time)
        for copy in wanted[same:]:
            present.append(copy)
            self._listener.enter(self._thread, self._position, self._time, copy.name, INLINE, None)

    # -- pieces -----------------------------------------------------------------------------------

    def _piece(self, address: int, count: int) -> None:
        code = self._code.piece(address, count)
        first = code.stretches[0]
        self._arrive(address, first)
        self._before, self._taken = code, False
        begin, marks = self._position, code.marked
        stretches = code.stretches
        for number, stretch in enumerate(stretches):
            if number:
                self._position = begin + stretch.offset
                self._within(stretch, stretch.enters)
            self._inline(stretch.inline)
            last = number + 1 == len(stretches)
            end = count if last else stretches[number + 1].offset
            for offset, mark in marks:
                if stretch.offset <= offset < end:
                    at = begin + offset
                    self._listener.mark(self._thread, at, at + self._skew, mark)
            self._listener.ran(self._thread, end - stretch.offset)
        self._position = begin + count

    def _arrive(self, address: int, first: Stretch) -> None:
        """Enter or leave functions, as required by the jump to a new piece of code."""
        before = self._before
        if before is not None and self._taken and address != before.ending.after:
            self._push(first.function, first.start, None, INTERRUPT)
            frame = self._threads[self._thread][-1]
            frame.handles, frame.interrupted = True, before
            return
        if before is not None and before.ending.transfer is Transfer.TRAP_RETURN:
            before = self._resume()
        transfer = Transfer.NONE if before is None else before.ending.transfer
        if transfer is Transfer.CALL and before is not None:
            self._push(first.function, first.start, before.ending.after, CALL)
        elif transfer is Transfer.RETURN and self._return(address):
            self._within(first, False)
        else:
            # At the start of the flow, the first function is already on the stack.
            self._within(first, first.enters and self._before is not None)

    def _return(self, address: int) -> bool:
        """Leave functions up to and including the one that returns to an address.

        If no function returns there, leave all functions.

        Return False if an exception is in progress in which no function returns to the address.
        """
        frames = self._threads[self._thread]
        for depth in range(len(frames) - 1, -1, -1):
            if frames[depth].back == address:
                while len(frames) > depth:
                    self._pop()
                return True
            if frames[depth].handles:
                return False
        # The caller is unknown, so all functions on the stack have ended.
        while frames:
            self._pop()
        return True

    def _resume(self) -> StraightCode | None:
        """Leave the innermost exception and return the code that it interrupted."""
        frames = self._threads[self._thread]
        if any(frame.handles for frame in frames):
            while not (frame := self._pop()).handles:
                pass
            return frame.interrupted
        return None

    def _within(self, stretch: Stretch, enters: bool) -> None:
        """Continue in code that was reached without a call, for example by a tail call."""
        frames = self._threads[self._thread]
        if not frames:
            self._push(stretch.function, stretch.start, None, ROOT)
        elif enters or frames[-1].start != stretch.start:
            frame = self._pop()
            self._push(stretch.function, stretch.start, frame.back, TAIL)
            frames[-1].handles, frames[-1].interrupted = frame.handles, frame.interrupted
