"""Locations of a kernel's calls to system call functions, and of the functions' arguments.

All system calls go through a few places: the kernel's C entry code calls the function in ``struct
sysent`` with the thread and the address of the call's arguments, which are in the thread.  This
address is computed in the block that ends with the call, and nowhere else.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from dwarf.members import MemberError, offset_of
from dwarf.types import Enumeration, Integer, Member, Pointer, Structure, Types, strip
from emu.elf.image import Image
from emu.guest.guest import CallMembers
from emu.host.errors import KinstError
from kinst.code.listing import ProbedInstruction
from kinst.relocation.trap import GuestTrap
from kinst.relocation.verdict import ConditionalJump, Jump, Refuse

# FreeBSD pads each member of its argument structures to the width of a register.
PADDING = ("_l_", "_r_")
NO_ARGUMENT = "dummy"


class SystemCallError(KinstError):
    """Error raised if the system calls of a kernel cannot be probed."""


@dataclass(frozen=True)
class Offsets:
    """Byte offsets of the thread structure's members that describe the current system call."""

    arguments: int
    entry: int
    value: int
    error: int
    flags: int


def offsets(types: Types, members: CallMembers) -> Offsets:
    """Compute the offsets from the kernel's types.

    :raises SystemCallError: naming the member that the types lack.
    """
    try:
        return Offsets(*(offset_of(types, members.thread, path) for path in (
            members.arguments, members.entry, members.value, members.error, members.flags)))
    except MemberError as error:
        raise SystemCallError(f"system calls cannot be probed: {error}") from None


def is_known(types: Types, image: Image, function: str) -> bool:
    """Return whether the types include a system call's function, or the call needs no function."""
    symbol = image.symbols.find(function)
    return symbol is None or types.function(function, symbol.address) is not None


def arguments(types: Types, image: Image, function: str) -> list[Member]:
    """Return a system call's arguments: the members of the structure that its function takes."""
    symbol = image.symbols.find(function)
    procedure = None if symbol is None else types.function(function, symbol.address)
    if procedure is None or len(procedure.parameters) < 2:
        return []
    argument_type = strip(procedure.parameters[1].type)
    structure = strip(argument_type.target) if isinstance(argument_type, Pointer) else None
    if not isinstance(structure, Structure):
        return []
    return [member for member in structure.members
            if not member.name.endswith(PADDING) and member.name != NO_ARGUMENT]


def width(member: Member) -> int:
    """Return an argument's width in bits: negative if signed, 0 for a full register."""
    argument_type = strip(member.type)
    if isinstance(argument_type, Integer | Enumeration) and argument_type.size < 8:
        return -8 * argument_type.size if argument_type.signed else 8 * argument_type.size
    return 0


def places(trap: GuestTrap, table: list[ProbedInstruction], displacement: int
           ) -> Iterator[tuple[ProbedInstruction, ProbedInstruction]]:
    """Yield pairs: an instruction that calls a system call's function, and the next instruction.

    :param table: the instructions of the function.
    :param displacement: offset of the call's arguments in the thread.
    :raises SystemCallError: when one of the two cannot carry a breakpoint, or a jump leads to the
        second.
    """
    targets = {i.verdict.target for i in table if isinstance(i.verdict, Jump | ConditionalJump)}
    has_arguments = False
    for call, following in pairwise(table):
        has_arguments = trap.instructions.second_argument(call.code) == displacement or (
            has_arguments and call.address not in targets)
        if not getattr(call.verdict, "ends_block", False):
            continue
        if has_arguments and trap.instructions.links(call.verdict):
            for i in (call, following):
                if isinstance(i.verdict, Refuse) or (
                        i is following and i.address in targets):
                    raise SystemCallError(f"{i.address:#x}: no breakpoint can be set at or after "
                                          "the call to a system call's function")
            yield call, following
        has_arguments = False
