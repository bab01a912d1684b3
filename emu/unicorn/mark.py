"""A state that a machine goes back to again and again, a good deal quicker than to a ``Snapshot``:
the registers are kept as the engine has them, and what the CPU model has translated stays."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from emu.devices.device import Device
from emu.machine.events import EventQueue
from emu.machine.machine import ConsoleLog, Stop
from emu.unicorn._engine import Engine, Moment
from emu.unicorn.cpu import Cpu
from emu.unicorn.guest_memory import PAGE, GuestMemory, MemoryImage
from emu.unicorn.schedule import Schedule

Loop = tuple[Stop | None, tuple[int, int] | None]


class MarkedMachine(Protocol):
    """A machine, as far as its marks need to know one."""

    engine: Engine
    memory_part: GuestMemory
    schedule: Schedule
    events: EventQueue
    console: ConsoleLog
    patches: int

    @property
    def cpus(self) -> Sequence[Cpu]: ...

    @property
    def devices(self) -> Mapping[str, Device]: ...

    @property
    def ram_base(self) -> int: ...

    def interrupts_changed(self) -> None: ...

    def keep_loop(self) -> Loop: ...

    def put_loop_back(self, kept: Loop) -> None: ...


@dataclass(frozen=True)
class StateMark:
    """:param console: what the guest had written.
    :param loop: what the run loop had to remember (``RunLoop.keep``).
    """

    memory: MemoryImage
    moment: Moment
    devices: tuple[tuple[Device, Any], ...]
    cpus: tuple[Any, ...]
    timers: dict[str, int]
    waiting: list[int | None]
    held: frozenset[int]
    console: bytes
    loop: Loop
    patches: int


def _is_plain(device: Device) -> bool:
    """Whether all its state is in its attributes."""
    return type(device).state is Device.state and type(device).restore is Device.restore


def keep(machine: MarkedMachine) -> StateMark:
    """Keep the present state.  It is good as long as the machine is."""
    devices = tuple(
        (one, one.keep() if _is_plain(one) else one.state())
        for _name, one in sorted(machine.devices.items()))
    return StateMark(
        machine.memory_part.snapshot(), Moment(machine.engine), devices,
        tuple(cpu.keep() for cpu in machine.cpus), machine.events.state(),
        machine.schedule.waits, frozenset(machine.schedule.held), bytes(machine.console.text),
        machine.keep_loop(), machine.patches)


def go_back(machine: MarkedMachine, mark: StateMark) -> None:
    """Make a machine what it was."""
    changed = _code_changed(machine, mark)
    machine.memory_part.restore(mark.memory)
    mark.moment.put_back()
    for page in changed:
        machine.engine.written(page, PAGE)
    for device, kept in mark.devices:
        if _is_plain(device):
            device.put_back(kept)
        else:
            device.restore(kept)
    for cpu, kept in zip(machine.cpus, mark.cpus, strict=True):
        cpu.put_back(kept)
    machine.events.restore(mark.timers)
    machine.schedule.waits = mark.waiting
    machine.schedule.held = set(mark.held)
    machine.console.text[:] = mark.console
    machine.put_loop_back(mark.loop)
    machine.interrupts_changed()


def _code_changed(machine: MarkedMachine, mark: StateMark) -> list[int]:
    """Physical addresses of pages of code that is not what it was translated from, once memory is
    what it was."""
    pages = mark.moment.translated_since()
    # What was written is known since the last snapshot only.
    if pages is None or machine.memory_part.base is not mark.memory:
        machine.engine.flush_translations()
        return []
    memory, base = machine.memory_part, machine.ram_base
    found = []
    for page in pages:
        with contextlib.suppress(IndexError):  # what is no RAM is not written either
            if memory.is_written((page - base) // PAGE):
                found.append(page)
    return found
