"""Trials of FreeBSD's kinst.ko on amd64.

Its ``struct kinst_probe_md`` contains flags, lengths, a template and the operands of a call
(sys/cddl/dev/kinst/amd64 of FreeBSD 15.0).
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from emu.amd64.registers import RFLAGS_IF
from kinst.amd64.classify import DirectCall, Indirect
from kinst.amd64.laboratory import PREFIXES, STATUS, Amd64Laboratory
from kinst.relocation.verdict import ConditionalJump, Copy, Jump, Refuse, Rewrite, Verdict
from kinst.verify.trial.architecture import Becomes, TrialArch
from kinst.verify.trial.layout import Layout
from kinst.verify.trial.provider_module import MadeProbe, ProviderModule

CALL, DIRECT_CALL, RIP_RELATIVE, MOD_DIRECT = 1, 2, 4, 16  # KINST_F_*
ENCODED = "rax rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15".split()
MASK = (1 << 64) - 1
DIRECTION = 1 << 10
HLT = b"\xf4"


class Amd64Trial(TrialArch):
    """amd64-specific part of a trial of a provider module."""

    prologue: ClassVar[bytes] = b"\x55"  # push %rbp
    nothing: ClassVar[bytes] = b"\x90"
    returns: ClassVar[bytes] = b"\xc3"
    flags: ClassVar[str] = "rflags"
    random_flags: ClassVar[int] = STATUS
    interrupts: ClassVar[int] = RFLAGS_IF
    interrupts_on: ClassVar[int] = RFLAGS_IF
    compared_flags: ClassVar[int] = STATUS | RFLAGS_IF | DIRECTION
    faults: ClassVar[Mapping[str, str | None]] = {"trap": "rdi", "dblfault_handler": "rdi",
                                                  "vpanic": None}
    fault_address: ClassVar[str] = "cr2"
    unknown: ClassVar[tuple[str, int] | None] = "trapno", 1  # T_PRIVINFLT
    protection: ClassVar[tuple[str, int] | None] = "cr0", 1 << 16  # WP
    vectors: ClassVar[Sequence[tuple[int, int]]] = Amd64Laboratory.vectors[:8]

    def __init__(self) -> None:
        self._bench = Amd64Laboratory()

    def becomes(self, layout: Layout, probe: MadeProbe) -> Becomes:
        data = probe.data
        flags, length = layout.get(data, "kp_md.flags"), layout.get(data, "kp_md.instlen")
        displacement = layout.signed(data, "kp_md.disp")
        if flags & DIRECT_CALL:
            return Becomes("emulate", length, probe.address + length + displacement & MASK)
        if flags & CALL:
            base, index = (layout.signed(data, f"kp_md.reg{n}") for n in (1, 2))
            if base == index == -1:
                return Becomes("emulate", length, None,
                               (None, None, 0, probe.address + length + displacement & MASK))
            scale = 1 << layout.get(data, "kp_md.scale") if index != -1 else 0
            return Becomes("emulate", length, None,
                           (_register(base), _register(index), scale,
                            0 if flags & MOD_DIRECT else displacement & MASK))
        if flags & RIP_RELATIVE:
            in_trampoline = layout.get(data, "kp_md.tinstlen")
            return Becomes("rewrite", length, probe.address + in_trampoline + displacement & MASK)
        return Becomes("copy", length)

    def ours(self, code: bytes, verdict: Verdict) -> Becomes:
        length = len(code)
        match verdict:
            case Refuse():
                return Becomes("refuse", length)
            case Copy():
                return Becomes("copy", length)
            case Rewrite():
                moved = verdict.displacement
                return Becomes("rewrite", length, moved[1] & MASK if moved else None)
            case DirectCall() | Jump() | ConditionalJump():
                return Becomes("emulate", length, verdict.target)
            case Indirect():
                m = verdict.memory
                if m is None:
                    return Becomes("emulate", length, None, (verdict.register, None, 0, 0))
                scale = m.scale if m.index else 0
                return Becomes("emulate", length, None,
                               (m.base, m.index, scale, m.displacement & MASK))
            case _:
                return Becomes("emulate", length)

    def trampoline(self, module: ProviderModule, probe: MadeProbe) -> int:
        """Return the address of the current thread's own trampoline."""
        machine = module.machine
        thread = machine.read_u64(machine.read_register("gs_base"))
        own, _size = Layout(module.types, "struct thread").place("td_dtrace")
        at, _size = Layout(module.types, "struct kdtrace_thread").place("td_kinst_tramp")
        return machine.read_u64(machine.read_u64(thread + own) + at)

    def displacement(self, code: bytes) -> int:
        return self._bench.displacement(code)

    def not_executed(self, code: bytes) -> str | None:
        if code.lstrip(PREFIXES) == HLT:
            return "it waits for an interrupt"
        return self._bench.not_executed(code)


def _register(number: int) -> str | None:
    return None if number == -1 else ENCODED[number & 15]


TRIAL = Amd64Trial()
