"""Trial: executes instructions in a booted kernel, in place and under a module's own probes.

The instructions are placed in a kernel function that nothing calls during a trial, each after a
prologue, so that the module takes it for a function.  Random registers and the stack pointer point
into pages from the guest's own allocator.  Virtual time does not advance between executions, so
that timer interrupts do not occur.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dwarf.types import Types
from emu.elf.symbols import Symbol
from emu.machine.call import CallError
from emu.machine.machine import StopReason, Until
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.state import Snapshot
from kinst.relocation.trap import TRAPS
from kinst.verify.laboratory.outcome import ChangedPages, Outcome
from kinst.verify.trial.architecture import TRIALS
from kinst.verify.trial.faults import Faults
from kinst.verify.trial.guess import guessed
from kinst.verify.trial.memory import LANDING, LEAST_STACK, PAGE, TrialMemory
from kinst.verify.trial.provider_module import KinstModule, MadeProbe, ProviderModule
from kinst.verify.trial.sample import Sample
from kinst.verify.trial.states import TrialStates, divided

LIMIT = 50_000  # maximum number of instructions of an execution
LONG = 5_000_000  # maximum number of instructions of an interrupted execution
# function name for placed instructions; kinst excludes functions whose names begin with kinst_
NAME = "trial_of_kinst"
PASSES = 64  # maximum number of stops at the expected pc with a wrong stack pointer
LOST = -1  # error number for a module that panics or does not return
NOWHERE = "access to nonexistent memory"  # an access that causes no fault in the kernel
REPEATS = "instruction repeats for too long"  # a string instruction with a large random count
# Functions in which instructions are placed: minimum size, and minimum distance between two of
# them, both in bytes
SMALLEST, APART = 2048, 1 << 20


@dataclass(frozen=True)
class PlacedProbe:
    """A sample, and the probe that the module has created for the sample.

    :param probe: probe created by the module, or None.
    :param error: error number returned by the module.
    :param patch: bytes of the instruction while the probe is enabled.
    """

    sample: Sample
    probe: MadeProbe | None
    error: int
    patch: bytes = b""


def _spread(functions: list[Symbol]) -> list[Symbol]:
    """Return the largest function and further functions, all at a great distance from each other.

    Pc-relative operands of a sample have different contents in each function.
    """
    chosen = list[Symbol]()
    for function in sorted(functions, key=lambda f: -f.size):
        if function.size < SMALLEST and chosen:
            break
        if all(abs(function.address - other.address) >= APART for other in chosen):
            chosen.append(function)
    return chosen


class _Lost(Exception):
    """Error raised if the module panics or does not return while it creates a probe."""

    def __init__(self, sample: Sample) -> None:
        super().__init__()
        self.sample = sample


class Trial:
    """Booted machine prepared to execute samples.

    :param machine: booted machine with the module; used by this trial only.
    :raises KinstError: if the module cannot be used.
    """

    def __init__(self, machine: UnicornMachine, types: Types, seed: int,
                 module: type[ProviderModule] = KinstModule) -> None:
        self.machine = machine
        self.arch, self.trap = TRIALS[machine.arch.name], TRAPS[machine.arch.name]
        self.module = module(machine, types)
        self.functions = _spread([f for f in machine.image.symbols.functions()
                                  if not machine.image.module_at(f.address)])
        self.function = self.functions[0]
        self.memory = TrialMemory(machine, self.function, seed, self.arch.protection)
        self.states = TrialStates(machine, self.arch, self.memory, seed)
        self._compared = [name for name in machine.arch.registers
                          if name not in (machine.arch.pc, self.arch.flags)]
        self.faults = Faults(machine, self.arch, self.trap, self._compared)
        self._clock = machine.engine.instructions, machine.engine.skew
        self._fixed = {name: machine.read_register(name) for name in self.arch.fixed}
        self.base = machine.snapshot()
        self._cpu = machine.read_register(machine.guest.threads.per_cpu)
        self._thread = machine.read_u64(self._cpu)
        # When loaded, fbt.ko probes every function, including functions that samples overwrite.
        self._old = {p.place for f in self.functions
                     for p in self.module.probes(f.address, f.address + f.size).values()}
        self.made: Snapshot = self.base  # state in which a batch's probes exist but are disabled

    # -- a batch ------------------------------------------------------------------------------

    def room(self, where: int = 0) -> int:
        """Return the maximum size in bytes of a batch, including the code around samples."""
        return self.functions[where].size - 2 * LANDING

    def is_placed(self, code: bytes) -> bool:
        """Return whether an instruction's memory operands depend on the instruction's address."""
        at = self.function.address
        arch = self.machine.arch
        return arch.placed_operands(code, at) != arch.placed_operands(code, at + PAGE)

    def size_of(self, code: bytes) -> int:
        """Return the size in bytes of an instruction, including the code around the instruction."""
        before, after = self.around(code)
        size, grain = len(before) + len(code) + len(after), len(self.arch.prologue)
        return size + -size % grain

    def around(self, code: bytes) -> tuple[bytes, bytes]:
        """Return the code to be placed before and after an instruction."""
        return self.module.around(self.arch.prologue, self.arch.returns, code,
                                  self.trap.instructions.is_prologue(code))

    def place(self, codes: Sequence[bytes], where: int = 0) -> list[PlacedProbe]:
        """Place instructions in a function, and have the module create and enable their probes.

        :param where: index of the function in ``functions``.
        """
        rest, lost = list(codes), list[PlacedProbe]()
        self.memory.forget()
        while True:
            try:
                return [*self._place(rest, self.functions[where].address), *lost]
            except _Lost as error:
                rest.remove(error.sample.code)
                lost.append(PlacedProbe(error.sample, None, LOST))

    def _place(self, codes: Sequence[bytes], begin: int) -> list[PlacedProbe]:
        """Place instructions, and have the module create and enable their probes.

        :raises _Lost: if the module panics or does not return.
        """
        machine = self.machine
        machine.restore(self.base)
        at, samples, content = begin, list[Sample](), bytearray()
        for code in codes:
            (before, after), size = self.around(code), self.size_of(code)
            samples.append(Sample(code, at + len(before)))
            content += (before + code + after).ljust(size, self.trap.breakpoint(4)[:1])
            at += size
        machine.write_code(begin, bytes(content))
        placed_probes = [self._made(sample) for sample in samples]
        self.made = machine.snapshot()
        # Record the bytes that the module writes, so that each sample can run with only its own
        # breakpoint: a sample may jump into another sample.
        for i, placed in enumerate(placed_probes):
            if placed.probe is not None:
                self.module.enable(placed.probe)
                sample = placed.sample
                patch = machine.read(sample.address, len(sample.code))
                placed_probes[i] = replace(placed, patch=patch)
        self.restart()
        return placed_probes

    def _made(self, sample: Sample) -> PlacedProbe:
        before, after = self.around(sample.code)
        begin, end = sample.address - len(before), sample.after + len(after)
        try:
            error = self.module.make(NAME, begin, end - begin)
        except CallError:
            raise _Lost(sample) from None
        probe = self.module.probes(sample.address, sample.after).get(sample.address)
        if probe is not None and probe.place in self._old:
            probe = None
        return PlacedProbe(sample, probe, error)

    # -- executions ---------------------------------------------------------------------------

    def restart(self) -> None:
        """Restore the machine to its state before any execution, with no probe enabled."""
        self.machine.restore(self.made)

    def make_way(self, sample: Sample, pc: int) -> None:
        """Put valid code where a sample continues, because Unicorn stops only before valid code."""
        code = self.arch.prologue
        if self.machine.image.holds_code(pc) and not (
                sample.address - len(code) < pc < sample.after):
            self.machine.write_code(pc, code)

    def enable(self, placed: PlacedProbe, on: bool) -> None:
        """Write the patch that enables a sample's probe if ``on``, else the original code."""
        self.machine.write_code(placed.sample.address,
                                placed.patch if on else placed.sample.code)

    def prepare(self, sample: Sample, number: int) -> None:
        """Set up a random state in which the sample is executed next."""
        machine = self.machine
        values, vectors = self.states.state(number, sample.code)
        self.memory.fill(sample, divided(number))
        engine = machine.engine
        engine.instructions, engine.skew = self._clock
        for name, value in (values | self._fixed).items():
            machine.write_register(name, value)
        machine.write_register(machine.arch.sp, self.memory.sp)
        for (register, bits), value in zip(self.arch.vectors, vectors, strict=True):
            engine.write_bytes(register, value.to_bytes(bits // 8, "little"))
        machine.pc = sample.address

    def in_place(self, sample: Sample, number: int) -> Outcome:
        """Execute a sample in place."""
        self.prepare(sample, number)
        machine = self.machine
        stop = machine.run(Until(addresses=[*self._guess(sample, number), *self.faults.handlers],
                                 instructions=machine.instructions + LIMIT))
        if stop.reason is StopReason.UNHANDLED:
            return self._lost(NOWHERE, 0)
        if stop.reason is StopReason.ADDRESS and stop.pc in self.faults.handlers:
            return self._outcome(stop.pc, {})
        if stop.reason is StopReason.ADDRESS:
            return self._outcome(stop.pc, None)
        if stop.pc == sample.address:
            return self._lost(REPEATS, 0)
        # The sample continues at an unexpected address: execute only one instruction.
        self.prepare(sample, number)
        machine.run(Until(instructions=machine.instructions + 1))
        return self._outcome(machine.pc, None)

    def interrupted(self, placed: PlacedProbe, number: int, expected: Outcome) -> Outcome | None:
        """Execute a sample like ``displaced``, with a console interrupt before the trampoline.

        If interrupts are enabled, the interrupt leaves the trampoline, another thread runs, and
        the CPU returns to the trampoline.

        :return: None if the trampoline is not reached.
        """
        assert placed.probe is not None
        machine, sample = self.machine, placed.sample
        trampoline = self.arch.trampoline(self.module, placed.probe)
        self.prepare(sample, number)
        stop = machine.run(Until(addresses=[trampoline, *self.faults.handlers],
                                 instructions=machine.instructions + LIMIT))
        if stop.reason is not StopReason.ADDRESS or stop.pc != trampoline:
            return None
        machine.type(b"x")
        return self._until(sample, expected, LONG)

    def displaced(self, sample: Sample, number: int, expected: Outcome) -> Outcome:
        """Execute a sample under the module's probe until the sample has completed or faulted."""
        self.prepare(sample, number)
        return self._until(sample, expected, LIMIT)

    def _until(self, sample: Sample, expected: Outcome, limit: int) -> Outcome:
        machine = self.machine
        stops = {*self.faults.handlers, sample.after}
        if not expected.fault:
            stops.add(expected.pc)
        end = machine.instructions + limit
        for _ in range(PASSES):
            stop = machine.run(Until(addresses=list(stops), instructions=end))
            if stop.reason is StopReason.UNHANDLED:
                return self._lost(NOWHERE, 0)
            if stop.reason is not StopReason.ADDRESS:
                return self._lost(str(stop.reason.value), stop.pc)
            sp = machine.sp
            if stop.pc in self.faults.handlers or stop.pc != expected.pc or (
                    sp == expected.registers[machine.arch.sp]):
                return self._outcome(stop.pc, expected.memory)
        return self._lost("no return to the expected address", machine.pc)

    def _lost(self, why: str, pc: int) -> Outcome:
        at = f", at {self.machine.image.symbols.where(pc)}" if pc else ""
        return Outcome({}, (), {}, pc, why + at)

    def _outcome(self, pc: int, like: ChangedPages | None) -> Outcome:
        machine = self.machine
        fault = self.faults.handlers.get(pc)
        if fault is None:
            registers = {name: machine.read_register(name) for name in self._compared}
            registers[self.arch.flags] = (machine.read_register(self.arch.flags)
                                          & self.arch.compared_flags)
        else:
            registers, pc = self.faults.registers(fault), 0
            fault = self.faults.text()
        vectors = tuple(int.from_bytes(machine.engine.read_bytes(register, bits // 8), "little")
                        for register, bits in self.arch.vectors)
        return Outcome(registers, vectors,
                       self.memory.changed(like, 0 if fault else machine.sp), pc, fault or "")

    def gone(self, sample: Sample, outcome: Outcome) -> bool:
        """Return whether a sample completed in place and then faulted fetching its jump target."""
        return (not sample.address <= self.faults.at < sample.after
                and outcome.fault == self.faults.of_its_own_address())

    def has_stack(self, outcome: Outcome) -> bool:
        """Return whether the kernel can continue: stack, thread and fixed registers are intact."""
        if outcome.fault:
            return True
        sp = outcome.registers[self.machine.arch.sp]
        if self.machine.read_u64(self._cpu) != self._thread:
            self.restart()
            return False
        return (self.memory.stack[0] + LEAST_STACK <= sp < self.memory.stack[1]
                and all(outcome.registers.get(name, value) == value
                        for name, value in self._fixed.items()))

    def _guess(self, sample: Sample, number: int) -> list[int]:
        """Return the addresses at which a sample may continue according to kinst-emu's verdict."""
        values, _vectors = self.states.state(number, sample.code)
        return guessed(self.machine, self.trap, sample,
                       values | self._fixed | {self.machine.arch.sp: self.memory.sp})
