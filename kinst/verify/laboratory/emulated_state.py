"""The state that a verdict emulates an instruction on."""

from dataclasses import dataclass

from kinst.verify.laboratory.architecture import Judge
from kinst.verify.laboratory.flat_cpu import FlatCpu
from kinst.verify.laboratory.memory_map import MASK


class Unreachable(Exception):
    """An emulation has touched memory that cannot be there."""


@dataclass
class EmulatedState:
    """The State of an emulation: registers of a random state, memory of a cpu."""

    cpu: FlatCpu | Judge
    values: dict[str, int]
    vectors: list[int]

    def get(self, register: str) -> int:
        return 0 if register in ("xzr", "zero") else self.values[register]

    def set(self, register: str, value: int) -> None:
        if register not in ("xzr", "zero"):
            self.values[register] = value & MASK

    def set_vector(self, number: int, value: int) -> None:
        if number < len(self.vectors):
            self.vectors[number] = value

    def load(self, address: int, size: int) -> int:
        self._reach(address, size)
        return int.from_bytes(self.cpu.read(address, size), "little")

    def store(self, address: int, size: int, value: int) -> None:
        self._reach(address, size)
        self.cpu.write(address, (value & (1 << 8 * size) - 1).to_bytes(size, "little"))

    def _reach(self, address: int, size: int) -> None:
        if not (self.cpu.map(address) and self.cpu.map(address + size - 1)):
            raise Unreachable
