"""What comes into a machine from outside, and when: the one channel that a recording keeps.

A run is a function of where it starts and of these inputs.  A position is an instruction count; a
CPU that waits for an interrupt executes none, and then it is also a virtual time.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from emu.host.errors import KinstError
from emu.machine.machine import MAX_CONSOLE, Stop, StopReason, Until
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.schedule import MOST_CPUS

# What an input does: keys are typed, a register, a vector register or physical memory is written;
# it is another CPU's turn, the CPU is off, or its timer rings; or the machine was to go on, and
# could not execute the next instruction.
TYPE, REGISTER, VECTOR, MEMORY, TURN, OFF, TIMER, STUCK = (
    "type", "register", "vector", "memory", "turn", "off", "timer", "stuck")
KINDS = (TYPE, REGISTER, VECTOR, MEMORY, TURN, OFF, TIMER, STUCK)
MAX_INPUT = 64 << 20  # bytes
SLACK = 1 << 16  # bytes that a guest may write before a run that has too many ends
ADDRESS = re.compile(r"[0-9a-f]{1,16}")


@dataclass(frozen=True, order=True)
class Position:
    """A moment of a run, between two instructions.

    :param instructions: executed since the start of the boot.
    :param time: virtual nanoseconds since then.
    :param awake: False: the CPU waits for an interrupt; it goes on behind that.
    :param cpu: the number of the one whose turn it is; it follows from the rest, and from inputs
        that are given there.
    """

    instructions: int
    time: int
    awake: bool = True
    cpu: int = field(default=0, compare=False)

    def __str__(self) -> str:
        where = f", CPU {self.cpu}" if self.cpu else ""
        return f"instruction {self.instructions} ({self.time / 1e9:.9f} s){where}"


@dataclass(frozen=True)
class Input:
    """:param name: of a register; of memory, the physical address in hexadecimal.
    :param value: what is typed or written, little-endian; of a register 8 bytes.
    """

    position: Position
    kind: str
    name: str
    value: bytes


class ReplayError(KinstError):
    """A recording cannot be made, read or followed."""


def position_of(machine: UnicornMachine) -> Position:
    """Where a machine stands.

    Its clock, as devices see it, goes by blocks; a position's goes by instructions.
    """
    engine, waiting = machine.engine, machine.waiting
    return Position(engine.instructions,
                    engine.now if waiting else engine.time, not waiting,
                    machine.cpu.number)


def give(machine: UnicornMachine, one: Input) -> None:
    """Give a machine an input.

    :raises KinstError: when there is no such register or memory.
    """
    if one.kind == TYPE:
        machine.type(one.value)
    elif one.kind == REGISTER:
        machine.write_register(one.name, int.from_bytes(one.value, "little"))
    elif one.kind == VECTOR:
        machine.write_vector(one.name, int.from_bytes(one.value, "little"))
    elif one.kind == TURN:
        held, patience = one.value[0], int.from_bytes(one.value[1:], "little")
        machine.give_turn(int(one.name), [n for n in range(8) if held >> n & 1], patience)
    elif one.kind == OFF:
        machine.switch_off()
    elif one.kind == TIMER:
        machine.ring_timer()
    elif one.kind == STUCK:
        stop = machine.run(Until(instructions=one.position.instructions + 1))
        if stop.reason is not StopReason.UNHANDLED:
            raise ReplayError(f"the run parted from its recording: at {position_of(machine)} "
                              f"({stop}), where the recording cannot go on")
    else:
        machine.write_physical(int(one.name, 16), one.value)


def check_console(machine: UnicornMachine) -> None:
    """Refuse a guest that writes more than can have been recorded.

    A recorder begins no run after ``MAX_CONSOLE`` bytes, and a run ends after as many.

    :raises ReplayError: when the guest has written more than both.
    """
    if len(machine.console.text) > 2 * MAX_CONSOLE + SLACK:
        raise ReplayError("the guest writes more to its console than can have been recorded")


def reach(machine: UnicornMachine, position: Position) -> Stop | None:
    """Run a machine to a position, without inputs.

    :return: why it ended early: the user's wish; None: it is there.
    :raises ReplayError: when the run does not come there.
    """
    while (here := position_of(machine)) != position:
        stop = machine.run(Until(instructions=position.instructions,
                                 time=None if position.awake else position.time))
        if stop.reason is StopReason.INTERRUPTED:
            return stop
        check_console(machine)
        there = position_of(machine)
        if there == here or there.instructions > position.instructions:
            raise ReplayError(
                f"the run parted from its recording: at {there} ({stop}), where the recording "
                f"comes to {position}")
    return None


def position_to_json(p: Position) -> list[int | bool]:
    """The first CPU's number is left out, as it was when there was no other."""
    return [p.instructions, p.time, p.awake, *([p.cpu] if p.cpu else [])]


def position_from_json(row: Sequence[Any]) -> Position:
    """:raises ValueError: when it is none."""
    instructions, time, awake, *more = row
    cpu = more[0] if len(more) == 1 else 0
    if not (type(instructions) is type(time) is type(cpu) is int and isinstance(awake, bool)
            and len(more) <= 1 and 0 <= cpu < MOST_CPUS
            and 0 <= instructions < 1 << 63 and 0 <= time < 1 << 63):
        raise ValueError("a position of no kind")
    return Position(instructions, time, awake, cpu)


def to_json(one: Input) -> list[Any]:
    return [*position_to_json(one.position), one.kind, one.name, one.value.hex()]


def from_json(row: Sequence[Any]) -> Input:
    """:raises ValueError: when it is none."""
    *position, kind, name, value = row
    if kind not in KINDS or not isinstance(name, str):
        raise ValueError("an input of no kind")
    if (kind == MEMORY and not ADDRESS.fullmatch(name)) or len(name) > 32:
        raise ValueError("an address or a register of no kind")
    if kind in (TURN, OFF, TIMER) and not (name.isdecimal() and int(name) < MOST_CPUS):
        raise ValueError("a turn of no CPU")
    if kind == TURN and len(value) != 10:
        raise ValueError("a turn of no kind")
    return Input(position_from_json(position), kind, name, bytes.fromhex(value))
