"""Calls on two machines that must agree: instruction by instruction, and with probes.

For each call: (a) every instruction in lockstep; then, with probes on what was executed, (b) the
bytes of every trap frame at the seam, (c) all registers at every firing; and (d) what the call
gives and the memory it leaves, with and without probes.  The first machine runs the guest path in
Python, which the native path is held to elsewhere; the second is QEMU.
"""

import functools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from emu.elf import Symbol
from emu.errors import KinstError
from emu.guest_memory import PAGE
from emu.machine import Machine
from emu.qemu_machine import QemuMachine
from emu.unicorn_machine import Snapshot, UnicornMachine
from kinst.breakpoints import Breakpoints, NativeState
from kinst.listing import Instruction, exclusion
from kinst.lockstep import (
    Divergence,
    ModelPoint,
    Recording,
    TooLongError,
    follow,
    model_points,
    quiet,
    record,
)
from kinst.models import FRAME_MASKS
from kinst.probe_table import OFFSET, Probe, ProbeTable
from kinst.seam_breakpoints import SeamBreakpoints
from kinst.trap import CpuState
from kinst.verdict import Bits, Copy, Emulate, Lowered, Refuse, Rewrite, State, Verdict, summary

MAX_PROBES, MAX_FIRINGS = 300, 1200  # of a call
PROBED_PATIENCE = 30.0  # seconds for a call with probes
FAULTS = ("delivery", "trampoline", "emulation")

Workload = Callable[[Machine], int]


