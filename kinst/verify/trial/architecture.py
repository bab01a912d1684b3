"""What the trial of a module must know of an architecture."""

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
    """What a relocator makes of an instruction, in words that both sides have.

    :param word: ``copy``, ``rewrite``, ``emulate``, or ``refuse``.
    :param length: bytes of the instruction; 0: it does not say.
    :param target: where it jumps to, or what it reads relative to itself; None: it does not say.
    :param operands: of an emulated jump through registers or memory: (base, index, scale,
        displacement); None: it does not say.
    """

    word: str
    length: int = 0
    target: int | None = None
    operands: tuple[str | None, str | None, int, int] | None = None


class TrialArch(ABC):
    """:cvar prologue: instructions that a function has to begin with, that the module takes it.
    :cvar nothing: an instruction without effect; ``returns`` one that ends a function.
    :cvar fixed: general registers that the kernel itself needs, whatever runs.
    :cvar random_flags: bits of the flags register that are set at random; ``interrupts`` is the
        one that masks or admits interrupts (``interrupts_on`` of it admits them),
        ``compared_flags`` what is compared.
    :cvar faults: C functions that a fault of kernel code comes to -> the register with its trap
        frame, or nothing.
    :cvar fault_address: the register with the address that a fault is about; ``fault_mask`` of it
        is the same on every CPU.
    :cvar protection: the register, and its bit, that protects what may only be read, also from the
        kernel, where instructions write relative to themselves.
    :cvar unknown: the member of the trap frame that says of a fault what it is, and what it is of
        an instruction that the CPU does not know.
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
    vectors: ClassVar[Sequence[tuple[int, int]]] = ()  # Unicorn's numbers, and bits
    protection: ClassVar[tuple[str, int] | None] = None

    @abstractmethod
    def becomes(self, layout: Layout, probe: MadeProbe) -> Becomes:
        """What the module has decided."""

    def ours(self, code: bytes, verdict: Verdict) -> Becomes:
        """Our verdict in the same words."""
        word = {Copy: "copy", Rewrite: "rewrite", Refuse: "refuse"}.get(type(verdict), "emulate")
        return Becomes(word, len(code))

    def trampoline(self, module: ProviderModule, probe: MadeProbe) -> int:
        """Where the module executes a probe's instruction, with interrupts on: the probe's own."""
        return module.probe.get(probe.data, "kp_tramp")

    def displacement(self, code: bytes) -> int:
        """What an instruction adds to the registers that it addresses memory by, where that may be
        much."""
        return 0

    @abstractmethod
    def not_executed(self, code: bytes) -> str | None:
        """Why an instruction is not executed in a kernel, though it could be probed."""


TRIALS: Parts[TrialArch] = Parts("kinst.{}.trial", "TRIAL")
