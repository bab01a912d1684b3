"""A function's frame at an instruction, found by following its code.

From an instruction in an epilogue, the straight line to the return restores what the prologue has
saved; what is left of it says where the caller's registers are. In a prologue the straight line
from the function's begin says how far the stack pointer was lowered. Debug data describes this too,
but clang leaves out the epilogues of arm64 and riscv64, and assembly has no debug data at all.
"""

from collections.abc import Callable
from dataclasses import dataclass

from emu.arch.arch import Arch
from emu.elf.symbols import Symbol
from kinst.code.dataflow import EFFECTS
from kinst.code.stack_effect import STACK_EFFECTS, StackEffect
from kinst.relocation.trap import GuestTrap
from kinst.relocation.verdict import ConditionalJump, Jump, Verdict

MOST = 64  # instructions of a prologue or epilogue
WORD = 8
LONGEST = 16  # bytes of an instruction


@dataclass(frozen=True)
class CodeFrame:
    """Where a caller's registers are.

    :param base: the caller's stack pointer is this register's value ...
    :param offset: ... plus so many bytes.
    :param saved: (register, bytes from the caller's stack pointer) of each that is in memory; the
        program counter is among them, unless it is in ``link``.
    :param link: the register with the return address.
    """

    base: str
    offset: int
    saved: tuple[tuple[str, int], ...]
    link: str = ""


class FrameFollower:
    """Finds frames in the code of one architecture.

    :param read: gives the code at an address, without breakpoints; fewer bytes where it ends.
    :param starts: tells whether a function begins at an address that may be jumped to in place of
        a return; a cold part of a function, whose frame is still in place, is not one.
    """

    def __init__(self, arch: Arch, trap: GuestTrap, read: Callable[[int, int], bytes],
                 starts: Callable[[int], bool]) -> None:
        self._arch, self._trap, self._read, self._starts = arch, trap, read, starts
        self._stack_effect = STACK_EFFECTS[arch.name]
        self._effect = EFFECTS[arch.name]

    def in_epilogue(self, function: Symbol, address: int) -> CodeFrame | None:
        """The frame at an instruction from which the code leads to a return in a straight line,
        without calls; None elsewhere."""
        arch = self._arch
        state = _Epilogue(arch)
        before: Verdict | None = None
        for _ in range(MOST):
            code = self._read(address, LONGEST)
            length, verdict = self._trap.instructions.classify(code, address)
            code = code[:length]
            if not length:
                return None
            if self._trap.instructions.is_return(code):
                return state.frame()
            target = self._trap.instructions.jump_target(before, verdict)
            if target is not None:
                if not function.address <= target < function.address + function.size:
                    return state.frame() if self._starts(target) else None  # a tail call
                address, before = target, verdict
                continue
            if not isinstance(verdict, ConditionalJump):
                if self._trap.instructions.links(verdict) is not None or isinstance(verdict, Jump):
                    return None
                if self._trap.instructions.call_target(before, verdict) is not None:
                    return None
                stored = {name for name in self._effect(code).stores if name is not None}
                if not state.take(self._stack_effect(code), stored):
                    return None
            before = verdict
            address += length
        return None

    def in_prologue(self, function: Symbol, address: int) -> CodeFrame | None:
        """The frame at an instruction that the function's begin leads to in a straight line, while
        the frame register is still the caller's; None elsewhere."""
        arch, at, lowered = self._arch, function.address, 0
        frame_register = arch.frame_record[0]
        for _ in range(MOST):
            if at >= address:
                break
            code = self._read(at, LONGEST)
            length, verdict = self._trap.instructions.classify(code, at)
            code = code[:length]
            if not length or self._ends(verdict, code):
                return None
            change = self._stack_effect(code)
            if change.base or {arch.sp, frame_register, arch.link} & change.lost:
                return None
            lowered -= change.change
            at += length
        if at != address:
            return None
        if arch.link is not None:
            return CodeFrame(arch.sp, lowered, (), arch.link)
        return CodeFrame(arch.sp, lowered + WORD, ((arch.pc, -WORD),))

    def _ends(self, verdict: Verdict, code: bytes) -> bool:
        known = self._trap.instructions
        return (isinstance(verdict, Jump | ConditionalJump) or known.is_return(code)
                or known.links(verdict) is not None
                or known.call_target(None, verdict) is not None)


class _Epilogue:
    """The registers on the way: where the stack pointer is and what was loaded from where."""

    def __init__(self, arch: Arch) -> None:
        self._arch = arch
        self._base, self._change = arch.sp, 0
        self._loaded: dict[str, int] = {}  # bytes from ``_base``
        self._stored: set[str] = set()
        self._lost: set[str] = set()

    def take(self, effect: StackEffect, stored: set[str]) -> bool:
        """Follow one instruction; false when it is none of an epilogue."""
        sp = self._arch.sp
        if sp in effect.lost or (effect.change < 0 and not effect.base):
            return False
        self._stored |= stored
        for register, base, offset in effect.loads:
            if base == sp:
                at = self._change + offset
            elif base == self._base and base not in self._loaded:
                at = offset
            elif base in self._loaded or base in self._lost:
                return False
            elif register == self._arch.frame_record[0] and base == register and not self._loaded:
                self._base, at = base, offset  # LEAVE
            else:
                self._lost.add(register)  # of some structure: no register of the caller's
                continue
            if register in self._stored:
                return False
            self._loaded[register] = at
            self._lost.discard(register)
        for register in effect.lost:
            self._loaded.pop(register, None)
            self._lost.add(register)
        if effect.base:
            if effect.base in self._lost or (
                    effect.base != self._base and (self._loaded.keys() - {effect.base}
                                                   or self._base != sp)):
                return False
            self._base, self._change = effect.base, effect.change
        else:
            self._change += effect.change
        return True

    def frame(self) -> CodeFrame | None:
        """The caller's frame when the next instruction returns."""
        arch = self._arch
        if {arch.frame_record[0], arch.link} & self._lost:
            return None
        end = self._change + (WORD if arch.link is None else 0)
        saved = [(register, at - end) for register, at in self._loaded.items()
                 if register != arch.link]
        if arch.link is None:
            saved.append((arch.pc, -WORD))
        elif arch.link in self._loaded:
            saved.append((arch.pc, self._loaded[arch.link] - end))
            return CodeFrame(self._base, end, tuple(saved))
        return CodeFrame(self._base, end, tuple(saved), arch.link or "")
