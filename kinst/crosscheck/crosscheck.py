"""Calls on two machines that must agree: instruction by instruction, and with probes.

For each call: (a) every instruction in lockstep; then, with probes on what was executed, (b) the
bytes of every trap frame at the seam, (c) all registers at every firing; and (d) what the call
gives and the memory it leaves, with and without probes.  The first machine runs the guest path in
Python, which the native path is held to elsewhere; the second is QEMU.
"""

import functools
import itertools
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from emu.call import CallError, PatienceError
from emu.elf import Symbol
from emu.errors import KinstError, MemoryAccessError
from emu.machine import Machine
from emu.qemu.machine import QemuMachine
from emu.unicorn.guest_memory import PAGE
from emu.unicorn.machine import Snapshot, UnicornMachine
from kinst.breakpoints import Breakpoints, NativeState
from kinst.code.listing import Instruction, exclusion
from kinst.code.shared import Kind
from kinst.code.verdict import (
    Bits,
    Copy,
    Emulate,
    Lowered,
    Refuse,
    Rewrite,
    State,
    Verdict,
    summary,
)
from kinst.crosscheck.difference import MODELS, StateDifference
from kinst.crosscheck.lockstep import (
    Divergence,
    ModelPoint,
    Recording,
    TooLongError,
    follow,
    model_points,
    quiet,
    record,
)
from kinst.probe_table import Probe, ProbeError, ProbeTable
from kinst.seam_breakpoints import SeamBreakpoints
from kinst.trap import SEAM, CpuState

MAX_PROBES, MAX_FIRINGS = 300, 1200  # of a call
BELOW = 8192  # bytes below the stack pointer that a trap may write
MOST_FIRINGS = 2 * MAX_FIRINGS  # where the least executed instruction is executed that often
PROBED_PATIENCE = 30.0  # seconds of silence, of a call with probes
FAULTS = ("delivery", "trampoline", "emulation")

Workload = Callable[[Machine], int]
Value = TypeVar("Value")


@dataclass
class Event:
    """A stop at the seam.

    :param site: the probed instruction; ``second``: it is its trampoline's breakpoint.
    :param registers: at the firing; none of a second breakpoint.
    :param written: what the instruction displaced before has written to memory.
    :param stack: (address, bytes) of the stack before the trap, on the first machine: it takes back
        what its traps leave there; the second is told, because a function that reads a variable it
        has not set would see it.
    """

    site: int
    second: bool
    frame: bytes
    registers: tuple[int, ...] = ()
    stack: tuple[int, bytes] = (0, b"")
    written: bytes = b""


class _Written:
    """Reads, at each stop of a machine, what the instruction displaced before has written there; by
    the recording of the same call."""

    def __init__(self, machine: Machine, recording: Recording) -> None:
        self.machine, self._writes = machine, recording.writes
        self._steps: dict[int, list[int]] = {}  # of an instruction, in the order of its executions
        for number, step in enumerate(recording.steps):
            self._steps.setdefault(step[recording.pc], []).append(number)
        self._count: Counter[int] = Counter()
        self._places: list[tuple[int, int]] = []

    def at(self, site: int, second: bool, sp: int) -> bytes:
        """At a stop; ``sp`` is the interrupted stack pointer: below it the trap has written."""
        found = bytearray()
        below: list[tuple[int, int]] = []
        for page in range(sp - BELOW & -PAGE, sp, PAGE) if self._places else ():
            physical = self.machine.translate(page)
            if physical is not None:
                below.append((physical, physical + min(PAGE, sp - page)))
        for address, size in self._places:
            if not any(low <= address < high for low, high in below):
                try:
                    found += self.machine.read_physical(address, size)
                except MemoryAccessError:
                    continue  # a device
        self._places = []
        if not second:
            steps, number = self._steps.get(site, []), self._count[site]
            self._count[site] += 1
            if number < len(steps):
                self._places = self._writes.get(steps[number], [])
        return bytes(found)


