"""Programs with probes, and the structure offsets by which their processes are recognized."""

from dataclasses import dataclass

from dwarf.members import offset_of
from dwarf.types import Types
from emu.elf.program import ProgramFile
from emu.guest.guest import ProcessMembers


@dataclass(frozen=True)
class TracedObject:
    """A program or shared object that a process has mapped.

    :param name: name of its module.
    :param moved: how many bytes it was moved from the addresses in the file.
    """

    name: str
    file: ProgramFile
    moved: int


@dataclass(frozen=True)
class TracedProgram:
    """A program with probes, and the process that runs it.

    :param process: the process ID.
    :param name: the process's name while it runs the program.
    :param executed: match only after the process has executed the program, not while it is a copy
        of its parent.
    :param objects: the program itself, then the shared objects.
    :param several: whether the process also runs other programs of this name.
    """

    process: int
    name: str
    objects: tuple[TracedObject, ...]
    executed: bool
    several: bool = False

    @property
    def file(self) -> ProgramFile:
        """The file of the program itself."""
        return self.objects[0].file


@dataclass(frozen=True)
class ProcessOffsets:
    """Byte offsets of the process pointer in struct thread, and of members of struct proc."""

    process: int
    number: int
    flags: int
    name: int
    parent: int
    space: int


def offsets(types: Types, members: ProcessMembers) -> ProcessOffsets:
    """Compute the offsets from the kernel's types.

    :raises MemberError: naming the member that the types lack.
    """
    return ProcessOffsets(
        offset_of(types, members.thread, members.process),
        *(offset_of(types, members.kind, path) for path in (
            members.number, members.flags, members.name, members.parent, members.space)))
