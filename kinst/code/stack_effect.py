"""What an instruction does to the stack pointer, and which registers it loads from the stack.

Enough to follow a function's prologue and epilogue in a straight line, where the debug data does
not describe them (clang describes no epilogues of arm64 and riscv64).
"""

from collections.abc import Callable
from dataclasses import dataclass

from emu.arch.parts import Parts


@dataclass(frozen=True)
class StackEffect:
    """Registers go by the names of ``Arch.registers``.

    :param base: the stack pointer becomes this register's value (empty: its own) ...
    :param change: ... plus so many bytes.
    :param loads: (register, base register, offset) of each 64-bit register that is loaded from
        memory; an offset from the stack pointer counts from its value before the instruction.
    :param lost: registers whose values the instruction changes in any other way.
    """

    base: str = ""
    change: int = 0
    loads: tuple[tuple[str, str, int], ...] = ()
    lost: frozenset[str] = frozenset()


# (bytes of one instruction) -> its effect on the stack
STACK_EFFECTS: Parts[Callable[[bytes], StackEffect]] = Parts("kinst.{}.stack", "stack_effect")
