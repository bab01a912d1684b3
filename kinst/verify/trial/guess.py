"""Where an instruction may go on, as our own table of verdicts has it."""

from dataclasses import dataclass

from emu.host.errors import MemoryAccessError
from emu.machine.machine import Machine
from kinst.relocation.trap import GuestTrap
from kinst.relocation.verdict import Copy, Refuse, Rewrite
from kinst.verify.trial.sample import Sample
from kinst.verify.trial.states import MASK


def guessed(machine: Machine, trap: GuestTrap, sample: Sample, values: dict[str, int]
            ) -> list[int]:
    """The addresses at which a sample may go on: the next instruction and, for one that is
    emulated, where its verdict leads.

    :param values: the registers before the sample is executed.
    """
    verdict = trap.instructions.classify(sample.code, sample.address)[1]
    if isinstance(verdict, Copy | Rewrite | Refuse):
        return [sample.after]
    try:
        pc = verdict.next_pc(_GuessedState(machine, values)) & MASK
    except MemoryAccessError:
        return [sample.after]
    return [sample.after, pc] if machine.translate(pc) is not None else [sample.after]


@dataclass
class _GuessedState:
    """A random state that an emulation is carried out on; memory as it is, and not written."""

    machine: Machine
    values: dict[str, int]

    def get(self, register: str) -> int:
        if register in ("xzr", "zero"):
            return 0
        if register in self.values:
            return self.values[register]
        return self.machine.read_register(register)

    def set(self, register: str, value: int) -> None:
        self.values[register] = value & MASK

    def set_vector(self, number: int, value: int) -> None:
        return None

    def load(self, address: int, size: int) -> int:
        return int.from_bytes(self.machine.read(address & MASK, size), "little")

    def store(self, address: int, size: int, value: int) -> None:
        return None
