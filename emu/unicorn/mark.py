"""Marks: saved states that a machine can restore much faster than a ``Snapshot``.

Registers are kept in the engine's own form, and the CPU model keeps its translations.
"""

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
    """Interface of a machine whose states can be saved as marks."""

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
    """A machine state saved by ``keep``.

    :param console: console output of the guest so far.
    :param loop: state of the run loop (``RunLoop.keep``).
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
    """Return whether the attributes of a device hold its complete state."""
    return type(device).state is Device.state and type(device).restore is Device.restore


def keep(machine: MarkedMachine) -> StateMark:
    """Save the current state as a mark that stays valid as long as the machine exists."""
    devices = tuple(
        (device, device.keep() if _is_plain(device) else device.state())
        for _name, device in sorted(machine.devices.items()))
    return StateMark(
        machine.memory_part.snapshot(), Moment(machine.engine), devices,
        tuple(cpu.keep() for cpu in machine.cpus), machine.events.state(),
        machine.schedule.waits, frozenset(machine.schedule.held), bytes(machine.console.text),
        machine.keep_loop(), machine.patches)


def go_back(machine: MarkedMachine, mark: StateMark) -> None:
    """Restore a machine to a mark."""
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
    """Return the pages of translated code that a return to the mark will change.

    :return: their physical addresses.
    """
    pages = mark.moment.translated_since()
    # ``GuestMemory`` knows only which pages were written since its last snapshot.
    if pages is None or machine.memory_part.base is not mark.memory:
        machine.engine.flush_translations()
        return []
    memory, base = machine.memory_part, machine.ram_base
    changed = []
    for page in pages:
        with contextlib.suppress(IndexError):  # a page outside RAM cannot have been written
            if memory.is_written((page - base) // PAGE):
                changed.append(page)
    return changed
