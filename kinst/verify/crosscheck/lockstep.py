"""Execution of a workload on two machines in lockstep, instruction by instruction.

The first machine records the registers before each instruction; the second is single-stepped and
compared before each one.  A repeated string instruction counts once, however often it stops.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import unicorn

from emu.host.errors import KinstError
from emu.machine.machine import Machine, Stop, StopReason
from emu.qemu.machine import QemuMachine
from emu.unicorn.machine import UnicornMachine
from kinst.verify.crosscheck.difference import MODELS, Difference, MemoryDifference

MAX_WRITES = 16  # maximum number of writes recorded for one instruction
# maximum number of instructions in a call; single-stepping through them takes about 12 seconds
MAX_STEPS = 50_000


class TooLongError(KinstError):
    """Error raised if a workload executes too many instructions to be compared."""


@dataclass
class ExecutionTrace:
    """Recording of a workload on the first machine.

    :param names: the names of the registers.
    :param steps: the values of the registers, including the pc, before each instruction.
    :param writes: step number -> (physical address, size) of its memory writes, of which at most
        ``MAX_WRITES`` are recorded.
    :param unequal: ranges of physical addresses where a ``MemoryDifference`` was written.
    """

    names: tuple[str, ...]
    pc: int  # index of the program counter in ``names``
    steps: list[tuple[int, ...]]
    writes: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    unequal: list[range] = field(default_factory=list)


class Divergence(KinstError):
    """First difference between two machines.

    :param what: a short description.
    :param address: the last instruction that was executed while they agreed, or the one at fault.
    :param names: the names of the compared values, mostly registers.
    :param ours: the values on the first machine.
    :param theirs: the values on the second machine.
    """

    def __init__(self, what: str, address: int, names: Sequence[str], ours: Sequence[int],
                 theirs: Sequence[int]) -> None:
        super().__init__(what)
        self.what, self.address = what, address
        self.names, self.ours, self.theirs = tuple(names), tuple(ours), tuple(theirs)


def quiet(machine: UnicornMachine) -> None:
    """Disable a machine's device interrupts, because the second machine has none."""
    machine.events.restore({})


def record(machine: UnicornMachine, workload: Callable[[Machine], object],
           limit: int = MAX_STEPS) -> tuple[ExecutionTrace, object]:
    """Run a workload and return its recording and its result.

    :raises TooLongError: when it executes more than ``limit`` instructions.
    """
    names = tuple(machine.arch.registers)
    numbers = [machine.cpu.model.registers[name] for name in names]
    place = names.index(machine.arch.pc)
    recording = ExecutionTrace(names, place, [])
    steps, read = recording.steps, machine.engine.read

    def before(_uc: unicorn.Uc, address: int, _size: int, _data: object) -> None:
        if (steps and steps[-1][place] == address) or machine.is_stop(address):
            return
        if len(steps) > limit:
            machine.request_stop(Stop(StopReason.PATIENCE, address))
            return
        values = [read(number) for number in numbers]
        values[place] = address
        steps.append(tuple(values))

    def written(_uc: unicorn.Uc, _kind: int, address: int, size: int, _value: int,
                _data: object) -> None:
        places = recording.writes.setdefault(len(steps) - 1, [])
        if len(places) < MAX_WRITES:
            places.append((address, size))

    def handled(address: int, handler: Callable[[], None]) -> None:
        """Record an instruction before its handler runs: the hook misses emulated instructions."""
        before(machine.uc, address, 0, None)
        handler()

    quiet(machine)
    handlers = machine.handlers
    for address, handler in handlers.items():
        machine.handle(address, functools.partial(handled, address, handler))
    machine.engine.flush_translations()
    stores = machine.uc.hook_add(unicorn.UC_HOOK_MEM_WRITE, written, begin=1, end=0)
    hook = machine.uc.hook_add(unicorn.UC_HOOK_CODE, before, begin=1, end=0)
    try:
        result = workload(machine)
    except KinstError:
        if len(steps) > limit:
            raise TooLongError(f"the call executes more than {limit} instructions") from None
        raise
    finally:
        for address, handler in handlers.items():
            machine.handle(address, handler)
        machine.engine.unhook(hook)
        machine.engine.unhook(stores)
    if len(steps) > limit:
        raise TooLongError(f"the call executes more than {limit} instructions")
    if not steps:
        raise KinstError("the call executes no instruction, so there is nothing to compare")
    return recording, result


