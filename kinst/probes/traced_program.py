"""A process and the program that it runs, as far as probes in it need to know."""

from dataclasses import dataclass

from dwarf.members import offset_of
from dwarf.types import Types
from emu.elf.program import ProgramFile
from emu.guest.guest import ProcessMembers


@dataclass(frozen=True)
class TracedProgram:
    """:param process: its number.
    :param name: that it has while it runs the program.
    :param executed: whether it has yet to execute the program: it is made as another's copy.
    """

    process: int
    name: str
    file: ProgramFile
    executed: bool


@dataclass(frozen=True)
class ProcessOffsets:
    """Where a thread has its process, and that what it is known by, in bytes."""

    process: int
    number: int
    flags: int
    name: int


def offsets(types: Types, members: ProcessMembers) -> ProcessOffsets:
    """:raises MemberError: naming the member that the types lack."""
    return ProcessOffsets(
        offset_of(types, members.thread, members.process),
        *(offset_of(types, members.kind, path) for path in (
            members.number, members.flags, members.name)))