@dataclass
class Firings:
    """What a machine saw at its seam: (breakpoint, trap frame), (breakpoint, registers).

    :param stacks: of the first machine: (address, bytes) of the stack before each trap.  It takes
        back what its traps leave there; the second machine is told, because a function that reads
        a variable it has not set would see it.
    """

    frames: list[tuple[int, bytes]] = field(default_factory=list)
    stacks: list[tuple[int, bytes]] = field(default_factory=list)
    fired: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)


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
        self.machine, self.fault = machine, fault
        self._base: Snapshot = machine.snapshot()
        self._tables: dict[int, dict[int, Instruction]] = {}
        self._listing = ProbeTable(machine)
        self._fired: set[bytes] = set()  # encodings
        self._at_fault = 0
        self.faulty = 0  # the address of the instruction that the fault was put at

    def check(self, workload: Workload) -> Agreement:
        """One call.

        :raises Divergence: where the machines do not agree.
        :raises TooLongError: when the call executes too much.
        """
        machine = self.machine
        machine.restore(self._base)
        recording, value = record(machine, workload)
        memory = self._memory()
        machine.restore(self._base)
        points = model_points(machine, recording)
        found = Agreement(1, len(recording.steps))
        for point in points.values():
            found.reasons[point.reason] += len(point.results)
        last = recording.steps[-1][recording.pc]
        with QemuMachine.carry(machine, self._base) as other:
            self._same_value(value, follow(other, recording, points, workload), last)
            self._same_memory(memory, other, last)
        self._probed(workload, recording, points, found, value)
        machine.restore(self._base)
        return found

    # -- with probes ----------------------------------------------------------------------------

    def _probed(self, workload: Workload, recording: Recording, points: dict[int, ModelPoint],
                found: Agreement, value: object) -> None:
        machine = self.machine
        sites = self._sites(recording, points, found)
        last = recording.steps[-1][recording.pc]
        ours = self._run_ours(workload, sites, value, last)
        memory = self._memory()
        machine.restore(self._base)
        theirs, stacks = Firings(), iter(ours.stacks)
        with QemuMachine.carry(machine, self._base) as other:
            other.patience = PROBED_PATIENCE
            settle = _Settle(other, points)
            layout, names = machine.arch.trap_frame, tuple(machine.arch.registers)
            probes = SeamBreakpoints(
                other, lambda probe, state: _fired(theirs, probe, state, names))

            def trapped(address: int, frame: int) -> None:
                if address in sites:
                    theirs.frames.append((address, other.read(frame, layout.size)))


            probes.trapped, probes.stack_before = trapped, lambda: next(stacks, None)
            _add(probes, sites)
            probes.enable()
            settle.install()
            try:
                result = workload(other)
            except KinstError as error:
                self._compare(ours, theirs, sites)
                raise Divergence(f"with probes, QEMU: {error}", self._at_fault or last, (), (), ()
                                 ) from None
            probes.disable()
            self._compare(ours, theirs, sites)
            self._same_value(value, result, last)
            self._same_memory(memory, other, last)
        for address, _registers in ours.fired:
            instruction = sites[address][1]
            found.encodings.setdefault(summary(instruction.verdict), set()).add(instruction.code)
            found.lengths[len(probes.trap.breakpoint(len(instruction.code)))] += 1
        found.firings += len(ours.fired)
        self._fired |= {sites[address][1].code for address, _registers in ours.fired}

    def _sites(self, recording: Recording, points: dict[int, ModelPoint],
               found: Agreement) -> dict[int, tuple[Symbol, Instruction]]:
        """What to probe: of the instructions executed, those whose encoding has not fired yet, and
        then others, while there is room."""
        symbols, trap = self.machine.image.symbols, self._listing.trap
        counts = Counter(step[recording.pc] for step in recording.steps)
        candidates: list[tuple[bool, int, int, Symbol, Instruction]] = []
        for address, count in counts.items():
            function = symbols.function_at(address)
            if function is None or exclusion(trap, function.name):
                continue
            found.functions.add(function.name)
            instruction = self._table(function).get(address)
            if instruction is None or address in points:
                continue
            if isinstance(instruction.verdict, Refuse):
                found.refused += 1
                continue
            seen = instruction.code in self._fired
            candidates.append((seen, count, address, function, instruction))
        chosen: dict[int, tuple[Symbol, Instruction]] = {}
        firings = 0
        for _seen, count, address, function, instruction in sorted(
                candidates, key=lambda c: c[:3]):
            if len(chosen) == MAX_PROBES or firings + count > MAX_FIRINGS:
                break
            chosen[address] = function, instruction
            firings += count
        return chosen

    def _table(self, function: Symbol) -> dict[int, Instruction]:
        if function.address not in self._tables:
            self._tables[function.address] = {
                i.address: i for i in self._listing.instructions(function)}
        return self._tables[function.address]

    def _run_ours(self, workload: Workload, sites: dict[int, tuple[Symbol, Instruction]],
                  value: object, last: int) -> Firings:
        machine, seen = self.machine, Firings()
        names = tuple(machine.arch.registers)
        quiet(machine)
        breakpoints = Breakpoints(
            machine, lambda probe, state: _fired(seen, probe, state, names), python=True)

        def trapped(address: int, frame: int) -> None:
            if address in sites:
                seen.frames.append((address, machine.read(frame, machine.arch.trap_frame.size)))
            seen.stacks.append(machine.engine.kept_stack)

        breakpoints.trapped = trapped
        _add(breakpoints, sites)
        breakpoints.enable()
        result: int | None = None
        try:
            self._inject(breakpoints, sites)
            result = workload(machine)
        except KinstError:
            if not self.fault:
                raise
            # The fault's doing; the other machine tells where it began.
        finally:
            breakpoints.disable()
        if not self.fault:
            self._same_value(value, result, last, "with probes and without, on the same machine")
        return seen

    # -- comparing ------------------------------------------------------------------------------

    def _compare(self, ours: Firings, theirs: Firings,
                 sites: dict[int, tuple[Symbol, Instruction]]) -> None:
        """Trap frames and registers, firing by firing."""
        names, trap = tuple(self.machine.arch.registers), self._listing.trap
        flags = {trap.status: sum(1 << bit for bit in trap.flag_bits)}  # what instructions compute
        before = 0
        for number, (one, other) in enumerate(zip(ours.fired, theirs.fired, strict=False)):
            self._at_fault = before or one[0]
            different = [name for name, a, b in zip(names, one[1], other[1], strict=True)
                         if (a ^ b) & flags.get(name, -1)]
            if different and before:
                # What the trap saved is what the instruction displaced before has left.
                raise Divergence(f"{', '.join(different)} differ{'s' * (len(different) == 1)} at "
                                 f"firing {number + 1}, behind", before, names, one[1], other[1])
            self._same_frame(ours.frames[number], theirs.frames[number], number)
            before = one[0]
        if len(ours.fired) != len(theirs.fired):
            raise Divergence(f"{len(ours.fired)} firings, {len(theirs.fired)} on QEMU",
                             before or next(iter(sites), 0), (), (), ())

    def _same_frame(self, one: tuple[int, bytes], other: tuple[int, bytes], number: int) -> None:
        if one == other:
            return
        layout = self.machine.arch.trap_frame
        masks = FRAME_MASKS[self.machine.arch.name]
        names, ours, theirs = [], [], []
        for name, (offset, size) in layout.fields.items():
            a, b = (int.from_bytes(f[1][offset : offset + size], "little") for f in (one, other))
            names.append(name)
            ours.append(a)
            theirs.append(b & ~masks[name][0] | a & masks[name][0] if name in masks else b)
        if ours != theirs or one[0] != other[0]:
            different = ", ".join(n for n, a, b in zip(names, ours, theirs, strict=True) if a != b)
            raise Divergence(f"the trap frames at firing {number + 1} differ ({different}) at",
                             one[0], names, ours, theirs)

    def _same_value(self, ours: object, theirs: object, last: int, where: str = "") -> None:
        if ours != theirs:
            raise Divergence(f"the results differ {where}: {ours} and {theirs}", last, (), (), ())

    def _memory(self) -> dict[int, bytes]:
        """The pages that the call changed, by physical address."""
        memory, base = self.machine.memory_part, self._base.memory.file
        found = {}
        for at in memory.written():
            content = bytes(memory.view[at : at + PAGE])
            if content != os.pread(base, PAGE, at).ljust(PAGE, b"\0"):
                found[self.machine.board.ram_base + at] = content
        return found

    def _same_memory(self, ours: dict[int, bytes], other: QemuMachine, last: int) -> None:
        base = self._base.memory.file
        for page in sorted({*ours, *other.changed(base)}):
            one = ours.get(page) or os.pread(
                base, PAGE, page - other.board.ram_base).ljust(PAGE, b"\0")
            two = other.read_physical(page, PAGE)
            if one != two:
                at = next(i for i in range(PAGE) if one[i] != two[i]) & ~7
                raise Divergence(
                    f"memory differs at physical {page + at:#x}", last, ("memory",),
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
        point, machine = self._points[address], self._machine
        machine.handle(address, None)
        number = self._count[address]
        self._count[address] += 1
        machine.step()
        if number < len(point.results):
            for name, value in point.results[number].items():
                machine.write_register(name, value)
        machine.handle(address, functools.partial(self._at, address))


def _add(probes: ProbeTable, sites: dict[int, tuple[Symbol, Instruction]]) -> None:
    for function, instruction in sites.values():
        probes.add(function, OFFSET, instruction)


def _fired(seen: Firings, probe: Probe, state: CpuState | NativeState,
           names: Sequence[str]) -> None:
    if len(seen.fired) > 4 * MAX_FIRINGS:
        raise TooLongError(f"more than {4 * MAX_FIRINGS} firings")
    seen.fired.append((probe.instruction.address, tuple(state.get(name) for name in names)))


