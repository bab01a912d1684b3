"""Interfaces of the laboratory: its architecture-specific part, and a CPU besides Unicorn's."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from emu.arch.arch import Arch
from emu.arch.parts import Parts
from kinst.verify.laboratory.outcome import ChangedPages, Outcome


class LaboratoryArch(ABC):
    """Architecture-specific part of the laboratory."""

    uc_arch: ClassVar[int]
    uc_mode: ClassVar[int]
    cpu_model: ClassVar[int]
    arch: ClassVar[Arch]
    fixed: ClassVar[int] = 0  # instruction length in bytes, or 0 if the length varies
    # compared and randomized registers: name -> Unicorn's identifier
    general: ClassVar[dict[str, int]]
    pc: ClassVar[int]
    flags: ClassVar[tuple[str, int]]  # flags register, and the mask of the randomized flags
    # vector registers: (Unicorn's identifier, width in bits)
    vectors: ClassVar[Sequence[tuple[int, int]]]
    control: ClassVar[Mapping[str, int]] = {}  # general registers with a fixed value
    preset: ClassVar[Sequence[tuple[int, int]]] = ()  # (register, value) set before each execution
    trap_pc_offset: ClassVar[int] = 0  # offset that Unicorn adds to the pc of an exception
    # names of the faults that the CPU model raises for instructions that it does not support
    unknown: ClassVar[frozenset[str]]

    def prepare(self, engine: Any) -> None:
        """Configure a new engine for kernel mode."""
        return None

    def adapt(self, code: bytes, values: dict[str, int]) -> None:
        """Change a random state in which an instruction would run too long."""
        return None

    def repeats(self, code: bytes) -> bool:
        """Return whether an instruction may take several steps, as REP string instructions do."""
        return False

    def judge(self, seed: int) -> "Judge | None":
        """Return the host's CPU as a judge, or None on a host of another architecture.

        :raises KinstError: if the host does not permit its use.
        """
        return None

    def not_judged(self, code: bytes) -> str | None:
        """Return the reason why the host's CPU does not execute an instruction, or None.

        The result of such an instruction would not be reproducible there.
        """
        return None

    @abstractmethod
    def not_executed(self, code: bytes) -> str | None:
        """Return the reason why the laboratory does not execute an instruction, or None.

        Such an instruction can be probed, but it accesses state of the machine outside the
        laboratory, or the CPU model does not execute it correctly.
        """


class Judge(Protocol):
    """CPU that executes instructions independently of Unicorn, with memory as in ``FlatCpu``."""

    unknown: ClassVar[str]  # name of the fault that an unsupported instruction causes
    compared: ClassVar[Mapping[str, int]]  # masks of the registers that an emulation may change

    @property
    def crowded(self) -> bool:
        """Whether little memory is left for more pages."""

    def prepare(self, values: dict[str, int], vectors: list[int]) -> dict[str, int]:
        """Load the vector registers; return the general registers adapted to this CPU."""

    def run(self, values: dict[str, int], code: bytes, slot: int, body: bytes,
            repeats: bool) -> Outcome:
        """Execute ``code`` at CODE or, if ``slot`` is not 0, the trampoline ``body``."""

    def refill(self, code: bytes) -> dict[int, bytes]:
        """Reset memory to its initial contents, with ``code`` at CODE; return the pages."""

    def changed(self, before: dict[int, bytes], size: int) -> ChangedPages:
        """Return the pages that differ from ``before``, except for ``size`` bytes at CODE."""

    def map(self, address: int) -> bool:
        """Map the page of an address; return False if that is not possible."""

    def read(self, address: int, size: int) -> bytes:
        """Read memory."""

    def write(self, address: int, data: bytes) -> None:
        """Write memory."""

    def close(self) -> None:
        """Release the CPU."""


LABORATORIES: Parts[type[LaboratoryArch]] = Parts("kinst.{}.laboratory", "LABORATORY")
