"""Random register states for a trial."""

import random
from collections.abc import Callable

from emu.machine.machine import Machine
from kinst.verify.laboratory.laboratory import SAME, mixed
from kinst.verify.trial.architecture import TrialArch
from kinst.verify.trial.memory import AROUND, DATA_PAGES, PAGE, TrialMemory

# Number of the first state in each family of special states.  The registers contain stack addresses
# (CALM), code addresses (JUMPS), data addresses (POINTERS), data addresses or small numbers
# (MIXED), or the same value everywhere (HALVES).  States with even numbers enable interrupts.
CALM, JUMPS, POINTERS, MIXED, HALVES = 1000, 2000, 3000, 4000, 5000
MASK = (1 << 64) - 1


def divided(number: int) -> bool:
    """Return whether a state places nonzero divisors in the memory of pc-relative operands."""
    return MIXED <= number < HALVES


class TrialStates:
    """Random register states by number; each state is created once.

    :param machine: source of the flags that are not random.
    """

    def __init__(self, machine: Machine, arch: TrialArch, memory: TrialMemory, seed: int
                 ) -> None:
        self._arch, self._memory, self._seed = arch, memory, seed
        self._flags = machine.read_register(arch.flags)
        self._set = [name for name in machine.arch.registers if name not in (
            machine.arch.pc, machine.arch.sp, arch.flags, *arch.fixed)]
        self._states: dict[tuple[int, int], tuple[dict[str, int], list[int]]] = {}

    def state(self, number: int, code: bytes = b"") -> tuple[dict[str, int], list[int]]:
        """Return a random state: general registers with the flags, and vector registers.

        In mixed states, a large displacement of the instruction is subtracted from the addresses,
        so that the instruction accesses data.
        """
        far = self._arch.displacement(code) if MIXED <= number < HALVES else 0
        far *= abs(far) > AROUND * PAGE // 2
        if (number, far) not in self._states:
            data = self._memory.data
            generator = random.Random(self._seed << 20 ^ number)
            kinds: tuple[Callable[[], int], ...] = (
                lambda: data + generator.randrange(0, DATA_PAGES * PAGE - 64, 8),
                lambda: generator.randrange(-8, 300) & MASK,
                lambda: generator.getrandbits(64),
                lambda: data + generator.randrange(0, DATA_PAGES * PAGE - 64),
                lambda: -generator.randrange(1, 1 << 31) & MASK,
                lambda: generator.getrandbits(32) << 32,
                lambda: self._memory.landing(generator),
            )
            if number >= HALVES:  # each family has fewer than 1000 states
                values = dict.fromkeys(self._set, SAME[(number - HALVES) // 2])
            elif number >= MIXED:
                values = mixed(
                    (number - MIXED) // 2, self._set,
                    lambda: data - far + generator.randrange(0, DATA_PAGES * PAGE - 64, 64),
                    lambda: generator.randrange(0, 256, 16))
            elif number >= JUMPS:
                kind = kinds[-1] if number < POINTERS else kinds[0]
                values = {name: kind() for name in self._set}
            elif number >= CALM:
                values = {name: self._memory.sp + generator.randrange(0, PAGE, 16)
                          for name in self._set}
            else:
                values = {name: generator.choice(kinds)() for name in self._set}
            keep = ~(self._arch.random_flags | self._arch.interrupts) & MASK
            masked = self._arch.interrupts ^ self._arch.interrupts_on
            values[self._arch.flags] = (self._flags & keep
                                       | generator.getrandbits(64) & self._arch.random_flags
                                       | (masked if number % 2 else self._arch.interrupts_on))
            vectors = [generator.getrandbits(bits) for _register, bits in self._arch.vectors]
            self._states[number, far] = values, vectors
        return self._states[number, far]
