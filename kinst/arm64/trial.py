"""Trials of FreeBSD's kinst.ko on arm64 (sys/cddl/dev/kinst/aarch64 of FreeBSD 15.0).

The module emulates or copies an instruction.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from kinst.arm64.laboratory import Arm64Laboratory
from kinst.arm64.trap import PSTATE_I
from kinst.verify.trial.architecture import Becomes, TrialArch
from kinst.verify.trial.layout import Layout
from kinst.verify.trial.provider_module import MadeProbe

CONDITIONS, MASKS = 0xF << 28, 0xF << 6  # NZCV, DAIF


class Arm64Trial(TrialArch):
    """arm64-specific part of a trial of a provider module."""

    prologue: ClassVar[bytes] = bytes.fromhex("fd7bbfa9")  # stp x29, x30, [sp, #-16]!
    nothing: ClassVar[bytes] = bytes.fromhex("1f2003d5")
    returns: ClassVar[bytes] = bytes.fromhex("c0035fd6")
    fixed: ClassVar[frozenset[str]] = frozenset({"x18"})  # address of per-CPU data
    flags: ClassVar[str] = "pstate"
    random_flags: ClassVar[int] = CONDITIONS
    interrupts: ClassVar[int] = PSTATE_I
    interrupts_on: ClassVar[int] = 0
    compared_flags: ClassVar[int] = CONDITIONS | MASKS
    faults: ClassVar[Mapping[str, str | None]] = {
        "data_abort": "x1", "align_abort": "x1", "external_abort": "x1",
        "vpanic": None}
    fault_address: ClassVar[str] = "far_el1"
    vectors: ClassVar[Sequence[tuple[int, int]]] = Arm64Laboratory.vectors[:4]

    def __init__(self) -> None:
        self._bench = Arm64Laboratory()

    def becomes(self, layout: Layout, probe: MadeProbe) -> Becomes:
        return Becomes("emulate" if layout.get(probe.data, "kp_md.emulate") else "copy", 4)

    def not_executed(self, code: bytes) -> str | None:
        return self._bench.not_executed(code)


TRIAL = Arm64Trial()
