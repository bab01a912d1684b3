"""Trials of FreeBSD's kinst.ko on riscv64 (sys/cddl/dev/kinst/riscv of FreeBSD 15.0).

The module records an instruction's length and whether it is emulated.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from kinst.riscv64.laboratory import Riscv64Laboratory
from kinst.riscv64.trap import SIE
from kinst.verify.trial.architecture import Becomes, TrialArch
from kinst.verify.trial.layout import Layout
from kinst.verify.trial.provider_module import MadeProbe


class Riscv64Trial(TrialArch):
    """riscv64-specific part of a trial of a provider module."""

    prologue: ClassVar[bytes] = bytes.fromhex("06e4")  # c.sdsp ra, 8(sp)
    nothing: ClassVar[bytes] = bytes.fromhex("13000000")
    returns: ClassVar[bytes] = bytes.fromhex("8280")
    fixed: ClassVar[frozenset[str]] = frozenset({"zero", "gp", "tp"})
    flags: ClassVar[str] = "sstatus"
    random_flags: ClassVar[int] = 0
    interrupts: ClassVar[int] = SIE
    interrupts_on: ClassVar[int] = SIE
    compared_flags: ClassVar[int] = SIE
    faults: ClassVar[Mapping[str, str | None]] = {"page_fault_handler": "a0", "kdb_trap": "a2",
                                                  "vpanic": None}
    fault_address: ClassVar[str] = "stval"
    fault_mask: ClassVar[int] = ~1 & (1 << 64) - 1  # the CPU model does not clear bit 0 of sepc
    vectors: ClassVar[Sequence[tuple[int, int]]] = Riscv64Laboratory.vectors[:4]

    def __init__(self) -> None:
        self._bench = Riscv64Laboratory()

    def becomes(self, layout: Layout, probe: MadeProbe) -> Becomes:
        return Becomes("emulate" if layout.get(probe.data, "kp_md.emulate") else "copy",
                       layout.get(probe.data, "kp_md.instlen"))

    def not_executed(self, code: bytes) -> str | None:
        return self._bench.not_executed(code)


TRIAL = Riscv64Trial()
