"""Instruction to be tested."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """Instruction to be tested, at its address in a kernel function."""

    code: bytes
    address: int

    @property
    def after(self) -> int:
        """Address of the next instruction."""
        return self.address + len(self.code)