@dataclass
class ModelPoint:
    """Instruction with a model-dependent result, and its results on the first machine.

    :param results: the registers that each execution changed, in order.
    """

    reason: str
    bits: int  # the bits of the result that may differ
    results: list[dict[str, int]]

    def settle(self, machine: Machine, number: int) -> None:
        """Write the recorded result to a machine that has just executed the instruction."""
        if number < len(self.results):
            for name, value in self.results[number].items():
                theirs = machine.read_register(name)
                machine.write_register(name, theirs & ~self.bits | value & self.bits)


def model_points(machine: Machine, recording: ExecutionTrace) -> dict[int, ModelPoint]:
    """Return executed instructions with known model differences, keyed by address.

    Memory that may differ is added to the recording's ``unequal``.
    """
    model = MODELS[machine.arch.name]
    known: tuple[Difference | MemoryDifference, ...] = (*model.instructions, *model.memory)
    points: dict[int, ModelPoint] = {}
    plain: set[int] = set()
    for number, (step, after) in enumerate(itertools.pairwise(recording.steps)):
        address = step[recording.pc]
        if address in plain:
            continue
        code = machine.read(address, 4)
        difference = next((d for d in known if d.matches(code)), None)
        if difference is None:
            plain.add(address)
            continue
        if isinstance(difference, MemoryDifference):
            point = points.setdefault(address, ModelPoint(difference.reason, 0, []))
            point.results.append({})
            if number in recording.writes:
                begin = recording.writes[number][0][0] + difference.offset
                recording.unequal.append(range(begin, begin + difference.size))
            continue
        point = points.setdefault(address, ModelPoint(difference.reason, difference.bits, []))
        point.results.append({name: after[recording.names.index(name)]
                              for name in difference.names(code) if name in recording.names})
    return points


def follow(machine: QemuMachine, recording: ExecutionTrace, points: dict[int, ModelPoint],
           workload: Callable[[Machine], object]) -> object:
    """Single-step the workload on the second machine, and compare it with the recording.

    :raises Divergence: at the first register that differs.
    """
    at, executed = 0, {address: 0 for address in points}
    last: int | None = None
    names, steps, _ = recording.names, recording.steps, recording.pc

    def settle(address: int) -> None:
        """Write the recorded result if the last instruction's result depends on the model."""
        if last is not None and last in points and last != address:
            points[last].settle(machine, executed[last])
            executed[last] += 1

    def before(address: int) -> None:
        nonlocal at, last
        if address == last:
            return
        settle(address)
        theirs = [machine.read_register(name) for name in names]
        if at >= len(steps):
            raise Divergence("kinst-emu's machine has returned, but QEMU continues",
                             last or address, names, steps[-1], theirs)
        if tuple(theirs) != steps[at]:
            what = ", ".join(n for n, a, b in zip(names, steps[at], theirs, strict=True) if a != b)
            raise Divergence(f"{what} differ{'s' if ',' not in what else ''} after {at} "
                             "instructions", last or address, names, steps[at], theirs)
        at, last = at + 1, address

    machine.watch = before
    try:
        result = workload(machine)
    finally:
        machine.watch = None
    if at != len(steps):
        raise Divergence(f"QEMU returned after {at} instructions, but kinst-emu's machine after "
                         f"{len(steps)}", last or 0, names, steps[min(at, len(steps) - 1)],
                         [machine.read_register(name) for name in names])
    return result
