"""Instructions executed in a booted kernel: in place, and under the module's own probes.

The instructions stand in a function of the kernel that nothing calls meanwhile, each with a
prologue before it, so that the module takes it for a function.  Random registers point into pages
that the guest's own allocator has given; the stack is there, too.  No time passes between the
executions, so that no interrupt comes by itself.
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

LIMIT = 50_000  # instructions of one execution
LONG = 5_000_000  # and of one that is interrupted
NAME = "trial_of_kinst"  # kinst leaves functions named kinst_... out
PASSES = 64  # times that the end may be passed by before it is reached
LOST = -1  # instead of an error number: the module panics, or does not return
NOWHERE = "it touches memory where nothing is"  # the machine does not tell the kernel of it
REPEATS = "it repeats itself for too long"  # a string instruction whose count is random
SMALLEST, APART = 2048, 1 << 20  # bytes of functions that instructions are placed in, and between


@dataclass(frozen=True)
class PlacedProbe:
    """A sample, and the probe that the module has made for it.

    :param probe: what the module has made for it; None: nothing.
    :param error: the module's error number.
    :param patch: the instruction's bytes when the probe is enabled.
    """

    sample: Sample
    probe: MadeProbe | None
    error: int
    patch: bytes = b""


def _spread(functions: list[Symbol]) -> list[Symbol]:
    """The greatest one, and others far from each other: what is read or written relative to the
    instruction is somewhere else from there."""
    found = list[Symbol]()
    for one in sorted(functions, key=lambda f: -f.size):
        if one.size < SMALLEST and found:
            break
        if all(abs(one.address - other.address) >= APART for other in found):
            found.append(one)
    return found


class _Lost(Exception):
    """The module did not come back from making a probe."""

    def __init__(self, sample: Sample) -> None:
        super().__init__()
        self.sample = sample


class Trial:
    """A machine prepared for executions.

    :param machine: booted, with the module; it is this trial's alone.
    :raises KinstError: when the module cannot be used.
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
        # FBT has probes on every function from the beginning, also on those that stood here.
        self._old = {p.place for f in self.functions
                     for p in self.module.probes(f.address, f.address + f.size).values()}
        self.made: Snapshot = self.base  # the probes are made, and none is enabled

    # -- a batch ------------------------------------------------------------------------------

    def room(self, where: int = 0) -> int:
        """Bytes of instructions that a batch may have, prologues among them."""
        return self.functions[where].size - 2 * LANDING

    def is_placed(self, code: bytes) -> bool:
        """Whether it depends on an instruction's address what it reads or writes."""
        at = self.function.address
        arch = self.machine.arch
        return arch.placed_operands(code, at) != arch.placed_operands(code, at + PAGE)

    def size_of(self, code: bytes) -> int:
        before, after = self.around(code)
        size, grain = len(before) + len(code) + len(after), len(self.arch.prologue)
        return size + -size % grain

    def around(self, code: bytes) -> tuple[bytes, bytes]:
        """What stands before and behind an instruction."""
        return self.module.around(self.arch.prologue, self.arch.returns, code,
                                  self.trap.instructions.is_prologue(code))

    def place(self, codes: Sequence[bytes], where: int = 0) -> list[PlacedProbe]:
        """Put instructions into the function and let the module make and enable their probes.

        :param where: in which of the functions.
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
        """Place instructions and have the module make and enable their probes.

        :raises _Lost: for an instruction that the module panics at.
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
        found = [self._made(sample) for sample in samples]
        self.made = machine.snapshot()
        # What it writes, so that each can be executed with its own breakpoint alone: the targets
        # of others' jumps lie among them.
        for i, placed in enumerate(found):
            if placed.probe is not None:
                self.module.enable(placed.probe)
                sample = placed.sample
                patch = machine.read(sample.address, len(sample.code))
                found[i] = replace(placed, patch=patch)
        self.restart()
        return found

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
        """Back to where nothing was executed, and no probe is enabled."""
        self.machine.restore(self.made)

    def make_way(self, sample: Sample, pc: int) -> None:
        """Have an instruction where a sample goes on: Unicorn does not stop before what is none."""
        code = self.arch.prologue
        if self.machine.image.holds_code(pc) and not (
                sample.address - len(code) < pc < sample.after):
            self.machine.write_code(pc, code)

    def enable(self, placed: PlacedProbe, on: bool) -> None:
        """Write what the module writes to enable a probe, or to disable it."""
        self.machine.write_code(placed.sample.address,
                                placed.patch if on else placed.sample.code)

    def prepare(self, sample: Sample, number: int) -> None:
        """The random state, about to execute the instruction."""
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
        """Executed where it stands."""
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
        self.prepare(sample, number)  # somewhere else: one instruction alone
        machine.run(Until(instructions=machine.instructions + 1))
        return self._outcome(machine.pc, None)

    def interrupted(self, placed: PlacedProbe, number: int, expected: Outcome) -> Outcome | None:
        """As ``displaced``, and a key is typed when the trampoline is about to be executed: where
        interrupts are admitted there, it is left, another thread runs, and it is come back to.

        :return: None where it does not come to the trampoline.
        """
        assert placed.probe is not None
        machine, sample = self.machine, placed.sample
        at = self.arch.trampoline(self.module, placed.probe)
        self.prepare(sample, number)
        stop = machine.run(Until(addresses=[at, *self.faults.handlers],
                                 instructions=machine.instructions + LIMIT))
        if stop.reason is not StopReason.ADDRESS or stop.pc != at:
            return None
        machine.type(b"x")
        return self._until(sample, expected, LONG)

    def displaced(self, sample: Sample, number: int, expected: Outcome) -> Outcome:
        """Executed under the module's probe, until it is where it goes on in place."""
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
        return self._lost("it does not come back", machine.pc)

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
        """Whether a sample that was just executed in place did all that it does: what faults is
        where it leads to."""
        return (not sample.address <= self.faults.at < sample.after
                and outcome.fault == self.faults.of_its_own_address())

    def has_stack(self, outcome: Outcome) -> bool:
        """Whether the kernel can go on after it: there is a stack, and what it needs is there."""
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
        """Where an instruction may go on, by our own table."""
        values, _vectors = self.states.state(number, sample.code)
        return guessed(self.machine, self.trap, sample,
                       values | self._fixed | {self.machine.arch.sp: self.memory.sp})
