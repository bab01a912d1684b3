"""Runs one instruction under a breakpoint, from a random state, on a kernel that waits."""

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

MAX_STEPS = 5_000  # of a breakpoint, there and back
TRIES = 2_000  # functions that are looked through for an instruction
MASK = (1 << 64) - 1
BELOW = 0x1000  # bytes between the stack pointer and the memory that random pointers lead to
ROOM = 0x400
MAX_SIZE = 1 << 14  # bytes of a function


@dataclass(frozen=True)
class Experiment:
    """A firing from a random state.

    :param function: where the instruction is.
    :param registers: before it, by name.
    :param table: the function's instructions.
    """

    function: Symbol
    instruction: ProbedInstruction
    registers: dict[str, int]
    firing: SeenFiring
    table: Sequence[ProbedInstruction]

    @property
    def after(self) -> dict[str, int]:
        """The registers where the run goes on."""
        return self.firing.rows[self.firing.last].registers


class Experimenter:
    """Instructions of a kernel and what becomes of them, by chance.

    :param machine: where a kernel waits; it is as before after each experiment.
    """

    def __init__(self, machine: UnicornMachine) -> None:
        self.machine, self.trap = machine, TRAPS[machine.arch.name]
        self.facts = LABORATORIES[machine.arch.name]()
        self._base = machine.snapshot()
        self._memory = (machine.sp - BELOW - ROOM) & ~15  # where random pointers lead to
        # The stack pointer and what the kernel keeps in others stay.
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
            raise KinstError(f"{machine.image.path.name} for {machine.arch.name}: has no functions "
                             "with a size: nothing can be asked about")

    def instruction(self, generator: random.Random, word: str) -> tuple[Symbol, ProbedInstruction]:
        """One whose verdict has that word.

        :raises KinstError: when none is found.
        """
        for _ in range(TRIES):
            function = generator.choice(self._functions)
            found = [i for i in self._known(function) if summary(i.verdict).startswith(word)]
            if found:
                return function, generator.choice(found)
        raise KinstError(f"{self.machine.image.path.name} for {self.machine.arch.name}: among "
                         f"{TRIES} functions there is no instruction whose verdict is {word}: "
                         "choose another --level or --arch")

    def _known(self, function: Symbol) -> Sequence[ProbedInstruction]:
        """Instructions that every CPU model can execute."""
        try:
            table = self._table.instructions(function)
        except KinstError:
            return []
        return [i for i in table if isinstance(i.verdict, Refuse)
                or (self.facts.not_executed(i.code) is None and not self.facts.repeats(i.code))]

    def run(self, generator: random.Random, function: Symbol, instruction: ProbedInstruction
            ) -> Experiment | None:
        """Fire a probe on it once, from a random state; None when it does not come to its end."""
        return self._run(function, instruction, self._state(generator))

    def reads_memory(self, one: Experiment) -> bool:
        """Whether the instruction, at its own place, reads anything that is not in registers."""
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
        """Registers as they are to be, at an instruction."""
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
