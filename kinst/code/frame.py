"""Stack frame at an instruction, found by following the code of the function.

In an epilogue, the straight-line code up to the return restores the registers that the prologue
saved, so it shows where the caller's registers are.  In a prologue, the straight-line code from the
start of the function shows how far the stack pointer was lowered.  Debug data describes this too,
but clang omits the epilogues of arm64 and riscv64, and assembly code has no debug data at all.
"""

from collections.abc import Callable
from dataclasses import dataclass

from emu.arch.arch import Arch
from emu.elf.symbols import Symbol
from kinst.code.convention import CONVENTIONS
from kinst.code.dataflow import EFFECTS
from kinst.code.operands import OPERANDS
from kinst.code.stack_effect import STACK_EFFECTS, StackEffect
from kinst.relocation.trap import GuestTrap
from kinst.relocation.verdict import ConditionalJump, Jump, Verdict

MOST = 64  # maximum number of instructions in a prologue or epilogue
MOST_BODY = 4096  # maximum number of instructions of a function before the one in question
WORD = 8
LONGEST = 16  # maximum length of an instruction in bytes
LONGEST_CALL = 9  # the same for a call


@dataclass(frozen=True)
class CodeFrame:
    """Stack frame at an instruction: locations of the caller's registers.

    :param base: the register from which the caller's stack pointer is computed.
    :param offset: bytes to add to ``base`` for the caller's stack pointer.
    :param saved: (register, bytes from the caller's stack pointer) of each register in memory,
        including the program counter unless it is in ``link``.
    :param link: the register with the return address; empty if the address is in memory.
    """

    base: str
    offset: int
    saved: tuple[tuple[str, int], ...]
    link: str = ""