@dataclass
class Agreement:
    """How much of a call, or of many, agreed.

    :param encodings: of displaced instructions that fired on both, by verdict.
    :param reasons: how often the models' known differences were met.
    """

    calls: int = 0
    instructions: int = 0
    firings: int = 0
    functions: set[str] = field(default_factory=set)
    encodings: dict[str, set[bytes]] = field(default_factory=dict)
    lengths: Counter[int] = field(default_factory=Counter)  # of the breakpoints that fired
    reasons: Counter[str] = field(default_factory=Counter)
    refused: int = 0  # instructions executed that cannot be probed

    def add(self, other: "Agreement") -> None:
        self.calls += other.calls
        self.instructions += other.instructions
        self.firings += other.firings
        self.refused += other.refused
        self.functions |= other.functions
        self.lengths += other.lengths
        self.reasons += other.reasons
        for name, codes in other.encodings.items():
            self.encodings.setdefault(name, set()).update(codes)

    def distinct(self) -> int:
        return sum(map(len, self.encodings.values()))


@dataclass(frozen=True)
class Astray:
    """An emulation with a fault: it also changes a register."""

    ends_block: ClassVar[bool] = True
    verdict: Emulate
    register: str

    def next_pc(self, state: State) -> int:
        pc = self.verdict.next_pc(state)
        state.set(self.register, state.get(self.register) ^ 1)
        return pc

    def lower(self, bits: Bits) -> Lowered:
        return self.verdict.lower(bits)


