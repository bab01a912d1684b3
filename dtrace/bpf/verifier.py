"""Verifier that rejects BPF code that might loop forever or access memory outside its stack frame.

Each function is checked in one pass: all jumps go forward, so the function terminates; registers
and stack bytes are written before they are read; accesses through the frame pointer stay within
512 bytes; calls lead to known helpers or functions, and do not nest too deeply. Both executors
check all other addresses at run time.
"""

from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple

from dtrace.bpf.encoding import (
    BYTES,
    FRAME,
    LOCAL,
    STACK,
    Alu,
    BpfInstruction,
    BpfJump,
    Class,
    EncodingError,
    Size,
    X,
    decode,
)

MAX_DEPTH = 8
ARGUMENTS = range(1, 6)  # argument registers, which a call clobbers
KEPT = range(6, 10)  # callee-saved registers
ONLY_FRAME = ((FRAME, 0),)  # the frame pointer is the only pointer into the frame


class VerifierError(Exception):
    """Error that says which instruction is rejected and why."""


class KnownState(NamedTuple):
    """Facts that hold before an instruction on every path to that instruction.

    :param written: bit mask of the registers that have a value.
    :param frames: (register, distance from the frame's end) of each pointer into the frame.
    :param stack: bit mask of the frame's bytes that have a value, from its low end.
    """

    written: int
    frames: tuple[tuple[int, int], ...]
    stack: int

    def frame(self, register: int) -> int | None:
        """Return the distance of a pointer from the frame's end, or None if it points elsewhere."""
        for one, distance in self.frames:
            if one == register:
                return distance
        return None

    def joined(self, other: "KnownState") -> "KnownState":
        """Return the facts that hold on both of two paths to an instruction."""
        return KnownState(self.written & other.written,
                     tuple(f for f in self.frames if f in other.frames),
                     self.stack & other.stack)


def verify(code: bytes, functions: Iterable[int], helpers: Container[int]) -> None:
    """Reject BPF code that might loop forever or access memory outside its stack frame.

    :param functions: the number of the first instruction of each function.
    :param helpers: the numbers of the helpers that may be called.
    :raises VerifierError: if the program is rejected.
    """
    try:
        instructions = decode(code)
    except EncodingError as error:
        raise VerifierError(str(error)) from None
    starts = sorted(set(functions))
    if not starts or starts[0] != 0 or starts[-1] >= len(instructions):
        raise VerifierError("the first function must begin at instruction 0, and every function "
                            "must contain code")
    calls: dict[int, set[int]] = {}
    for start, end in zip(starts, [*starts[1:], len(instructions)], strict=True):
        calls[start] = _Function(instructions, start, end, starts, helpers).walk()
    _depths(calls)


def _depths(calls: dict[int, set[int]]) -> None:
    """Check that function calls do not nest too deeply; recursion is rejected as well."""
    depths: dict[int, int] = {}
    for _ in range(MAX_DEPTH + 1):
        for start, called in calls.items():
            if all(c in depths for c in called):
                depths[start] = 1 + max([depths[c] for c in called], default=0)
    if len(depths) < len(calls) or any(depth > MAX_DEPTH for depth in depths.values()):
        raise VerifierError(f"function calls are recursive or nest deeper than {MAX_DEPTH} levels")


