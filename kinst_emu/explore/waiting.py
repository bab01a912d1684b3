"""Analysis of unfinished runs: the locks and events for which they wait."""

from collections.abc import Iterator

from dtrace.debug.debug_data import Sources
from dtrace.debug.kernel_types import kernel_types
from dtrace.stacks.threads import structure
from dwarf.debug_file import DebugDataError
from dwarf.values import CStruct
from emu.host.errors import MemoryAccessError
from emu.machine.machine import StopReason, Until
from emu.machine.running_thread import thread_of
from emu.unicorn._accesses import Accesses
from emu.unicorn.machine import UnicornMachine
from kinst_emu.explore.accesses import read_accesses
from kinst_emu.explore.schedule import LETTERS
from kinst_emu.explore.stage import Played, Stage

WINDOW = 20_000  # number of instructions within which a CPU that makes progress changes memory
# Exceptions that reading a structure with invalid contents can raise.
UNREADABLE = (MemoryAccessError, DebugDataError, AttributeError, TypeError, ValueError)


def all_wait(stage: Stage, played: Played) -> bool:
    """Return whether every unfinished run sleeps or spins on a lock."""
    machine = stage.machine
    members = machine.guest.threads.waits
    spins = () if members is None else members.spins
    running = {thread_of(machine): machine.pc for _cpu in machine.schedule.each()}
    for number, run in enumerate(stage.runs):
        if number in played.results:
            continue
        if not run.thread:
            return False
        if run.thread in running:
            function = machine.image.symbols.function_at(running[run.thread])
            if function is None or function.name not in spins:
                return False
    return True


def nobody_goes_on(stage: Stage) -> bool:
    """Return whether no CPU makes progress, so that each run waits for another run.

    Memory no longer changes, and each CPU returns to an address with the same registers.
    """
    machine, parts = stage.machine, list[bytes]()
    machine.give_turn(machine.cpu.number)  # give_turn() also releases the held CPUs
    machine.schedule.length = WINDOW
    looking = Accesses(machine.engine, parts.append)
    try:
        machine.run(Until(instructions=machine.instructions + _window(machine)))
        looking.flush()
        before = _stored(parts)
        parts.clear()
        same = all([_comes_by_again(machine, cpu.number) for cpu in machine.cpus if cpu.on])
        machine.run(Until(instructions=machine.instructions + _window(machine)))
    finally:
        looking.close()
    return same and _stored(parts) <= before


def _stored(found: list[bytes]) -> set[tuple[int, int]]:
    """Return (physical address, value) for each store among access entries."""
    return {(a.physical, a.value) for a in read_accesses(b"".join(found)) if a.stores}


def _window(machine: UnicornMachine) -> int:
    """Return an instruction count that is large enough for each CPU to have a turn."""
    return 3 * len(machine.cpus) * WINDOW


def _comes_by_again(machine: UnicornMachine, cpu: int) -> bool:
    """Return whether a CPU returns to its current address with the same registers.

    A CPU that executes nothing makes no progress either.
    """
    end = machine.instructions + _window(machine)
    while machine.cpu.number != cpu:
        if machine.instructions >= end or machine.schedule.waits[cpu] is not None:
            return True
        machine.schedule.left = 1
        machine.run(Until(instructions=end))
    machine.schedule.left = None
    kept = machine.registers()
    while machine.instructions < end:
        stop = machine.run(Until(instructions=end, addresses=[kept[machine.arch.pc]]))
        if stop.reason is not StopReason.ADDRESS:
            break
        if machine.cpu.number == cpu and machine.registers() == kept:
            return True
    return False


def waits(stage: Stage, played: Played) -> Iterator[str]:
    """Describe the location of each unfinished run, and the event for which the run waits."""
    machine = stage.machine
    running = {thread_of(machine): machine.pc for _cpu in machine.schedule.each()}
    places = [machine.pc for _cpu in machine.schedule.each()]
    for number, run in enumerate(stage.runs):
        if number in played.results:
            continue
        if not run.thread or run.thread in running:
            pc = running[run.thread] if run.thread else places[number]
            yield f"{LETTERS[number]} spins at {_place(machine, pc)}"
        else:
            yield f"{LETTERS[number]} {_sleep(machine, stage, run.thread)}"


def _place(machine: UnicornMachine, pc: int) -> str:
    where = machine.image.symbols.where(pc)
    try:
        return f"{where} ({Sources(machine.image).line(pc)})"
    except DebugDataError:
        return where


def _sleep(machine: UnicornMachine, stage: Stage, thread: int) -> str:
    members = machine.guest.threads.waits
    kind = structure(kernel_types(machine.image), machine.guest.threads.lists.thread)
    if members is None or kind is None:
        return "does not run"
    switch = machine.guest.threads.switch
    try:
        one = CStruct(kind, thread, machine)
        if switch is not None and int(one[switch.state]) == switch.queued:
            return "is ready, and waits for the CPU"
        if lock := _text(machine, int(one[members.lock])):
            owner = int(one[members.blocked][0][members.owner])
            return f"waits for the lock '{lock}'{_held_by(stage, owner)}"
        if message := _text(machine, int(one[members.message])):
            return f"sleeps on '{message}'"
    except UNREADABLE:
        pass
    return "does not run"


def _held_by(stage: Stage, owner: int) -> str:
    for number, run in enumerate(stage.runs):
        if run.thread == owner:
            return f", which {LETTERS[number]} holds"
    return ""


def _text(machine: UnicornMachine, address: int) -> str:
    return machine.read_string(address, 64).decode("latin-1") if address else ""
