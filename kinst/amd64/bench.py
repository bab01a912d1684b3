"""amd64 in the laboratory."""

from collections.abc import Sequence
from typing import ClassVar

import capstone
import unicorn
import unicorn.x86_const as uc
from capstone import x86_const as x86

from emu.amd64 import registers
from emu.amd64.arch import Amd64
from kinst.laboratory import Bench

# Instructions that would change the laboratory's own machine, or wait for one around it.
PRIVILEGED = {
    getattr(x86, f"X86_INS_{name}")
    for name in ("WRMSR RDMSR LGDT LIDT LLDT LTR LMSW INVLPG INVD WBINVD SWAPGS CLTS XSETBV "
                 "IN INSB INSW INSD OUT OUTSB OUTSW OUTSD RDTSC RDTSCP RDPMC CPUID MONITOR MWAIT "
                 "CLGI STGI VMLOAD VMSAVE VMMCALL VMCALL CLI RDRAND RDSEED XSAVE XSAVEOPT XRSTOR "
                 "FXSAVE FXRSTOR FXSAVE64 FXRSTOR64 XSAVE64 XSAVEOPT64 XRSTOR64").split()
    if hasattr(x86, f"X86_INS_{name}")
}
SYSTEM_REGISTERS = {
    getattr(x86, f"X86_REG_{name}")
    for name in [*(f"CR{i}" for i in range(16)), *(f"DR{i}" for i in range(16)),
                 "CS", "DS", "ES", "FS", "GS", "SS"]
}
PREFIXES = bytes([0xF0, 0xF2, 0xF3, 0x2E, 0x36, 0x3E, 0x26, 0x64, 0x65, 0x66, 0x67,
                  *range(0x40, 0x50)])
STRINGS = b"\xa4\xa5\xa6\xa7\xaa\xab\xac\xad\xae\xaf"  # MOVS CMPS STOS LODS SCAS
STATUS = 0x8D5  # CF PF AF ZF SF OF


class Amd64Bench(Bench):
    arch = Amd64()
    uc_arch, uc_mode = unicorn.UC_ARCH_X86, unicorn.UC_MODE_64
    cpu_model = uc.UC_CPU_X86_QEMU64
    general: ClassVar[dict[str, int]] = {
        name: registers.UNICORN[name] for name in registers.NAMES if name != "rip"
    } | {"fs_base": uc.UC_X86_REG_FS_BASE, "gs_base": uc.UC_X86_REG_GS_BASE}
    pc = uc.UC_X86_REG_RIP
    flags: ClassVar[tuple[str, int]] = ("rflags", STATUS)
    vectors: ClassVar[Sequence[int]] = tuple(uc.UC_X86_REG_XMM0 + i for i in range(8))

    def __init__(self) -> None:
        self._decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
        self._decoder.detail = True

    def adapt(self, code: bytes, values: dict[str, int]) -> None:
        """A repeated string instruction repeats at most 63 times."""
        if self.repeats(code):
            values["rcx"] &= 63

    def repeats(self, code: bytes) -> bool:
        opcode = code.lstrip(PREFIXES)
        prefixes = code[: len(code) - len(opcode)]
        return bool(opcode) and opcode[0] in STRINGS and any(p in prefixes for p in b"\xf2\xf3")

    def not_executed(self, code: bytes) -> str | None:
        if code[:1] == b"\xc2" and code[2:3] >= b"\x80":
            return "the CPU model takes its count for a negative one"
        instruction = next(self._decoder.disasm(code, 0, 1), None)
        if instruction is None:
            return "the decoder does not know it"
        if instruction.id in PRIVILEGED:
            return "it works on the machine around it"
        if any(o.type == x86.X86_OP_REG and o.reg in SYSTEM_REGISTERS
               for o in instruction.operands):
            return "it works on a system register"
        return None
