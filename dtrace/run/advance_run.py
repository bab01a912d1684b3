"""What processes that do not exist yet will map, found by running a command in advance.

Nothing that observes the guest changes its run, so the traced run maps the same files at the same
addresses, unless an action or the answer to a program's question about a probe changes it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from dtrace.stacks.mapped_files import MappedFile, mapped_files
from dtrace.stacks.user_programs import NAME
from dwarf.members import MemberError
from dwarf.types import Types
from emu.host.errors import KinstError, MemoryAccessError
from emu.machine.running_thread import thread_of
from emu.unicorn.machine import UnicornMachine
from kinst.probes.breakpoints import Breakpoints
from kinst.probes.traced_program import offsets

MOST_MAPPED = 20_000  # maximum number of different mappings of a process
MOST_PROGRAMS = 10_000  # maximum number of programs that are followed


@dataclass
class RunProgram:
    """What a process runs while it has one name.

    :param executed: whether the process has this name only after it has executed the program, and
        not as a copy of its parent.
    :param ran: whether the process has executed the program at all.
    :param files: the files that it has mapped at any time.
    """

    executed: bool
    ran: bool = False
    files: dict[MappedFile, None] = field(default_factory=dict)


def run_in_advance(machine: UnicornMachine, types: Types, run: Callable[[], None]
                   ) -> dict[tuple[int, str], RunProgram]:
    """Return the programs that processes run while a command runs, by process ID and name.

    The machine is then as before.

    :param run: runs the command.
    :raises KinstError: if that fails, or the kernel's types do not describe maps.
    """
    programs = machine.guest.programs
    maps = mapped_files(machine, types, programs.maps)
    if maps is None or programs.maps is None or programs.members is None:
        raise KinstError("the kernel's types do not describe the memory maps of processes")
    try:
        places = offsets(types, programs.members)
    except MemberError as error:
        raise KinstError(f"the kernel's types do not describe processes: {error}") from None
    found: dict[tuple[int, str], RunProgram] = {}

    def note(number: int, name: str, files: list[MappedFile], executed: bool) -> None:
        one = found.get((number, name))
        if one is None and len(found) < MOST_PROGRAMS:
            one = found[number, name] = RunProgram(executed)
        if one is not None:
            one.executed &= executed
            one.ran |= executed
            if len(one.files) < MOST_MAPPED:
                one.files.update(dict.fromkeys(files))

    def look(probe: int, _state: object) -> None:
        try:
            process = machine.read_u64(thread_of(machine) + places.process)
            number = int.from_bytes(machine.read(process + places.number, 4), "little")
            flags = int.from_bytes(machine.read(process + places.flags, 4), "little")
            name = machine.read(process + places.name, NAME).partition(b"\0")[0].decode(
                "utf-8", "replace")
            files = maps.of(process)
        except MemoryAccessError:
            return  # the kernel's structures are damaged
        if probe in forks:
            child = breakpoints.dispatcher.made[0]
            if 0 < child <= programs.last_number:  # the call has not failed
                note(child, name, files, False)
        else:
            note(number, name, files, bool(flags & members.executed))

    members = programs.members
    breakpoints = Breakpoints(machine, lambda probe, state: look(probe.id - 1, state))
    forks = set[int]()
    for index, one in enumerate(breakpoints.declared):
        if one.call is not None and one.call.returns and one.function in (
                *programs.executes, *programs.maps.calls, *programs.forks):
            number = breakpoints.add_static(index, lambda: types)
            if one.function in programs.forks:
                forks.add(number)
    kept, text = machine.snapshot(), bytes(machine.console.text)
    stream, machine.console.stream = machine.console.stream, None
    try:
        breakpoints.enable()
        try:
            run()
        finally:
            breakpoints.disable()
            breakpoints.remove_all()
    finally:
        machine.restore(kept)
        machine.console.stream = stream
        machine.console.text[:] = text
    return found