class _Function:
    def __init__(self, instructions: Sequence[BpfInstruction | None], start: int, end: int,
                 starts: list[int], helpers: Container[int]) -> None:
        self.instructions, self.start, self.end = instructions, start, end
        self.starts, self.helpers = set(starts), helpers
        self.states: dict[int, KnownState] = {}
        self.called: set[int] = set()

    def fail(self, at: int, why: str) -> VerifierError:
        """Return an error that names the instruction and the reason."""
        return VerifierError(f"instruction {at}: {why}")

    def walk(self) -> set[int]:
        """Check all instructions of the function, and return the functions that they call."""
        self.states[self.start] = KnownState(1 << 1 | 1 << FRAME, ONLY_FRAME, 0)
        for at in range(self.start, self.end):
            i, state = self.instructions[at], self.states.get(at)
            if i is None:
                continue
            if state is None:
                raise self.fail(at, "is unreachable")
            self._step(at, i, state)
        return self.called

    def _reach(self, at: int, target: int, state: KnownState) -> None:
        if target <= at:
            raise self.fail(at, "jumps backward")
        if target >= self.end or self.instructions[target] is None:
            raise self.fail(at, "continues or jumps outside the function")
        known = self.states.get(target)
        self.states[target] = state if known is None or known is state else known.joined(state)

    def _read(self, at: int, state: KnownState, register: int) -> None:
        if not state.written >> register & 1:
            raise self.fail(at, f"reads r{register}, which has no value")

    def _wrote(self, at: int, state: KnownState, register: int,
               frame: int | None = None) -> KnownState:
        if register == FRAME:
            raise self.fail(at, "writes the frame pointer")
        frames = state.frames
        if frames != ONLY_FRAME:
            frames = tuple(f for f in frames if f[0] != register)
        elif frame is None and state.written >> register & 1:
            return state
        if frame is not None:
            frames = tuple(sorted((*frames, (register, frame))))
        return KnownState(state.written | 1 << register, frames, state.stack)

    def _step(self, at: int, i: BpfInstruction, state: KnownState) -> None:
        kind = i.opcode & 7
        following = at + (1 if i.wide is None else 2)
        if kind in (Class.ALU, Class.ALU64):
            state = self._alu(at, i, state, kind)
        elif kind in (Class.JMP, Class.JMP32):
            self._jump(at, i, state, kind)
            return
        elif i.wide is not None:
            state = self._wrote(at, state, i.destination)
        else:
            state = self._memory(at, i, state, kind)
        self._reach(at, following, state)

    def _alu(self, at: int, i: BpfInstruction, state: KnownState, kind: int) -> KnownState:
        operation = i.opcode & 0xF0
        frame = None
        if operation != Alu.MOV:
            self._read(at, state, i.destination)
        if i.opcode & X and operation != Alu.END:
            self._read(at, state, i.source)
        if kind == Class.ALU64 and operation == Alu.MOV and i.opcode & X and not i.offset:
            frame = state.frame(i.source)
        if kind == Class.ALU64 and operation == Alu.ADD and not i.opcode & X:
            base = state.frame(i.destination)
            frame = None if base is None else base + i.immediate
        return self._wrote(at, state, i.destination, frame)

    def _memory(self, at: int, i: BpfInstruction, state: KnownState, kind: int) -> KnownState:
        size = BYTES[Size(i.opcode & 0x18)]
        loads = kind == Class.LDX
        base = i.source if loads else i.destination
        self._read(at, state, base)
        if kind == Class.STX:
            self._read(at, state, i.source)
        frame = state.frame(base)
        if frame is not None:
            low = STACK + frame + i.offset
            if not 0 <= low <= STACK - size:
                raise self.fail(at, "accesses memory outside the function's frame")
            mask = ((1 << size) - 1) << low
            if loads and state.stack & mask != mask:
                raise self.fail(at, "reads bytes of the frame that have no value")
            if not loads and state.stack & mask != mask:
                state = KnownState(state.written, state.frames, state.stack | mask)
        return self._wrote(at, state, i.destination) if loads else state

    def _jump(self, at: int, i: BpfInstruction, state: KnownState, kind: int) -> None:
        operation = i.opcode & 0xF0
        if operation == BpfJump.EXIT:
            self._read(at, state, 0)
            return
        if operation == BpfJump.CALL:
            self._reach(at, at + 1, self._call(at, i, state))
            return
        if operation == BpfJump.JA:
            distance = i.immediate if kind == Class.JMP32 else i.offset
            self._reach(at, at + 1 + distance, state)
            return
        self._read(at, state, i.destination)
        if i.opcode & X:
            self._read(at, state, i.source)
        self._reach(at, at + 1 + i.offset, state)
        self._reach(at, at + 1, state)

    def _call(self, at: int, i: BpfInstruction, state: KnownState) -> KnownState:
        if i.source == LOCAL:
            target = at + 1 + i.immediate
            if target not in self.starts:
                raise self.fail(at, "calls an address that is not the start of a function")
            self._read(at, state, 1)
            self.called.add(target)
        elif i.immediate not in self.helpers:
            raise self.fail(at, f"calls helper {i.immediate}, which does not exist")
        written = state.written | 1
        for register in ARGUMENTS:
            written &= ~(1 << register)
        frames = tuple(f for f in state.frames if f[0] in KEPT or f[0] == FRAME)
        return KnownState(written, frames, state.stack)
