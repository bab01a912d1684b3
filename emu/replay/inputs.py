"""Inputs that a machine receives from outside, and the positions at which it receives them.

A run is determined by its start and these inputs, so a recording stores nothing else about it.
A position is an instruction count and a virtual time: a CPU that waits for an interrupt executes
no instructions, but time passes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from emu.host.errors import KinstError
from emu.machine.machine import MAX_CONSOLE, Stop, StopReason, Until
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.schedule import MOST_CPUS

# Kinds of inputs: typed keys; a frame for the network device; a write to a register, a vector
# register or physical memory; a switch to another CPU; a power-off of the CPU; an expiry of its
# timer; and STUCK: an attempt to run that could not execute the next instruction.
TYPE, FRAME, REGISTER, VECTOR, MEMORY, TURN, OFF, TIMER, STUCK = (
    "type", "frame", "register", "vector", "memory", "turn", "off", "timer", "stuck")
KINDS = (TYPE, FRAME, REGISTER, VECTOR, MEMORY, TURN, OFF, TIMER, STUCK)
SECOND = "1"  # name of the second serial port
MAX_INPUT = 64 << 20  # maximum size of an input in bytes
SLACK = 1 << 16  # maximum number of bytes by which console output may exceed its limit
ADDRESS = re.compile(r"[0-9a-f]{1,16}")


@dataclass(frozen=True, order=True)
class Position:
    """A moment in a run, between two instructions.

    :param instructions: instructions executed since the start of the boot.
    :param time: virtual nanoseconds since the start of the boot.
    :param awake: False while the CPU waits for an interrupt.  At the same count and time, waiting
        comes before awake.
    :param cpu: number of the CPU whose turn it is.  It follows from the other fields and from
        inputs at this position, so comparisons ignore it.
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
    """An input that a machine receives at a position.

    :param kind: one of KINDS.
    :param name: name of the register, physical address in hexadecimal, or number of the CPU; for
        keys, SECOND if they were typed at the second serial port.
    :param value: typed or written bytes, little-endian; 8 bytes for a register; for a frame, the
        virtual time of its arrival (8 bytes) and the frame.
    """

    position: Position
    kind: str
    name: str
    value: bytes


class ReplayError(KinstError):
    """Error raised if a recording cannot be created, read or replayed."""


def position_of(machine: UnicornMachine) -> Position:
    """Return the current position of a machine.

    The clock that devices see advances per block; the time of a position, per instruction.
    """
    engine, waiting = machine.engine, machine.waiting
    return Position(engine.instructions,
                    engine.now if waiting else engine.time, not waiting,
                    machine.cpu.number)


def give(machine: UnicornMachine, one: Input) -> None:
    """Apply an input to a machine.

    :raises KinstError: if the register or memory does not exist.
    :raises ReplayError: for STUCK, if the machine does execute the next instruction.
    """
    if one.kind == TYPE and one.name == SECOND:
        machine.type_second(one.value)
    elif one.kind == TYPE:
        machine.type(one.value)
    elif one.kind == FRAME:
        machine.send_frame(int.from_bytes(one.value[:8], "little"), one.value[8:])
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
            raise ReplayError(f"the replay diverged from the recording: it reached "
                              f"{position_of(machine)} ({stop}), but the recorded run "
                              "stopped before that")
    else:
        machine.write_physical(int(one.name, 16), one.value)


def check_console(machine: UnicornMachine) -> None:
    """Check that a guest has not printed more than a recording allows.

    A recorder starts no run after ``MAX_CONSOLE`` bytes, and a run ends after ``MAX_CONSOLE`` more.

    :raises ReplayError: if the guest has printed more than both together.
    """
    if len(machine.console.text) > 2 * MAX_CONSOLE + SLACK:
        raise ReplayError(f"the guest printed {len(machine.console.text)} bytes to its console; "
                          f"the limit for a recording is {2 * MAX_CONSOLE + SLACK}")


def reach(machine: UnicornMachine, position: Position) -> Stop | None:
    """Run a machine to a position, without applying inputs.

    :return: the stop if the user interrupted the run; None if the position was reached.
    :raises ReplayError: if the run does not reach the position.
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
                f"the replay diverged from the recording: it reached {there} ({stop}), but the "
                f"recording continues to {position}")
    return None


def position_to_json(p: Position) -> list[int | bool]:
    """Convert a position to JSON.

    The number of CPU 0 is left out, so that recordings with one CPU keep their format.
    """
    return [p.instructions, p.time, p.awake, *([p.cpu] if p.cpu else [])]


def position_from_json(row: Sequence[Any]) -> Position:
    """Convert JSON to a position.

    :raises ValueError: if the JSON is not a position.
    """
    instructions, time, awake, *more = row
    cpu = more[0] if len(more) == 1 else 0
    if not (type(instructions) is type(time) is type(cpu) is int and isinstance(awake, bool)
            and len(more) <= 1 and 0 <= cpu < MOST_CPUS
            and 0 <= instructions < 1 << 63 and 0 <= time < 1 << 63):
        raise ValueError("a recording has an invalid position")
    return Position(instructions, time, awake, cpu)


def to_json(one: Input) -> list[Any]:
    """Convert an input to JSON."""
    return [*position_to_json(one.position), one.kind, one.name, one.value.hex()]


def from_json(row: Sequence[Any]) -> Input:
    """Convert JSON to an input.

    :raises ValueError: if the JSON is not an input.
    """
    *position_row, kind, name, value = row
    if kind not in KINDS or not isinstance(name, str):
        raise ValueError("an input in a recording has an invalid kind or name")
    if (kind == MEMORY and not ADDRESS.fullmatch(name)) or len(name) > 32:
        raise ValueError("an input in a recording has an invalid address or name")
    if kind in (TURN, OFF, TIMER) and not (name.isdecimal() and int(name) < MOST_CPUS):
        raise ValueError("an input in a recording has an invalid CPU number")
    if kind == TYPE and name not in ("", SECOND):
        raise ValueError("an input in a recording was typed at an unknown serial port")
    if kind == TURN and len(value) != 10:
        raise ValueError("a change of the running CPU in a recording has an invalid value")
    return Input(position_from_json(position_row), kind, name, bytes.fromhex(value))
