"""A kinst that does it wrong: what would become of a firing then."""

from collections.abc import Sequence
from copy import copy
from typing import Any, cast

from emu.unicorn.machine import UnicornMachine
from kinst.code.listing import ProbedInstruction
from kinst.probes.breakpoints import DOUBLE, Breakpoints, Fire
from kinst.relocation.instructions import Instructions
from kinst.relocation.verdict import Copy, Rewrite, Verdict

COPY = "copy"  # the displaced instruction is copied as it is, whatever it is
SHARE = "share"  # another thread's firing writes the same trampoline before it is executed
WHAT_IFS = (COPY, SHARE)


class _CopyOf:
    """An architecture's tables, by which one instruction is copied."""

    def __init__(self, instructions: Instructions, code: bytes) -> None:
        self._instructions, self._code = instructions, code

    def classify(self, code: bytes, address: int) -> tuple[int, Verdict]:
        length, verdict = self._instructions.classify(code, address)
        return length, Copy() if code[:length] == self._code else verdict

    def __getattr__(self, name: str) -> Any:
        return getattr(self._instructions, name)


class CopyingBreakpoints(Breakpoints):
    """:param code: of the instruction that is copied, whatever its verdict is."""

    def __init__(self, machine: UnicornMachine, fire: Fire, code: bytes) -> None:
        super().__init__(machine, fire, DOUBLE, python=True)
        self._instructions = _CopyOf(self.trap.instructions, code)
        self.templates.trap = copy(self.trap)
        self.templates.trap.instructions = cast(Instructions, self._instructions)

    def verdict(self, address: int, code: bytes) -> Verdict:
        return self._instructions.classify(code, address)[1]


def sharing(table: Sequence[ProbedInstruction],
            probed: ProbedInstruction) -> ProbedInstruction | None:
    """Another instruction of the function that has a trampoline: the next one, or one before."""
    others = [i for i in table if isinstance(i.verdict, Copy | Rewrite) and i.code != probed.code]
    return next((i for i in others if i.offset > probed.offset), others[-1] if others else None)
