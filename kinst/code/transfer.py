"""Where an instruction lets the CPU go on: what a reader of a run needs to tell calls, returns and
jumps from exceptions."""

import enum
from dataclasses import dataclass

from kinst.relocation.trap import GuestTrap
from kinst.relocation.verdict import ConditionalJump, Jump


class Transfer(enum.Enum):
    NONE = enum.auto()  # to the next instruction
    BRANCH = enum.auto()  # there, or to its target
    JUMP = enum.auto()  # to its target
    INDIRECT = enum.auto()  # to what a register or memory says
    CALL = enum.auto()
    RETURN = enum.auto()
    TRAP_RETURN = enum.auto()  # to what an exception interrupted


@dataclass(frozen=True)
class Ending:
    """The last instruction of a piece of straight code.

    :param target: of a BRANCH or JUMP.
    :param after: the address behind it.
    """

    transfer: Transfer
    target: int | None
    after: int


def ending(trap: GuestTrap, code: bytes, address: int) -> Ending:
    """Of one instruction."""
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

