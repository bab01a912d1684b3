"""Where a process that does not exist yet will map files, found by running its command in advance.

Nothing that observes the guest changes its run, so the traced run maps the same files at the same
addresses.
"""

from collections.abc import Callable

from dtrace.stacks.mapped_files import MappedFile, mapped_files
from dwarf.members import MemberError
from dwarf.types import Types
from emu.host.errors import KinstError, MemoryAccessError
from emu.machine.running_thread import thread_of
from emu.unicorn.machine import UnicornMachine
from kinst.probes.breakpoints import Breakpoints
from kinst.probes.traced_program import offsets

MOST_MAPPED = 20_000  # maximum number of different mappings of a process


def mapped_in_advance(machine: UnicornMachine, types: Types, number: int, name: str,
                      run: Callable[[], None]) -> list[MappedFile]:
    """Return the files that a process maps at any time while a command runs.

    The machine is then as before.

    :param number: ID of the process.
    :param name: name of the process while it executes the program in question.
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
    found: dict[MappedFile, None] = {}

    def look(_probe: object, _state: object) -> None:
        try:
            process = machine.read_u64(thread_of(machine) + places.process)
            if int.from_bytes(machine.read(process + places.number, 4), "little") != number:
                return
            text = machine.read(process + places.name, len(name.encode()) + 1)
            if text == name.encode() + b"\0" and len(found) < MOST_MAPPED:
                found.update(dict.fromkeys(maps.of(process)))
        except MemoryAccessError:
            return  # the kernel's structures are damaged

    breakpoints = Breakpoints(machine, look)
    wanted = {*programs.executes, *programs.maps.calls}
    for index, one in enumerate(breakpoints.declared):
        if one.call is not None and one.call.returns and one.function in wanted:
            breakpoints.add_static(index, lambda: types)
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
    return list(found)
