"""Deliberate mistakes (``--what-if``) that show what could go wrong in a firing."""

from collections.abc import Sequence
from copy import copy
from typing import Any, cast

from emu.unicorn.machine import UnicornMachine
from kinst.code.listing import ProbedInstruction
from kinst.probes.breakpoints import DOUBLE, Breakpoints, Fire
from kinst.relocation.instructions import Instructions
from kinst.relocation.verdict import Copy, Rewrite, Verdict

COPY = "copy"  # mistake: copy the displaced instruction unchanged, whatever its verdict
# mistake: share a trampoline, so that another thread overwrites it before it is executed
SHARE = "share"
WHAT_IFS = (COPY, SHARE)


class _CopyOf:
    """Instruction tables that classify one chosen instruction as ``Copy``."""

    def __init__(self, instructions: Instructions, code: bytes) -> None:
        self._instructions, self._code = instructions, code

    def classify(self, code: bytes, address: int) -> tuple[int, Verdict]:
        """Return the length and the verdict of an instruction."""
        length, verdict = self._instructions.classify(code, address)
        return length, Copy() if code[:length] == self._code else verdict

    def __getattr__(self, name: str) -> Any:
        return getattr(self._instructions, name)


class CopyingBreakpoints(Breakpoints):
    """Breakpoints that relocate one chosen instruction by copying it, whatever its verdict.

    :param code: bytes of that instruction.
    """

    def __init__(self, machine: UnicornMachine, fire: Fire, code: bytes) -> None:
        super().__init__(machine, fire, DOUBLE, python=True)
        self._instructions = _CopyOf(self.trap.instructions, code)
        self.templates.trap = copy(self.trap)
        self.templates.trap.instructions = cast(Instructions, self._instructions)

    def verdict(self, address: int, code: bytes) -> Verdict:
        """Return an instruction's verdict, which is ``Copy`` for the chosen instruction."""
        return self._instructions.classify(code, address)[1]


def sharing(table: Sequence[ProbedInstruction],
            probed: ProbedInstruction) -> ProbedInstruction | None:
    """Return the next instruction that has a trampoline; if none follows, the table's last one."""
    others = [i for i in table if isinstance(i.verdict, Copy | Rewrite) and i.code != probed.code]
    return next((i for i in others if i.offset > probed.offset), others[-1] if others else None)
