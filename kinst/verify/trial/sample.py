"""An instruction that is tried."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """An instruction at its place in the function."""

    code: bytes
    address: int

    @property
    def after(self) -> int:
        return self.address + len(self.code)
