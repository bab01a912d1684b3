"""Effect of an instruction on the stack pointer, and the registers loaded from the stack.

This suffices to follow a straight-line prologue or epilogue that the debug data does not describe
(clang describes no epilogues of arm64 and riscv64).
"""

from collections.abc import Callable
from dataclasses import dataclass

from emu.arch.parts import Parts


@dataclass(frozen=True)
class StackEffect:
    """Effect of one instruction on the stack; registers are named as in ``Arch.registers``.

    :param base: the register from which the stack pointer is set; empty for the stack pointer.
    :param change: bytes added to ``base``.
    :param loads: (register, base register, offset) of each 64-bit register that is loaded from
        memory; an offset from the stack pointer counts from its value before the instruction.
    :param saves: (register, offset) of each 64-bit register that is stored at an offset from the
        stack pointer before the instruction.
    :param lost: registers whose values the instruction changes in any other way.
    """

    base: str = ""
    change: int = 0
    loads: tuple[tuple[str, str, int], ...] = ()
    lost: frozenset[str] = frozenset()
    saves: tuple[tuple[str, int], ...] = ()


# Architecture name -> function that returns an instruction's effect on the stack from its bytes
STACK_EFFECTS: Parts[Callable[[bytes], StackEffect]] = Parts("kinst.{}.stack", "stack_effect")
