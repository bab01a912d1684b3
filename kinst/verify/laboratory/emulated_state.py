"""Register and memory state on which a verdict emulates an instruction."""

from dataclasses import dataclass

from kinst.verify.laboratory.architecture import Judge
from kinst.verify.laboratory.flat_cpu import FlatCpu
from kinst.verify.laboratory.memory_map import MASK


class Unreachable(Exception):
    """Error raised if an emulation accesses memory that cannot be mapped."""


@dataclass
class EmulatedState:
    """Registers with random initial values, and a CPU's memory, for emulating one instruction."""

    cpu: FlatCpu | Judge
    values: dict[str, int]
    vectors: list[int]

    def get(self, register: str) -> int:
        """Return the value of a general register; zero registers read as 0."""
        return 0 if register in ("xzr", "zero") else self.values[register]

    def set(self, register: str, value: int) -> None:
        """Set a general register; writes to zero registers are ignored."""
        if register not in ("xzr", "zero"):
            self.values[register] = value & MASK

    def set_vector(self, number: int, value: int) -> None:
        """Set a vector register, unless the state does not contain it."""
        if number < len(self.vectors):
            self.vectors[number] = value

    def load(self, address: int, size: int) -> int:
        """Load a little-endian value.

        :raises Unreachable: if the memory cannot be mapped.
        """
        self._reach(address, size)
        return int.from_bytes(self.cpu.read(address, size), "little")

    def store(self, address: int, size: int, value: int) -> None:
        """Store a little-endian value.

        :raises Unreachable: if the memory cannot be mapped.
        """
        self._reach(address, size)
        self.cpu.write(address, (value & (1 << 8 * size) - 1).to_bytes(size, "little"))

    def _reach(self, address: int, size: int) -> None:
        if not (self.cpu.map(address) and self.cpu.map(address + size - 1)):
            raise Unreachable
