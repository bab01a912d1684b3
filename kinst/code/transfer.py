"""Control transfers: where execution continues after an instruction.

They distinguish calls, returns and jumps from exceptions in a recorded run.
"""

import enum
from dataclasses import dataclass

from kinst.relocation.trap import GuestTrap
from kinst.relocation.verdict import ConditionalJump, Jump


class Transfer(enum.Enum):
    """Kind of control transfer at an instruction."""

    NONE = enum.auto()  # execution continues with the next instruction
    BRANCH = enum.auto()  # execution continues with the next instruction or at the target
    JUMP = enum.auto()  # execution continues at the target
    INDIRECT = enum.auto()  # the target address is in a register or in memory
    CALL = enum.auto()
    RETURN = enum.auto()
    TRAP_RETURN = enum.auto()  # execution returns to the code that an exception interrupted


@dataclass(frozen=True)
class Ending:
    """Last instruction of a piece of straight-line code.

    :param target: the target of a BRANCH or JUMP.
    :param after: the address after the instruction.
    """

    transfer: Transfer
    target: int | None
    after: int


def ending(trap: GuestTrap, code: bytes, address: int) -> Ending:
    """Return the control transfer of one instruction."""
    after = address + len(code)
    if trap.instructions.is_return(code):
        return Ending(Transfer.RETURN, None, after)
    if code in trap.instructions.trap_returns:
        return Ending(Transfer.TRAP_RETURN, None, after)
    _length, verdict = trap.instructions.classify(code, address)
    if isinstance(verdict, ConditionalJump):
        return Ending(Transfer.BRANCH, verdict.target, after)
    if isinstance(verdict, Jump):
        return Ending(Transfer.JUMP, verdict.target, after)
    links = trap.instructions.links(verdict)
    if links is not None:
        return Ending(Transfer.CALL if links else Transfer.INDIRECT, None, after)
    return Ending(Transfer.NONE, None, after)