class Crosscheck:
    """Checks calls on a machine at rest and on QEMU.

    :param fault: one of FAULTS, put into the first machine when it is probed: for tests.
    """

    def __init__(self, machine: UnicornMachine, fault: str = "") -> None:
        if machine.image.symbols.find(SEAM) is None:
            raise ProbeError(f"{machine.image.path}: has no '{SEAM}': built without DTrace hooks")
        self.machine, self.fault = machine, fault
        self._model = MODELS[machine.arch.name]
        self._names = tuple(machine.arch.registers)
        self._base: Snapshot = machine.snapshot()
        self._tables: dict[int, dict[int, Instruction]] = {}
        self._listing = ProbeTable(machine)
        self._fired: set[bytes] = set()  # encodings
        self._last = 0  # the instruction executed last, for what differs at the end
        self.faulty = 0  # the address of the instruction that the fault was put at

    def check(self, workload: Workload) -> Agreement:
        """One call.

        :raises Divergence: where the machines do not agree.
        :raises TooLongError: when the call executes too much.
        :raises PatienceError: when QEMU was waited for too long: they agree as far as it came.
        :raises CallError: when the call fails, on our machine.
        """
        machine = self.machine
        machine.restore(self._base)
        recording, value = record(machine, workload)
        memory, state = self._memory(), machine.board.cpu_state()
        machine.restore(self._base)
        points = model_points(machine, recording)
        found = Agreement(1, len(recording.steps))
        for point in points.values():
            found.reasons[point.reason] += len(point.results)
        self._last = recording.steps[-1][recording.pc]
        with QemuMachine.carry(machine, self._base) as other:
            self._same_value(value, self._on_qemu(
                lambda: follow(other, recording, points, workload)))
            self._same_state(state, other, self._model.state)
            self._same_memory(memory, other)
        self._probed(workload, recording, points, found, value)
        machine.restore(self._base)
        return found

    def _on_qemu(self, run: Callable[[], Value]) -> Value:
        """A call that fails there alone is a divergence; a QEMU that fails, or is slow, is not."""
        try:
            return run()
        except PatienceError:
            raise
        except CallError as error:
            raise Divergence(f"on QEMU: {error}", self._last, (), (), ()) from None

    # -- with probes ----------------------------------------------------------------------------

    def _probed(self, workload: Workload, recording: Recording, points: dict[int, ModelPoint],
                found: Agreement, value: object) -> None:
        machine = self.machine
        sites = self._sites(recording, points, found)
        ours, result = self._run_ours(workload, sites, recording)
        if not self.fault:
            self._same_value(value, result, "with probes and without, on our machine")
        memory, state = self._memory(), machine.board.cpu_state()
        machine.restore(self._base)
        theirs: list[Event] = []
        with QemuMachine.carry(machine, self._base) as other:
            other.patience = PROBED_PATIENCE
            probes = SeamBreakpoints(other, functools.partial(self._fire, theirs))
            written = _Written(other, recording)

            def trapped(address: int, frame: int) -> None:
                theirs.append(self._event(written, address, probes.second(address), frame))

            probes.trapped = trapped
            probes.stack_before = functools.partial(self._stack_before, ours, theirs)
            _add(probes, sites)
            probes.enable()
            _Settle(other, points).install()
            failure: KinstError | None = None
            theirs_result: object = None
            try:
                theirs_result = workload(other)
            except (CallError, TooLongError) as error:
                failure = error
            self._compare(ours, theirs, unfinished=isinstance(failure, PatienceError))
            if isinstance(failure, PatienceError):
                raise failure
            if failure is not None:
                raise Divergence(f"with probes, on QEMU: {failure}", self._last, (), (), ())
            probes.disable()
            self._same_value(result, theirs_result, "with probes")
            self._same_state(state, other, {**self._model.state, **self._model.trapped})
            self._same_memory(memory, other)
        if self.fault and not self.faulty:
            raise KinstError(f"no {self.fault} took place that a fault could be put into")
        fired = [event.site for event in ours if not event.second]
        for address in fired:
            instruction = sites[address][1]
            found.encodings.setdefault(summary(instruction.verdict), set()).add(instruction.code)
            found.lengths[len(probes.trap.breakpoint(len(instruction.code)))] += 1
        found.firings += len(fired)
        self._fired |= {sites[address][1].code for address in fired}

    def _event(self, written: _Written, address: int, second: int | None, frame: int) -> Event:
        """A stop; ``second`` is the site when ``address`` is its second breakpoint."""
        machine = written.machine
        site, is_second = address if second is None else second, second is not None
        return Event(
            site, is_second, machine.read(frame, machine.arch.trap_frame.size),
            written=written.at(site, is_second, self._stack_pointer(machine, frame)))

    def _fire(self, seen: list[Event], probe: Probe, state: CpuState | NativeState) -> None:
        seen[-1].registers = tuple(state.get(name) for name in self._names)
        if len(seen) > 4 * MOST_FIRINGS:
            raise TooLongError(f"more than {len(seen)} stops")

    def _sites(self, recording: Recording, points: dict[int, ModelPoint],
               found: Agreement) -> dict[int, tuple[Symbol, Instruction]]:
        """What to probe: of the instructions executed, those whose encoding has not fired yet, and
        then others, while there is room.

        :raises TooLongError: when all are executed too often.
        """
        symbols, trap = self.machine.image.symbols, self._listing.trap
        place, steps = recording.pc, recording.steps
        counts = Counter(step[place] for step in steps)
        after: dict[int, set[int]] = {}
        for step, following in itertools.pairwise(steps):
            after.setdefault(step[place], set()).add(following[place])
        candidates: list[tuple[bool, int, int, Symbol, Instruction]] = []
        for address, count in counts.items():
            function = symbols.function_at(address)
            if function is None or exclusion(trap, function.name):
                continue
            found.functions.add(function.name)
            instruction = self._table(function).get(address)
            if instruction is None or address in points:
                continue
            behind = {address + len(instruction.code)}
            faults = (isinstance(instruction.verdict, Copy | Rewrite)
                      and after.get(address, behind) != behind)
            if isinstance(instruction.verdict, Refuse) or faults:
                # In a trampoline, a fault shows QEMU's guest the trampoline's address.
                found.refused += 1
                continue
            seen = instruction.code in self._fired
            candidates.append((seen, count, address, function, instruction))
        candidates.sort(key=lambda c: c[:3])
        chosen: dict[int, tuple[Symbol, Instruction]] = {}
        firings = 0
        for _seen, count, address, function, instruction in candidates:
            if len(chosen) < MAX_PROBES and firings + count <= MAX_FIRINGS:
                chosen[address] = function, instruction
                firings += count
        if not chosen:
            rare = min(candidates, key=lambda c: c[1], default=None)
            if rare is None:
                raise KinstError("it executes nothing that can be probed")
            if rare[1] > MOST_FIRINGS:
                raise TooLongError(f"each instruction more than {MOST_FIRINGS} times")
            chosen[rare[2]] = rare[3], rare[4]
        return chosen

    def _table(self, function: Symbol) -> dict[int, Instruction]:
        if function.address not in self._tables:
            self._tables[function.address] = {
                i.address: i for i in self._listing.instructions(function)}
        return self._tables[function.address]

    def _run_ours(
        self, workload: Workload, sites: dict[int, tuple[Symbol, Instruction]],
        recording: Recording,
    ) -> tuple[list[Event], object]:
        """What our machine sees, and what the call gives there (None: a fault made it fail)."""
        machine = self.machine
        seen: list[Event] = []
        quiet(machine)
        breakpoints = Breakpoints(machine, functools.partial(self._fire, seen), python=True)
        written = _Written(machine, recording)

        def trapped(address: int, frame: int) -> None:
            event = self._event(written, address, breakpoints.dispatcher.second(address), frame)
            event.stack = machine.engine.kept_stack
            seen.append(event)

        breakpoints.trapped = trapped
        _add(breakpoints, sites)
        breakpoints.enable()
        result: int | None = None
        try:
            self._inject(breakpoints, sites)
            result = workload(machine)
        except (CallError, TooLongError):
            if not self.fault:
                raise
            # The fault's doing; the other machine tells where it began.
        finally:
            if machine.engine.frozen:  # it failed inside a firing; the machine is restored later
                machine.engine.abandon(machine.pc)
            breakpoints.disable()
        return seen, result

    # -- comparing ------------------------------------------------------------------------------

    def _compare(self, ours: Sequence[Event], theirs: Sequence[Event],
                 unfinished: bool = False) -> None:
        """Trap frames and registers, stop by stop; ``unfinished``: the other may have fewer."""
        trap = self._listing.trap
        flags = {trap.status: self._model.flags}
        before = number = 0
        for one, other in zip(ours, theirs, strict=False):
            number += not one.second
            if (one.site, one.second) != (other.site, other.second):
                raise Divergence(
                    f"firing {number} is of another probe: {one.site:#x} and {other.site:#x}; "
                    "behind", before or one.site, (), (), ())
            different = [name for name, a, b in zip(
                self._names, one.registers, other.registers, strict=False)
                if (a ^ b) & flags.get(name, -1)]
            if different:
                # What the trap saved is what the instruction displaced before has left.
                raise Divergence(
                    f"{', '.join(different)} differ{'s' * (len(different) == 1)} at firing "
                    f"{number}, {'behind' if before else 'before anything was displaced:'}",
                    before or one.site, self._names, one.registers, other.registers)
            if one.written != other.written:
                raise Divergence(
                    f"what was written to memory differs at firing {number} ({one.written.hex()} "
                    f"and {other.written.hex()}), behind", before, (), (), ())
            self._same_frame(one, other, number)
            before = one.site
        if len(ours) != len(theirs) and not (unfinished and len(theirs) < len(ours)):
            raise Divergence(f"{len(ours)} stops at the seam, {len(theirs)} on QEMU",
                             before or self._last, (), (), ())
        self._last = before or self._last

    def _same_frame(self, one: Event, other: Event, number: int) -> None:
        if one.frame == other.frame:
            return
        names, ours, theirs, different = [], [], [], []
        trampoline = self._listing.trap.names.get("pc") if one.second else None
        for name, (offset, size) in self.machine.arch.trap_frame.fields.items():
            a, b = (int.from_bytes(e.frame[offset : offset + size], "little")
                    for e in (one, other))
            names.append(name)
            ours.append(a)
            theirs.append(b)
            allowed = self._model.frame.get(name)
            if a != b and name != trampoline and not (allowed and allowed.allows(a, b)):
                different.append(name)
        if different:
            which = "the second trap frames" if one.second else "the trap frames"
            raise Divergence(f"{which} at firing {number} differ ({', '.join(different)}) at",
                             one.site, names, ours, theirs)

    def _stack_pointer(self, machine: Machine, frame: int) -> int:
        """The interrupted one, of a trap frame."""
        arch, names = machine.arch, self._listing.trap.names
        return arch.trap_frame.read(machine, frame, names.get(arch.sp, arch.sp))

    def _stack_before(
        self, ours: Sequence[Event], theirs: Sequence[Event]
    ) -> tuple[int, bytes] | None:
        """At QEMU's last stop: what the stack was before it on our machine, while they agree."""
        if len(theirs) > len(ours):
            return None
        one, other = ours[len(theirs) - 1], theirs[-1]
        try:
            self._same_frame(one, other, len(theirs))
        except Divergence:
            return None  # reported when all is compared
        return one.stack if (one.site, one.second) == (other.site, other.second) else None

    def _same_value(self, ours: object, theirs: object, where: str = "") -> None:
        if ours != theirs:
            raise Divergence(f"the results differ {where}: {ours} and {theirs}; behind",
                             self._last, (), (), ())

    def _same_state(self, ours: dict[str, Any], other: QemuMachine,
                    allowed: Mapping[str, StateDifference]) -> None:
        """General, vector and system registers at the end, all that QEMU's stub can read."""
        names, one, two = [], [], []
        for name, value in ours.items():
            if not isinstance(value, int | str) or not other.knows(name):
                continue
            number = (int.from_bytes(bytes.fromhex(value), "little") if isinstance(value, str)
                      else value)
            theirs = other.read_register(name)
            if number != theirs and not (
                    name in allowed and allowed[name].allows(number, theirs)):
                names.append(name)
                one.append(number)
                two.append(theirs)
        if names:
            raise Divergence(f"{', '.join(names)} differ{'s' * (len(names) == 1)} at the end, "
                             "behind", self._last, names, one, two)

    def _memory(self) -> dict[int, bytes]:
        """The pages that the call changed, by physical address."""
        memory, base = self.machine.memory_part, self._base.memory.file
        found = {}
        for at in memory.written():
            content = bytes(memory.view[at : at + PAGE])
            if content != os.pread(base, PAGE, at).ljust(PAGE, b"\0"):
                found[self.machine.board.ram_base + at] = content
        return found

    def _same_memory(self, ours: dict[int, bytes], other: QemuMachine) -> None:
        base = self._base.memory.file
        for page in sorted({*ours, *other.changed(base)}):
            one = ours.get(page) or os.pread(
                base, PAGE, page - other.board.ram_base).ljust(PAGE, b"\0")
            two = other.read_physical(page, PAGE)
            if one != two:
                at = next(i for i in range(PAGE) if one[i] != two[i]) & ~7
                raise Divergence(
                    f"memory differs at physical {page + at:#x}, behind", self._last, ("memory",),
                    (int.from_bytes(one[at : at + 8], "little"),),
                    (int.from_bytes(two[at : at + 8], "little"),))

    # -- faults ---------------------------------------------------------------------------------

    def _inject(self, breakpoints: Breakpoints,
                sites: dict[int, tuple[Symbol, Instruction]]) -> None:
        machine, trap = self.machine, breakpoints.trap
        if self.fault == "delivery":
            seen = breakpoints.trapped
            assert seen is not None
            inner = seen

            def wrong(address: int, frame: int) -> None:
                # As if the CPU had saved a flag wrong.
                fields = machine.arch.trap_frame.fields
                offset, _size = fields[trap.names.get(trap.status, trap.status)]
                machine.write(frame + offset, bytes([machine.read(frame + offset, 1)[0] ^ 0x20]))
                if address in sites:
                    self.faulty = self.faulty or address
                inner(address, frame)

            breakpoints.trapped = wrong
        elif self.fault == "trampoline":
            copies = [i for _f, i in sites.values() if isinstance(i.verdict, Copy)]
            for one in copies:
                other = next((i for i in copies
                              if len(i.code) == len(one.code) and i.code != one.code), None)
                known = breakpoints.dispatcher.template(one.address)
                if other is not None and known is not None:
                    body, _second = trap.trampoline(known[1], other.code, Copy(),
                                                    one.address + len(one.code))
                    machine.write_code(known[1], body)
                    self.faulty = one.address
                    return
        elif self.fault == "emulation":
            chosen: list[int] = []

            def stray(address: int, verdict: Verdict) -> Verdict:
                if isinstance(verdict, Copy | Rewrite | Refuse):
                    return verdict
                if not chosen:
                    chosen.append(address)
                    self.faulty = address
                return Astray(verdict, machine.arch.result) if address == chosen[0] else verdict

            breakpoints.fault = stray


class _Settle:
    """On a machine that runs freely: gives the results of the models' known differences."""

    def __init__(self, machine: QemuMachine, points: dict[int, ModelPoint]) -> None:
        self._machine, self._points = machine, points
        self._count: Counter[int] = Counter()

    def install(self) -> None:
        for address in self._points:
            self._machine.handle(address, functools.partial(self._at, address))

    def _at(self, address: int) -> None:
        self._machine.step()
        self._points[address].settle(self._machine, self._count[address])
        self._count[address] += 1


def _add(probes: ProbeTable, sites: dict[int, tuple[Symbol, Instruction]]) -> None:
    for function, instruction in sites.values():
        probes.add(function, Kind.OFFSET, instruction)

