"""Tracking of inline copies on machines that handle their breakpoints in Python.

The native counterpart is ``_inline.pxi``.
"""

from typing import Protocol

from kinst.code.listing import ProbedInstruction
from kinst.probes._dispatch import Dispatcher
from kinst.relocation.trap import GuestTrap
from kinst.relocation.verdict import Copy, Refuse, RegisterState, Rewrite

ENTERS, WAY_OUT, CALLS_OUT = 1, 2, 3  # roles of a probe in its inline copy
SAME_STACK = 1 << 20  # maximum distance in bytes between two stack pointers into the same stack


class ReadableState(Protocol):
    """The interrupted registers and memory."""

    def get(self, register: str) -> int:
        """Return the value of a register."""
        ...

    def load(self, address: int, size: int) -> int:
        """Return the value of ``size`` bytes in memory."""
        ...


class _Peek(RegisterState):
    """State for a trial emulation of an instruction; discards all writes."""

    def __init__(self, state: ReadableState) -> None:
        self._state = state

    def get(self, register: str) -> int:
        return self._state.get(register)

    def set(self, register: str, value: int) -> None:
        return

    def set_vector(self, number: int, value: int) -> None:
        return

    def load(self, address: int, size: int) -> int:
        return self._state.load(address, size)

    def store(self, address: int, size: int, value: int) -> None:
        return


def goes_out(trap: GuestTrap, ranges: list[tuple[int, int]], instruction: ProbedInstruction,
             state: ReadableState) -> bool:
    """Return whether an instruction that is about to be executed leaves an inline copy."""
    verdict = instruction.verdict
    if (isinstance(verdict, Refuse | Copy | Rewrite)
            or trap.instructions.is_return(instruction.code)):
        return True
    pc = verdict.next_pc(_Peek(state))
    return not any(low <= pc < high for low, high in ranges)


class InlineCopies:
    """Inline copies that a thread is executing."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._active: list[tuple[int, int]] = []  # (copy, stack pointer at the copy's entry)

    def enter(self, number: int, sp: int) -> bool:
        """Record that the thread enters a probe's inline copy; return whether the probe fires."""
        membership = self._dispatcher.copy_of(number)
        assert membership is not None
        copy, _role, silent = membership
        sp += self._dispatcher.lowered_at(number)
        loops = self._dispatcher.loops_at(number)
        for index in range(len(self._active) - 1, -1, -1):
            other, entered = self._active[index]
            if other == copy and entered == sp and loops:
                return False
            if other == copy and 0 < entered - sp < SAME_STACK:
                break
            if other == copy and 0 <= sp - entered < SAME_STACK:
                del self._active[index]
        self._active.append((copy, sp))
        return not silent

    def leave(self, number: int) -> bool:
        """Record that the thread has left a probe's inline copy; return whether the probe fires."""
        membership = self._dispatcher.copy_of(number)
        assert membership is not None
        copy, _role, silent = membership
        for index in range(len(self._active) - 1, -1, -1):
            if self._active[index][0] == copy:
                del self._active[index]
                return not silent
        return False
