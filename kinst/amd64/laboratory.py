"""Laboratory for amd64 instructions."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import capstone
import unicorn
import unicorn.x86_const as uc
from capstone import x86_const as x86

from emu.amd64 import registers
from emu.amd64.arch import Amd64
from kinst.amd64.host import Host
from kinst.verify.laboratory.architecture import LaboratoryArch

# Instructions that access system state or devices, or wait for an event, and so cannot be tested
# in isolation
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
# Instructions that read or write TF, which single-stepping sets
STEPPED = {x86.X86_INS_PUSHF, x86.X86_INS_PUSHFQ, x86.X86_INS_POPF, x86.X86_INS_POPFQ}
# Instructions that UMIP forbids in user mode and that Linux therefore emulates
EMULATED = {x86.X86_INS_SGDT, x86.X86_INS_SIDT, x86.X86_INS_SLDT, x86.X86_INS_STR,
            x86.X86_INS_SMSW}
PREFIXES = bytes([0xF0, 0xF2, 0xF3, 0x2E, 0x36, 0x3E, 0x26, 0x64, 0x65, 0x66, 0x67,
                  *range(0x40, 0x50)])
LOCK, FS, GS = 0xF0, 0x64, 0x65
SEGMENTS = (0x26, 0x2E, 0x36, 0x3E, FS, GS)
# first bytes of a VEX prefix and of an EVEX prefix; number of the opcode map 0F 38
VEX, EVEX, MAP = 0xC4, 0x62, 2
GATHERS = b"\x90\x91\x92\x93\xa0\xa1\xa2\xa3\xc6\xc7"  # opcodes of gathers and scatters
STRINGS = b"\xa4\xa5\xa6\xa7\xaa\xab\xac\xad\xae\xaf"  # MOVS CMPS STOS LODS SCAS
CR4_OSFXSR, CR4_OSXMMEXCPT = 1 << 9, 1 << 10
STATUS = 0x8D5  # CF PF AF ZF SF OF


class Amd64Laboratory(LaboratoryArch):
    """amd64-specific part of the laboratory."""

    arch = Amd64()
    uc_arch, uc_mode = unicorn.UC_ARCH_X86, unicorn.UC_MODE_64
    cpu_model = uc.UC_CPU_X86_QEMU64
    general: ClassVar[dict[str, int]] = {
        name: registers.UNICORN[name] for name in registers.NAMES if name != "rip"
    } | {"fs_base": uc.UC_X86_REG_FS_BASE, "gs_base": uc.UC_X86_REG_GS_BASE} | {
        name: registers.FLOATING_POINT[name] for name in ("fpcw", "fpsw", "mxcsr")
    }
    # Values of the FPU control and status words after FNINIT, and of MXCSR after a reset
    control: ClassVar[Mapping[str, int]] = {"fpcw": 0x37F, "fpsw": 0, "mxcsr": 0x1F80}
    # All x87 registers are in use.  The record of the last x87 instruction is cleared, because it
    # would describe an earlier encoding.
    preset: ClassVar[Sequence[tuple[int, int]]] = tuple((register, 0) for register in (
        uc.UC_X86_REG_FPTAG, uc.UC_X86_REG_FIP, uc.UC_X86_REG_FCS, uc.UC_X86_REG_FDP,
        uc.UC_X86_REG_FDS, uc.UC_X86_REG_FOP))
    unknown: ClassVar[frozenset[str]] = frozenset({"invalid instruction", "exception 6"})
    pc = uc.UC_X86_REG_RIP
    flags: ClassVar[tuple[str, int]] = ("rflags", STATUS)
    vectors: ClassVar[Sequence[tuple[int, int]]] = (
        *((uc.UC_X86_REG_XMM0 + i, 128) for i in range(8)),
        *((uc.UC_X86_REG_FP0 + i, 80) for i in range(8)),  # also the MMX registers
    )

    def prepare(self, engine: Any) -> None:
        engine.reg_write(uc.UC_X86_REG_CR4, CR4_OSFXSR | CR4_OSXMMEXCPT)

    def __init__(self) -> None:
        self._decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
        self._decoder.detail = True

    def adapt(self, code: bytes, values: dict[str, int]) -> None:
        """Limit a repeated string instruction to 63 repetitions."""
        if self.repeats(code):
            values["rcx"] &= 63

    def repeats(self, code: bytes) -> bool:
        """Return whether an instruction is repeated: a string instruction with REP, or a gather.

        A gather can also be interrupted after each element (Intel SDM, VGATHERDPS).
        """
        opcode = code.lstrip(PREFIXES)
        if opcode[:1] == bytes([VEX]) or opcode[:1] == bytes([EVEX]):
            at = 3 if opcode[0] == VEX else 4
            return opcode[1] & 7 == MAP and opcode[at : at + 1] in GATHERS
        prefixes = code[: len(code) - len(opcode)]
        return bool(opcode) and opcode[0] in STRINGS and any(p in prefixes for p in b"\xf2\xf3")

    def displacement(self, code: bytes) -> int:
        """Return the displacement of a memory operand with a base register, or 0."""
        instruction = next(self._decoder.disasm(code, 0, 1), None)
        return next((int(o.mem.disp) for o in instruction.operands if o.type == x86.X86_OP_MEM
                     and o.mem.base not in (0, x86.X86_REG_RIP)), 0) if instruction else 0

    def judge(self, seed: int) -> Host:
        return Host(seed)

    def not_judged(self, code: bytes) -> str | None:
        instruction = next(self._decoder.disasm(code, 0, 1), None)
        if instruction is None:
            return None  # an instruction unknown to Capstone affects only the child process
        if instruction.id in STEPPED:
            return "single-stepping would change its result"
        if instruction.id in EMULATED:
            return "the host's kernel may emulate it"
        return self._around(instruction)

    def not_executed(self, code: bytes) -> str | None:
        opcode = code.lstrip(PREFIXES)
        if opcode[:1] == b"\xc2" and opcode[2:3] >= b"\x80":
            return "the CPU model sign-extends its operand"
        if opcode[:1] == b"\x8f" and opcode[1] & 31 >= 8:
            return "the CPU model decodes XOP as POP"
        segments = [p for p in code[: len(code) - len(opcode)] if p in SEGMENTS]
        if len(segments) > 1 and segments[-1] not in (FS, GS) and {FS, GS} & set(segments):
            return "the CPU model ignores FS and GS before a segment prefix without effect"
        instruction = next(self._decoder.disasm(code, 0, 1), None)
        if instruction is None:
            return "it is unknown to the decoder"
        if LOCK in code[: len(code) - len(opcode)] and not any(o.type == x86.X86_OP_MEM
                                                  for o in instruction.operands):
            return "the CPU model aborts at LOCK with a register operand"
        return self._around(instruction)

    def _around(self, instruction: capstone.CsInsn) -> str | None:
        if instruction.id in PRIVILEGED:
            return "it accesses the machine outside the experiment"
        if any(o.type == x86.X86_OP_REG and o.reg in SYSTEM_REGISTERS
               for o in instruction.operands):
            return "it accesses a system register"
        return None


LABORATORY = Amd64Laboratory
