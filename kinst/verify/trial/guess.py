"""Prediction of the address at which an instruction continues, from kinst-emu's verdict."""

from dataclasses import dataclass

from emu.host.errors import MemoryAccessError
from emu.machine.machine import Machine
from kinst.relocation.trap import GuestTrap
from kinst.relocation.verdict import Copy, Refuse, Rewrite
from kinst.verify.trial.sample import Sample
from kinst.verify.trial.states import MASK


def guessed(machine: Machine, trap: GuestTrap, sample: Sample, values: dict[str, int]
            ) -> list[int]:
    """Return the addresses at which a sample may continue.

    These are the next instruction and, for an emulated instruction, where its verdict leads.

    :param values: registers before the sample is executed.
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
    """State for a trial emulation: memory is read from the guest, but never written."""

    machine: Machine
    values: dict[str, int]

    def get(self, register: str) -> int:
        """Return the value of a general register; zero registers read as 0."""
        if register in ("xzr", "zero"):
            return 0
        if register in self.values:
            return self.values[register]
        return self.machine.read_register(register)

    def set(self, register: str, value: int) -> None:
        """Set a general register in this state only."""
        self.values[register] = value & MASK

    def set_vector(self, number: int, value: int) -> None:
        """Ignore the write to a vector register."""
        return None

    def load(self, address: int, size: int) -> int:
        """Load a little-endian value from guest memory."""
        return int.from_bytes(self.machine.read(address & MASK, size), "little")

    def store(self, address: int, size: int, value: int) -> None:
        """Ignore the write to memory."""
        return None
