"""What the laboratory must know of an architecture, and what it asks of a CPU that judges."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from emu.arch.arch import Arch
from emu.arch.parts import Parts
from kinst.verify.laboratory.outcome import ChangedPages, Outcome


class LaboratoryArch(ABC):
    """What the laboratory must know of an architecture."""

    uc_arch: ClassVar[int]
    uc_mode: ClassVar[int]
    cpu_model: ClassVar[int]
    arch: ClassVar[Arch]
    fixed: ClassVar[int] = 0  # bytes of every instruction, or 0
    general: ClassVar[dict[str, int]]  # registers compared and set at random -> Unicorn's numbers
    pc: ClassVar[int]
    flags: ClassVar[tuple[str, int]]  # the flags register and its bits that are set at random
    vectors: ClassVar[Sequence[tuple[int, int]]]  # Unicorn's numbers, and bits
    control: ClassVar[Mapping[str, int]] = {}  # of the general ones: not random, but this
    preset: ClassVar[Sequence[tuple[int, int]]] = ()  # set before each execution, not compared
    trap_pc_offset: ClassVar[int] = 0  # how far Unicorn moves pc before it reports an exception
    unknown: ClassVar[frozenset[str]]  # the faults of what the CPU model does not know

    def prepare(self, engine: Any) -> None:
        """Bring a new engine into the kernel's mode."""
        return None

    def adapt(self, code: bytes, values: dict[str, int]) -> None:
        """Change a random state where an instruction would otherwise run too long."""
        return None

    def repeats(self, code: bytes) -> bool:
        """Whether an instruction repeats itself."""
        return False

    def judge(self, seed: int) -> "Judge | None":
        """The host's own CPU, where it is of the architecture.

        :raises KinstError: when the host does not let us use it.
        """
        return None

    def not_judged(self, code: bytes) -> str | None:
        """Why the host's CPU does not execute an instruction: it would not be the same twice."""
        return None

    @abstractmethod
    def not_executed(self, code: bytes) -> str | None:
        """Why an instruction is not executed here, though it could be probed: it would change the
        machine under the laboratory."""


class Judge(Protocol):
    """A CPU that executes instructions by itself, on memory like a cpu's."""

    unknown: ClassVar[str]  # the fault of what it does not know
    compared: ClassVar[Mapping[str, int]]  # registers that an emulation may change: their bits

    @property
    def crowded(self) -> bool:
        """There is hardly room for more pages."""

    def prepare(self, values: dict[str, int], vectors: list[int]) -> dict[str, int]:
        """A random state as this CPU can have it."""

    def run(self, values: dict[str, int], code: bytes, slot: int, body: bytes,
            repeats: bool) -> Outcome:
        """Execute ``code`` at CODE, or its trampoline ``body`` at ``slot`` (0: there is none)."""

    def refill(self, code: bytes) -> dict[int, bytes]:
        """Make memory what it is at the beginning; what that is."""

    def changed(self, before: dict[int, bytes], size: int) -> ChangedPages:
        """The pages that have changed; ``size`` bytes at CODE do not count."""

    def map(self, address: int) -> bool: ...

    def read(self, address: int, size: int) -> bytes: ...

    def write(self, address: int, data: bytes) -> None: ...

    def close(self) -> None: ...


LABORATORIES: Parts[type[LaboratoryArch]] = Parts("kinst.{}.laboratory", "LABORATORY")
