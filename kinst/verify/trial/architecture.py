"""Per-architecture interface of the trial of a provider module."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from emu.arch.parts import Parts
from kinst.relocation.verdict import Copy, Refuse, Rewrite, Verdict
from kinst.verify.trial.layout import Layout
from kinst.verify.trial.provider_module import MadeProbe, ProviderModule


@dataclass(frozen=True)
class Becomes:
    """Treatment of an instruction by a relocator, in a form that can be compared.

    :param word: ``copy``, ``rewrite``, ``emulate``, or ``refuse``.
    :param length: length of the instruction in bytes; 0 if the relocator does not state it.
    :param target: jump target, or address of a pc-relative operand; None if not stated.
    :param operands: (base, index, scale, displacement) of an emulated jump through registers or
        memory; None if not stated.
    """

    word: str
    length: int = 0
    target: int | None = None
    operands: tuple[str | None, str | None, int, int] | None = None


class TrialArch(ABC):
    """Architecture-specific part of a trial.

    :cvar prologue: instruction with which a function must begin for the module to accept it.
    :cvar nothing: instruction without effect.
    :cvar returns: instruction that ends a function.
    :cvar fixed: general registers that the kernel itself relies on; they keep their values.
    :cvar flags: name of the flags register.
    :cvar random_flags: bits of the flags register that are set at random.
    :cvar interrupts: bit of the flags register that masks or enables interrupts.
    :cvar interrupts_on: value of this bit when interrupts are enabled.
    :cvar compared_flags: bits of the flags register that are compared.
    :cvar faults: kernel functions that handle faults, with the register that holds the trap frame,
        or None.
    :cvar fault_address: register with the address that a fault reports.
    :cvar fault_mask: bits of this address that are the same on every CPU.
    :cvar protection: register and its bit that write-protect read-only memory from the kernel.
    :cvar unknown: member of the trap frame with the cause of a fault, and its value for an
        instruction that the CPU does not support.
    """

    prologue: ClassVar[bytes]
    nothing: ClassVar[bytes]
    returns: ClassVar[bytes]
    fixed: ClassVar[frozenset[str]] = frozenset()
    flags: ClassVar[str]
    random_flags: ClassVar[int]
    interrupts: ClassVar[int]
    interrupts_on: ClassVar[int]
    compared_flags: ClassVar[int]
    faults: ClassVar[Mapping[str, str | None]]
    fault_address: ClassVar[str]
    fault_mask: ClassVar[int] = (1 << 64) - 1
    unknown: ClassVar[tuple[str, int] | None] = None
    # vector registers: (Unicorn's identifier, width in bits)
    vectors: ClassVar[Sequence[tuple[int, int]]] = ()
    protection: ClassVar[tuple[str, int] | None] = None

    @abstractmethod
    def becomes(self, layout: Layout, probe: MadeProbe) -> Becomes:
        """Return how the module treats the instruction of a probe."""

    def ours(self, code: bytes, verdict: Verdict) -> Becomes:
        """Convert kinst-emu's verdict to the form in which verdicts are compared."""
        word = {Copy: "copy", Rewrite: "rewrite", Refuse: "refuse"}.get(type(verdict), "emulate")
        return Becomes(word, len(code))

    def trampoline(self, module: ProviderModule, probe: MadeProbe) -> int:
        """Return the address of the trampoline that a probe uses while interrupts are enabled."""
        return module.probe.get(probe.data, "kp_tramp")

    def displacement(self, code: bytes) -> int:
        """Return the constant that a memory operand adds to its base register, or 0.

        Architectures without large displacements return 0.
        """
        return 0

    @abstractmethod
    def not_executed(self, code: bytes) -> str | None:
        """Return the reason why the trial does not execute an instruction, or None."""


TRIALS: Parts[TrialArch] = Parts("kinst.{}.trial", "TRIAL")
