"""Firings of probes on single instructions, from random states of a booted kernel."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import unicorn

from emu.elf.symbols import Symbol
from emu.host.errors import KinstError
from emu.machine.machine import Until
from emu.unicorn.machine import UnicornMachine
from kinst.code.listing import ProbedInstruction
from kinst.probes.probe_table import ProbeTable
from kinst.relocation.trap import TRAPS
from kinst.relocation.verdict import Refuse, summary
from kinst.verify.laboratory.architecture import LABORATORIES
from kinst_emu.explain.record.chosen import ChosenPlace
from kinst_emu.explain.record.recorder import FiringRecorder
from kinst_emu.explain.record.seen_firing import SeenFiring

MAX_STEPS = 5_000  # maximum number of recorded instructions of a firing
TRIES = 2_000  # maximum number of functions searched for a suitable instruction
MASK = (1 << 64) - 1
# distance in bytes between the stack pointer and the memory to which random pointers refer
BELOW = 0x1000
ROOM = 0x400
MAX_SIZE = 1 << 14  # maximum size in bytes of a function in the quiz


@dataclass(frozen=True)
class Experiment:
    """Firing of a probe on an instruction, from a random state.

    :param function: function that contains the instruction.
    :param registers: registers before the instruction, by name.
    :param table: instructions of the function.
    """

    function: Symbol
    instruction: ProbedInstruction
    registers: dict[str, int]
    firing: SeenFiring
    table: Sequence[ProbedInstruction]

    @property
    def after(self) -> dict[str, int]:
        """Registers at the point where execution resumes after the firing."""
        return self.firing.rows[self.firing.last].registers


class Experimenter:
    """Source of random instructions, which also runs experiments on them.

    :param machine: machine with a booted kernel; each experiment restores its state at the end.
    """

    def __init__(self, machine: UnicornMachine) -> None:
        self.machine, self.trap = machine, TRAPS[machine.arch.name]
        self.facts = LABORATORIES[machine.arch.name]()
        self._base = machine.snapshot()
        self._memory = (machine.sp - BELOW - ROOM) & ~15  # memory to which random pointers refer
        # The stack pointer and the registers that the kernel reserves keep their values.
        arch = machine.arch
        self._flags, self._bits = self.facts.flags
        kept = {arch.sp, arch.pc, machine.guest.threads.per_cpu, self.trap.status.name, self._flags,
                *self.facts.control}
        self._random = [name for name in self.facts.general
                        if name in arch.registers and name not in kept]
        self._table = ProbeTable(machine)
        exclusions = machine.guest.traps.exclusions
        self._functions = [f for f in machine.image.symbols.functions()
                           if 0 < f.size <= MAX_SIZE and not exclusions.reason(f.name)]
        if not self._functions:
            raise KinstError(f"{machine.image.path.name} for {machine.arch.name}: the symbol table "
                             "has no usable functions, so there is nothing to ask about")

    def instruction(self, generator: random.Random, word: str) -> tuple[Symbol, ProbedInstruction]:
        """Return a random function, and an instruction in it whose verdict begins with ``word``.

        :raises KinstError: when no such instruction is found.
        """
        for _ in range(TRIES):
            function = generator.choice(self._functions)
            matching = [i for i in self._known(function) if summary(i.verdict).startswith(word)]
            if matching:
                return function, generator.choice(matching)
        raise KinstError(f"{self.machine.image.path.name} for {self.machine.arch.name}: no "
                         f"instruction in {TRIES} functions has the verdict {word}: choose "
                         "another --level or --arch")

    def _known(self, function: Symbol) -> Sequence[ProbedInstruction]:
        """Return a function's instructions that are refused or that the laboratory can execute."""
        try:
            table = self._table.instructions(function)
        except KinstError:
            return []
        return [i for i in table if isinstance(i.verdict, Refuse)
                or (self.facts.not_executed(i.code) is None and not self.facts.repeats(i.code))]

    def run(self, generator: random.Random, function: Symbol, instruction: ProbedInstruction
            ) -> Experiment | None:
        """Execute an instruction under a probe from a random state; return None if that fails."""
        return self._run(function, instruction, self._state(generator))

    def reads_memory(self, one: Experiment) -> bool:
        """Return whether the instruction reads memory when it is executed in place."""
        machine, seen = self.machine, list[int]()

        def read(_uc: object, _access: int, address: int, *_more: object) -> None:
            seen.append(address)

        machine.restore(self._base)
        self._enter(one.instruction, {name: one.registers[name]
                                      for name in [*self._random, self._flags] if name})
        hook = machine.uc.hook_add(unicorn.UC_HOOK_MEM_READ, read, begin=1, end=0)
        machine.engine.flush_translations()
        try:
            machine.run(Until(instructions=machine.instructions + 1))
        finally:
            machine.engine.unhook(hook)
            machine.restore(self._base)
        return bool(seen)

    def _enter(self, instruction: ProbedInstruction, values: dict[str, int]) -> None:
        """Set registers, and move the pc to an instruction."""
        for name, value in values.items():
            self.machine.write_register(name, value)
        self.machine.pc = instruction.address

    def _run(self, function: Symbol, instruction: ProbedInstruction, values: dict[str, int]
             ) -> Experiment | None:
        machine = self.machine
        machine.restore(self._base)
        recorder = FiringRecorder(machine, ChosenPlace(function, instruction.offset, 1))

        def workload() -> None:
            self._enter(instruction, values)
            machine.run(Until(instructions=machine.instructions + 1))

        try:
            firing = recorder.record(workload)
        except KinstError:
            return None
        finally:
            machine.restore(self._base)
        if not firing.frames or len(firing.rows) > MAX_STEPS:
            return None
        return Experiment(function, instruction, firing.rows[0].registers, firing, recorder.table)

    def _state(self, generator: random.Random) -> dict[str, int]:
        values = {name: generator.choice((
                      self._memory + generator.randrange(0, ROOM, 8), generator.randrange(0, 64),
                      generator.getrandbits(32), -generator.randrange(1, 64) & MASK))
                  for name in self._random}
        if self._flags:
            values[self._flags] = (self.machine.read_register(self._flags) & ~self._bits
                                   | generator.getrandbits(64) & self._bits)
        return values
