"""Steps from the code of a function to its caller."""

from dataclasses import dataclass

from dwarf.frames import Rule
from emu.arch.arch import Arch
from emu.elf.symbols import Symbol
from kinst.code.frame import FrameFollower


@dataclass(frozen=True)
class FrameStep:
    """Rule for computing the registers of a frame's caller.

    The caller's frame begins ``offset`` bytes above the value of the register ``base``; this is
    also the caller's stack pointer, except for a trap.

    :param saved: (register, bytes from the caller's frame, size) of each register in memory,
        including the program counter unless it is in ``link``.
    :param link: register with the return address; empty if the address is in memory.
    :param floor: bytes by which the caller's frame may begin below the stack pointer.
    :param above: whether the caller's frame must begin above this one's, not at the same address.
    :param trap: whether the registers are those of interrupted code, in a trap frame or the frame
        of a signal handler; the stack may be another one.
    """

    base: str
    offset: int
    saved: tuple[tuple[str, int, int], ...]
    link: str = ""
    floor: int = 0
    above: bool = False
    trap: bool = False


def find_step(arch: Arch, follower: FrameFollower, pc: int, is_return: bool, rule: Rule | None,
              function: Symbol | None, begins: bool) -> FrameStep | None:
    """Return the step from an address to its caller, or None at the end of the stack.

    :param is_return: whether the address is a return address.
    :param rule: what the call frame information says about the address, or None if nothing.
    :param function: the function around the address, or None if it is unknown.
    :param begins: whether a function begins at the address.
    """
    known = arch.dwarf_registers
    if not is_return and function is not None and (rule is None or arch.link is not None):
        # On architectures with a link register, call frame information does not describe all
        # epilogues, and prologues only from their last instruction on.
        initial = rule is not None and rule.base < len(known) and (
            known[rule.base] == arch.sp and not rule.offset)
        followed = _followed(follower, function, pc, rule is None or initial)
        if followed is not None:
            return followed
    if rule is not None and rule.base < len(known) and known[rule.base]:
        return _by_rule(arch, rule, is_return)
    if not is_return and begins:
        # A function has no stack frame yet at its first instruction.
        if arch.link is not None:
            return FrameStep(arch.sp, 0, (), arch.link)
        return FrameStep(arch.sp, 8, ((arch.pc, -8, 8),))
    return record_step(arch)


def record_step(arch: Arch) -> FrameStep:
    """Return the step to the caller in code that keeps frame records."""
    register, saved_at, returns = arch.frame_record
    size = max(0, 8 + returns)
    record = ((arch.pc, returns - size, 8), (register, saved_at - size, 8))
    return FrameStep(register, size, record, floor=size)


def _by_rule(arch: Arch, rule: Rule, is_return: bool) -> FrameStep | None:
    known = arch.dwarf_registers
    if rule.ends or rule.interrupted:  # interrupted code is found by the kernel's types
        return None
    saved = [(known[number], offset, 8) for number, offset in rule.saved.items()
             if number < len(known) and known[number]]
    if rule.returns in rule.saved:
        saved.append((arch.pc, rule.saved[rule.returns], 8))
    elif is_return or arch.link is None:
        return None
    link = "" if rule.returns in rule.saved else arch.link or ""
    return FrameStep(known[rule.base], rule.offset, tuple(saved), link,
                     above=is_return)


def _followed(follower: FrameFollower, function: Symbol, pc: int, prologue: bool
              ) -> FrameStep | None:
    """Return the step computed by following the function's code, or None if that fails.

    :param prologue: whether the instruction may be in the function's prologue, too.
    """
    frame = follower.in_epilogue(function, pc)
    if frame is None and prologue:
        frame = follower.in_prologue(function, pc)
    if frame is None:
        return None
    saved = tuple((register, offset, 8) for register, offset in frame.saved)
    return FrameStep(frame.base, frame.offset, saved, frame.link)