class FrameFollower:
    """Analyzer that finds stack frames by following code of one architecture.

    :param read: returns the code at an address, without breakpoints; fewer bytes where it ends.
    :param starts: returns whether a function starts at an address, so that a jump there may be a
        tail call; false for the cold part of a function, whose frame is still in place.
    """

    def __init__(self, arch: Arch, trap: GuestTrap, read: Callable[[int, int], bytes],
                 starts: Callable[[int], bool]) -> None:
        self._arch, self._trap, self._read, self._starts = arch, trap, read, starts
        self._stack_effect = STACK_EFFECTS[arch.name]
        self._effect, self._operands = EFFECTS[arch.name], OPERANDS[arch.name]

    def in_epilogue(self, function: Symbol, address: int) -> CodeFrame | None:
        """Return the frame at an instruction of an epilogue, or None outside epilogues.

        The code from there must lead to a return in a straight line, without calls.
        """
        arch = self._arch
        state = _Epilogue(arch)
        before = self._before(function, address)
        for _ in range(MOST):
            found = self._instruction(address)
            if found is None:
                return None
            code, verdict = found
            if self._trap.instructions.is_return(code):
                return self._known(state.frame())
            target = self._trap.instructions.jump_target(before, verdict)
            if target is not None:
                if not function.address <= target < function.address + function.size:
                    return self._known(state.frame()) if self._starts(target) else None
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
            address += len(code)
        return None

    def _instruction(self, address: int) -> tuple[bytes, Verdict] | None:
        """Return the bytes and the verdict of an instruction, or None if the code is unknown."""
        code = self._read(address, LONGEST)
        length, verdict = self._trap.instructions.classify(code, address)
        return (code[:length], verdict) if 0 < length <= len(code) else None

    def _before(self, function: Symbol, address: int) -> Verdict | None:
        """Return the instruction before an indirect jump, or None.

        It may contain a part of the jump's target.
        """
        table = self._trap.instructions
        if table.links(table.classify(self._read(address, LONGEST), address)[1]) is not False:
            return None
        at, before = function.address, None
        for _ in range(MOST_BODY):
            if at >= address:
                break
            found = self._instruction(at)
            if found is None:
                return None
            code, before = found
            at += len(code)
        return before if at == address else None

    def in_prologue(self, function: Symbol, address: int) -> CodeFrame | None:
        """Return the frame at an instruction of a prologue, or None outside prologues.

        The start of the function must lead to the instruction in a straight line, past branches
        that may leave it, and the frame register must still be the caller's, or have been saved on
        the stack.  Behind such a branch, code that makes calls may lead back to the instruction, so
        a return address that has been saved is read from the stack.
        """
        arch, at, lowered = self._arch, function.address, 0
        frame_register, preserved = arch.frame_record[0], CONVENTIONS[arch.name].preserved
        saved, changed = dict[str, int](), set[str]()  # register -> offset from the caller's frame
        returns: int | None = None  # offset from the caller's frame of the return address
        branched = False
        for _ in range(MOST):
            if at >= address:
                break
            found = self._instruction(at)
            if found is None:
                return None
            code, verdict = found
            if isinstance(verdict, ConditionalJump):
                branched = True
            elif self._ends(verdict, code):
                return None
            change = self._stack_effect(code)
            if change.base or {arch.sp, arch.link} & change.lost:
                return None
            for register, offset in change.saves:
                if register in preserved and register not in changed:
                    saved.setdefault(register, offset - lowered)
                if register == arch.link and returns is None:
                    returns = offset - lowered
            changed |= change.lost
            if frame_register in changed and frame_register not in saved:
                return None
            lowered -= change.change
            at += len(code)
        if at != address:
            return None
        if arch.link is None:
            return self._pushed(lowered, saved)
        if branched and returns is not None:
            return CodeFrame(arch.sp, lowered, (*saved.items(), (arch.pc, returns)))
        return CodeFrame(arch.sp, lowered, tuple(saved.items()), arch.link)

    def _known(self, frame: CodeFrame | None) -> CodeFrame | None:
        """Return a frame if its caller's registers are general registers, and otherwise None."""
        general = {*self._arch.dwarf_registers, self._arch.pc}
        if frame is None or not {frame.base, *(name for name, _at in frame.saved)} <= general:
            return None
        return frame

    def in_body(self, function: Symbol, address: int, is_return: bool) -> CodeFrame | None:
        """Return the frame at an instruction after a prologue, or None if it is unknown.

        The stack pointer must be what the prologue made it, which ends at the first jump or call.
        None: the function makes a frame record, lowers the stack pointer after its prologue, too,
        or changes it in another way.

        :param is_return: whether the address is a return address.
        """
        arch, at, lowered = self._arch, function.address, 0
        preserved = CONVENTIONS[arch.name].preserved | {arch.link}
        saved, changed = dict[str, int](), set[str]()
        prologue = True
        for _ in range(MOST_BODY):
            if at >= address:
                break
            found = self._instruction(at)
            if found is None:
                return None
            code, verdict = found
            prologue = prologue and not self._ends(verdict, code)
            change = self._stack_effect(code)
            if self._makes_record(code, at):
                return None
            if not prologue:
                if change.change < 0 or arch.sp in change.lost:
                    return None
                at += len(code)
                continue
            if change.base or arch.sp in change.lost:
                return None
            for register, offset in change.saves:
                if register in preserved and register not in changed:
                    saved.setdefault(register, offset - lowered)
            changed |= change.lost
            lowered -= change.change
            at += len(code)
        if at != address:
            return None
        if arch.link is None:
            return self._pushed(lowered, saved)
        if arch.link in saved:
            saved[arch.pc] = saved.pop(arch.link)
            return CodeFrame(arch.sp, lowered, tuple(saved.items()))
        return None if is_return else CodeFrame(arch.sp, lowered, tuple(saved.items()), arch.link)

    def _makes_record(self, code: bytes, address: int) -> bool:
        """Return whether an instruction computes the frame pointer from the stack pointer."""
        arch, effect = self._arch, self._effect(code)
        register = arch.frame_record[0]
        return register in effect.writes and register not in effect.loads and any(
            arch.sp in (one.register, one.base) for one in self._operands(code, address).operands)

    def _pushed(self, lowered: int, saved: dict[str, int]) -> CodeFrame:
        """Return the frame of a function that was called with its return address on the stack.

        :param saved: register -> bytes from the stack pointer at the function's first instruction.
        """
        arch = self._arch
        return CodeFrame(arch.sp, lowered + WORD, (
            (arch.pc, -WORD), *((register, at - WORD) for register, at in saved.items())))

    def follows_call(self, address: int) -> bool:
        """Return whether the instruction before an address is a call."""
        table = self._trap.instructions
        for size in range(2, LONGEST_CALL + 1):
            code = self._read(address - size, size)
            length, verdict = table.classify(code, address - size)
            if length == size == len(code) and (
                    table.call_target(None, verdict) is not None or table.links(verdict)):
                return True
        return False

    def _ends(self, verdict: Verdict, code: bytes) -> bool:
        table = self._trap.instructions
        return (isinstance(verdict, Jump | ConditionalJump) or table.is_return(code)
                or table.links(verdict) is not None
                or table.call_target(None, verdict) is not None)


class _Epilogue:
    """Stack pointer and loaded registers at a point in an epilogue."""

    def __init__(self, arch: Arch) -> None:
        self._arch = arch
        self._base, self._change = arch.sp, 0
        self._loaded: dict[str, int] = {}  # register -> offset of its saved value from ``_base``
        self._stored: set[str] = set()
        self._lost: set[str] = set()

    def take(self, effect: StackEffect, stored: set[str]) -> bool:
        """Add an instruction's effect; return False if no epilogue can contain the instruction."""
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
                self._base, at = base, offset  # the LEAVE instruction
            else:
                self._lost.add(register)  # loaded from a data structure, not from the frame
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
        """Return the caller's frame just before the return, or None if unknown."""
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
