"""Where a kernel carries out its programs' system calls, and what their arguments are.

All of them go through a few places: the kernel's C code for the entry calls the function that
``struct sysent`` has, with the thread and the call's arguments, which are in the thread.  The
address of these is made in the block that ends with the call, and nowhere else.
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

# FreeBSD's structures for arguments have bytes around each, so that it takes a register's width.
PADDING = ("_l_", "_r_")
NO_ARGUMENT = "dummy"


class SystemCallError(KinstError):
    """This kernel's system calls cannot be probed."""


@dataclass(frozen=True)
class Offsets:
    """Where a thread has what it says of its system call, in bytes."""

    arguments: int
    entry: int
    value: int
    error: int
    flags: int


def offsets(types: Types, members: CallMembers) -> Offsets:
    """:raises SystemCallError: naming the member that the types lack."""
    try:
        return Offsets(*(offset_of(types, members.thread, path) for path in (
            members.arguments, members.entry, members.value, members.error, members.flags)))
    except MemberError as error:
        raise SystemCallError(f"{error}: its system calls cannot be probed") from None


def arguments(types: Types, image: Image, function: str) -> list[Member]:
    """Names and types of a system call's, from those of the function that carries it out."""
    symbol = image.symbols.find(function)
    procedure = None if symbol is None else types.function(function, symbol.address)
    if procedure is None or len(procedure.parameters) < 2:
        return []
    kind = strip(procedure.parameters[1].type)
    structure = strip(kind.target) if isinstance(kind, Pointer) else None
    if not isinstance(structure, Structure):
        return []
    return [member for member in structure.members
            if not member.name.endswith(PADDING) and member.name != NO_ARGUMENT]


def width(member: Member) -> int:
    """An argument's bits, negative with a sign; 0: all that a register has."""
    kind = strip(member.type)
    if isinstance(kind, Integer | Enumeration) and kind.size < 8:
        return -8 * kind.size if kind.signed else 8 * kind.size
    return 0


def places(trap: GuestTrap, table: list[ProbedInstruction], displacement: int
           ) -> Iterator[tuple[ProbedInstruction, ProbedInstruction]]:
    """Where a function calls that of a system call, and the instruction behind the call.

    :param displacement: of the call's arguments, in the thread.
    :raises SystemCallError: when something jumps there, or no breakpoint can stand there.
    """
    targets = {i.verdict.target for i in table if isinstance(i.verdict, Jump | ConditionalJump)}
    made = False
    for call, behind in pairwise(table):
        made = trap.instructions.second_argument(call.code) == displacement or (
            made and call.address not in targets)
        if not getattr(call.verdict, "ends_block", False):
            continue
        if made and trap.instructions.links(call.verdict):
            for i in (call, behind):
                if isinstance(i.verdict, Refuse) or (
                        i is behind and i.address in targets):
                    raise SystemCallError(f"{i.address:#x}: here a system call is carried out, "
                                          "and no breakpoint can stand there")
            yield call, behind
        made = False
