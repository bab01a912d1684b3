"""Verdicts on amd64 instructions (Intel SDM volume 2, which also defines the opcode names)."""

import functools
import re
import struct
from dataclasses import dataclass, field
from typing import ClassVar

import capstone
from capstone import x86_const as x86

from emu.amd64 import _layout, registers
from kinst.amd64.copied import COPIED, VECTOR_REFUSED
from kinst.relocation.verdict import (
    Bits,
    Condition,
    ConditionalJump,
    Copy,
    Jump,
    Lowered,
    Op,
    Refuse,
    RegisterState,
    Relative,
    Rewrite,
    Verdict,
    truth,
)

MASK = (1 << 64) - 1
OPERAND_SIZE, ADDRESS_SIZE, LOCK, REPEATS = 0x66, 0x67, 0xF0, {0xF2, 0xF3}
SEGMENTS = {0x64: "fs_base", 0x65: "gs_base"}
CF, PF, ZF, SF, OF = 1 << 0, 1 << 2, 1 << 6, 1 << 7, 1 << 11

# Capstone's instruction ID -> reason why the instruction is refused
REFUSED: dict[int, str] = {
    getattr(x86, f"X86_INS_{name}"): reason
    for names, reason in (
        ("POPF POPFQ STI", "changes the interrupt flag"),
        ("HLT MWAIT MWAITX UMWAIT TPAUSE", "waits for an interrupt"),
        ("CLGI STGI", "changes the global interrupt flag"),
        ("VMCALL VMMCALL VMFUNC", "calls the hypervisor"),
        ("VMCLEAR VMLOAD VMPTRLD VMPTRST VMREAD VMSAVE VMWRITE VMXOFF VMXON SKINIT GETSEC",
         "accesses the state of a virtual machine"),
        ("ENCLS ENCLU ENCLV", "enters or leaves an enclave"),
        ("CLRSSBSY INCSSPD INCSSPQ RDSSPD RDSSPQ RSTORSSP SAVEPREVSSP SETSSBSY WRSSD WRSSQ WRUSSD "
         "WRUSSQ", "accesses the shadow stack, which a trap also uses"),
        ("XABORT XEND XTEST", "belongs to a transaction, which a trap would abort"),
        ("INT3", "is already a breakpoint"),
        ("INT INT1 INTO UD0 UD1 UD2", "raises an exception"),
        ("IRET IRETD IRETQ SYSRET SYSEXIT", "returns from an exception"),
        ("SYSCALL SYSENTER", "enters the kernel"),
        ("RETF RETFQ LJMP LCALL", "changes the code segment"),
        ("XBEGIN", "has a target relative to its own address"),
        ("RSM VMLAUNCH VMRESUME VMRUN", "switches to another machine state"),
    )
    for name in names.split()
}
RAISES = "raises an exception"
# (opcode, middle field of ModRM) -> reason why the instruction is refused
REFUSED_OF: dict[tuple[int, int], str] = {
    (0xFF, 3): "changes the code segment", (0xFF, 5): "changes the code segment",
    (0x8E, 1): RAISES,  # MOV CS
    (0x8E, 2): "inhibits interrupts until after the next instruction",  # MOV SS
}


@dataclass(frozen=True)
class ConditionCode:
    """Condition code of a conditional jump, 0 to 15 (SDM volume 1, appendix B)."""

    code: int

    def holds(self, state: RegisterState) -> bool:
        flags = state.get("rflags")
        sign = bool(flags & SF) != bool(flags & OF)
        holds = (
            flags & OF, flags & CF, flags & ZF, flags & (CF | ZF), flags & SF, flags & PF,
            sign, sign or flags & ZF,
        )[self.code >> 1]
        return bool(holds) != bool(self.code & 1)

    def lower(self, bits: Bits) -> Lowered:
        return Lowered(Op.BRANCH_FLAGS, truth=truth(self, bits))


@dataclass(frozen=True)
class Count:
    """Condition of JRCXZ and JECXZ, and of LOOP, LOOPE and LOOPNE, which first decrement the count.

    :param bits: width of the count: 64, or 32 with an address-size prefix; decrementing a 32-bit
        count clears the upper half of the register.
    :param counts: whether the instruction decrements the count.
    :param zero_flag: the value of ZF that LOOPE and LOOPNE require; None for the others.
    """

    bits: int
    counts: bool
    zero_flag: bool | None = None

    def holds(self, state: RegisterState) -> bool:
        mask = (1 << self.bits) - 1
        count = state.get("rcx") & mask
        if not self.counts:
            return count == 0
        count = count - 1 & mask
        state.set("rcx", count)
        if self.zero_flag is not None and bool(state.get("rflags") & ZF) != self.zero_flag:
            return False
        return count != 0

    def lower(self, bits: Bits) -> Lowered:
        zero = bits.index(ZF.bit_length() - 1)
        table = sum(1 << i for i in range(1 << len(bits))
                    if self.zero_flag is None or bool(i >> zero & 1) == self.zero_flag)
        return Lowered(Op.BRANCH_COUNT, "rcx", n=int(self.counts), extra=self.bits, truth=table)


COUNTS = {
    x86.X86_INS_LOOP: (True, None), x86.X86_INS_LOOPE: (True, True),
    x86.X86_INS_LOOPNE: (True, False), x86.X86_INS_JRCXZ: (False, None),
    x86.X86_INS_JECXZ: (False, None),
}


@dataclass(frozen=True)
class MemoryOperand:
    """Memory operand: ``segment + base + index * scale + displacement``.

    :param relative: how the displacement depends on the instruction's address.
    """

    base: str | None
    index: str | None
    scale: int
    displacement: int
    segment: str | None = None
    relative: Relative = field(default=Relative.DISPLACEMENT, repr=False)

    def address(self, state: RegisterState) -> int:
        """Return the address of the operand."""
        total = self.displacement
        if self.base:
            total += state.get(self.base)
        if self.index:
            total += state.get(self.index) * self.scale
        if self.segment:
            total += state.get(self.segment)
        return total & MASK


@dataclass(frozen=True)
class Indirect:
    """Emulation of an indirect ``jmp`` or ``call`` through a register or memory.

    :param pushes: the return address that a call pushes, which is the address after the original
        instruction; None for a jump.
    """

    ends_block: ClassVar[bool] = True
    register: str | None
    memory: MemoryOperand | None
    pushes: int | None

    def next_pc(self, state: RegisterState) -> int:
        if self.memory is not None:
            target = state.load(self.memory.address(state), 8)
        else:
            target = state.get(self.register or "")
        if self.pushes is not None:
            _push(state, self.pushes)
        return target

    def lower(self, bits: Bits) -> Lowered:
        pushes, m = int(self.pushes is not None), self.memory
        if m is None:
            return Lowered(Op.INDIRECT, self.register, extra=1, truth=pushes, ends_block=True)
        return Lowered(Op.INDIRECT, m.base, m.index, m.segment, n=m.scale, truth=pushes,
                       target=m.displacement & MASK, ends_block=True, relative=m.relative)


@dataclass(frozen=True)
class DirectCall:
    """Emulation of a direct ``call``, which pushes the address after the original instruction."""

    ends_block: ClassVar[bool] = True
    target: int
    after: int

    def next_pc(self, state: RegisterState) -> int:
        _push(state, self.after)
        return self.target

    def lower(self, bits: Bits) -> Lowered:
        return Lowered(Op.CALL, target=self.target, ends_block=True,
                       relative=Relative.RELATIVE)


@dataclass(frozen=True)
class Return:
    """Emulation of ``ret``, which also pops ``extra`` bytes of arguments."""

    ends_block: ClassVar[bool] = True
    extra: int

    def next_pc(self, state: RegisterState) -> int:
        sp = state.get("rsp")
        target = state.load(sp, 8)
        state.set("rsp", sp + 8 + self.extra & MASK)
        return target

    def lower(self, bits: Bits) -> Lowered:
        return Lowered(Op.RETURN, extra=self.extra, ends_block=True)


def _push(state: RegisterState, value: int) -> None:
    sp = state.get("rsp") - 8 & MASK
    state.set("rsp", sp)
    state.store(sp, 8, value)


@functools.cache
def decoder() -> capstone.Cs:
    """Return the shared Capstone decoder for amd64, which also decodes operands."""
    disassembler = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    disassembler.detail = True
    return disassembler


# Instructions unknown to Capstone (AMD APM volume 3; SDM volume 2, "UD"): INVLPGB, TLBSYNC, UDB
UNKNOWN: dict[bytes, Verdict] = {
    b"\x0f\x01\xfe": Copy(), b"\x0f\x01\xff": Copy(), b"\xd6": Refuse(RAISES)}
PREFIXES = frozenset((0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67, 0xF0, 0xF2, 0xF3,
                      *range(0x40, 0x50)))
MANDATORY = frozenset(b"\x66\xf2\xf3")  # prefixes that may select a different instruction
EVEX, XOP = 0x62, 0x8F
VECTOR_ESCAPES = (EVEX, 0xC4, 0xC5)
# Instructions that Capstone accepts with a mandatory prefix, but CPUs reject ("NP" in SDM volume 2)
NO_PREFIX = frozenset(getattr(x86, f"X86_INS_{name}") for name in (
    "EMMS FXRSTOR FXRSTOR64 FXSAVE FXSAVE64 LDMXCSR LFENCE MOVDIRI MOVHLPS MOVLHPS MOVNTI RCPPS "
    "RSQRTPS SFENCE SHA1MSG1 SHA1MSG2 SHA1NEXTE SHA1RNDS4 SHA256MSG1 SHA256MSG2 SHA256RNDS2 "
    "STMXCSR XRSTOR XRSTOR64 XRSTORS XRSTORS64 XSAVE XSAVE64 XSAVEC XSAVEC64 XSAVES XSAVES64"
).split())
# Indexes of the control registers and of the debug registers that exist
CONTROL, DEBUG = frozenset((0, 2, 3, 4, 8)), frozenset(range(8))
ADDRESS_ONLY = frozenset(getattr(x86, f"X86_INS_{name}") for name in (
    "LEA NOP PREFETCH PREFETCHNTA PREFETCHT0 PREFETCHT1 PREFETCHT2 PREFETCHW CLFLUSH CLFLUSHOPT "
    "CLWB INVLPG").split())
CS_AC_READ = 1  # value of CS_AC_READ in capstone.h
RIP_RELATIVE = re.compile(  # ModRM bytes of RIP-relative operands: mod 0, r/m 5 (SDM 2A, 2.1.5)
    b"[" + b"".join(b"\\x%02x" % (register << 3 | 5) for register in range(8)) + b"]")
NOT_KNOWN = Refuse("is unknown")


def classify(code: bytes, address: int) -> tuple[int, Verdict]:
    """Return the length (0 if invalid) and the verdict of the first instruction of ``code``.

    An instruction of which only the length is known is refused; decoding can continue after it.
    """
    instruction = next(decoder().disasm(code, address, 1), None)
    length = _layout.length(code)
    if instruction is None:
        if not length:
            return 0, Refuse("is not an instruction")
        return length, UNKNOWN.get(code[:length], NOT_KNOWN)
    verdict = _verdict(instruction)
    # Capstone's length may be wrong (UD1), or one of two possible lengths (a near jump with an
    # operand-size prefix).
    if instruction.size != length and not isinstance(verdict, Refuse):
        verdict = NOT_KNOWN
    return length, verdict


def literal(code: bytes, address: int) -> tuple[int, int] | None:
    """Return (address, size) of the RIP-relative data that ``code``'s first instruction reads.

    None if it reads no such data.
    """
    if not RIP_RELATIVE.search(code, 1):
        return None
    i = next(decoder().disasm(code, address, 1), None)
    if i is None or i.id in ADDRESS_ONLY:
        return None
    for o in i.operands:
        if o.type == x86.X86_OP_MEM and o.mem.base == x86.X86_REG_RIP and o.access & CS_AC_READ:
            return (i.address + i.size + o.mem.disp) & MASK, int(o.size)
    return None


def _bare(code: bytes) -> tuple[bytes, bytes]:
    """Return an instruction's prefixes, including REX, and the remaining bytes."""
    at = next((n for n, byte in enumerate(code) if byte not in PREFIXES), len(code))
    return code[:at], code[at:]


def _always_raises(i: capstone.CsInsn) -> bool:
    """Return whether an instruction that Capstone accepts always raises an exception on a CPU.

    The reasons are LOCK without a memory destination, an invalid prefix or vector length, or a
    nonexistent register (SDM volume 2, 2.1.1, 2.3, 2.7, "MOV"; AMD APM volume 4, "EXTRQ").
    """
    prefixes, rest = _bare(bytes(i.bytes))
    if LOCK in prefixes:
        written = any(o.type == x86.X86_OP_MEM for o in i.operands[:1])
        if i.id == x86.X86_INS_NOP or not written:
            return True
    if set(prefixes) & MANDATORY and (rest[0] in VECTOR_ESCAPES or i.id in NO_PREFIX):
        return True
    if rest[0] == EVEX:
        # With embedded rounding, L'L selects the rounding mode instead of the vector length.
        rounds = rest[3] >> 4 & 1 and rest[5] >> 6 == 3
        # CPUs reject zeroing without a mask, and a reserved vector length.
        return rest[3] & 0x87 == 0x80 or (rest[3] >> 5 & 3 == 3 and not rounds)
    if rest[0] == 0x0F and rest[1] & 0xFC == 0x20:
        return (rest[2] >> 3 & 7 | (i.rex & 4) << 1) not in (DEBUG if rest[1] & 1 else CONTROL)
    return i.id == x86.X86_INS_EXTRQ and rest[1] == 0x78 and i.modrm >> 3 & 7 != 0


def _may_be_copied(i: capstone.CsInsn) -> bool:
    prefixes, rest = _bare(bytes(i.bytes))
    if rest[0] in VECTOR_ESCAPES or (rest[0] == XOP and rest[1] & 31 >= 8):
        return i.id not in VECTOR_REFUSED
    if rest[:2] == b"\x0f\x01" and rest[2] >> 6 == 3 and set(prefixes) & MANDATORY:
        return False  # Capstone mistakes ERETS, UIRET, PSMASH etc. for other instructions
    return i.id in COPIED


def _verdict(i: capstone.CsInsn) -> Verdict:
    after = i.address + i.size
    if i.id in REFUSED:
        return Refuse(REFUSED[i.id])
    opcode = i.opcode[0]
    groups, operands = set(i.groups), i.operands  # Capstone rebuilds these lists at each access
    jumps, calls = x86.X86_GRP_JUMP in groups, x86.X86_GRP_CALL in groups
    if i.id in COUNTS and OPERAND_SIZE not in i.prefix:
        counts, flag = COUNTS[i.id]
        # On AMD CPUs, a REP prefix selects the loop's condition.
        if flag is not None and REPEATS & set(_bare(bytes(i.bytes))[0]):
            return Refuse("is a loop with a prefix that processors interpret differently")
        bits = 32 if ADDRESS_SIZE in i.prefix else 64
        return ConditionalJump(Count(bits, counts, flag), operands[0].imm & MASK, after)
    transfers = i.id in COUNTS or jumps or calls or i.id == x86.X86_INS_RET
    if transfers and OPERAND_SIZE in i.prefix:
        return Refuse("is a jump with an operand-size prefix")
    special = REFUSED_OF.get((_bare(bytes(i.bytes))[1][0], i.modrm >> 3 & 7))
    if special is not None:
        return Refuse(special)
    if any(o.type == x86.X86_OP_MEM and o.mem.base == x86.X86_REG_EIP for o in operands):
        return Refuse("uses a 32-bit address relative to EIP")
    if jumps or calls:
        operand = operands[0]
        if operand.type == x86.X86_OP_IMM:
            target = operand.imm & MASK
            if calls:
                return DirectCall(target, after)
            if opcode in (0xEB, 0xE9):
                return Jump(target)
            short, near = 0x70 <= opcode <= 0x7F, opcode == 0x0F and 0x80 <= i.opcode[1] <= 0x8F
            if short or near:
                number = (opcode if short else i.opcode[1]) & 15
                condition: Condition = ConditionCode(number)
                return ConditionalJump(condition, target, after)
            return Refuse("is an unknown kind of jump")
        return _indirect(i, after if calls else None)
    if i.id == x86.X86_INS_RET:
        return Return(operands[0].imm if operands else 0)
    if groups & {x86.X86_GRP_INT, x86.X86_GRP_IRET}:
        return Refuse(RAISES)
    if not _may_be_copied(i):
        return NOT_KNOWN
    if _always_raises(i):
        return Refuse(RAISES)
    if any(o.type == x86.X86_OP_MEM and o.mem.base == x86.X86_REG_RIP for o in operands):
        return _rip_relative(i, after)
    return Copy()


def _name(i: capstone.CsInsn, register: int) -> str | None:
    return str(i.reg_name(register)) if register else None


def _indirect(i: capstone.CsInsn, pushes: int | None) -> Verdict:
    operand = i.operands[0]
    if operand.size != 8:
        return Refuse("jumps to an address that is not 64 bits wide")
    if operand.type == x86.X86_OP_REG:
        name = _name(i, operand.reg)
        return Indirect(name, None, pushes) if name in registers.GENERAL else Refuse("is unknown")
    if ADDRESS_SIZE in i.prefix:
        return Refuse("uses a 32-bit address")
    memory = operand.mem
    base, index = _name(i, memory.base), _name(i, memory.index)
    displacement, relative = memory.disp, Relative.DISPLACEMENT
    if base == "rip":
        base, displacement = None, displacement + i.address + i.size
        relative = Relative.RELATIVE
    # The last FS or GS prefix applies; other segment prefixes have no effect, wherever they are.
    segments = [p for p in _bare(bytes(i.bytes))[0] if p in SEGMENTS]
    if index in ("riz", "eiz"):
        index = None
    if any(r is not None and r not in registers.GENERAL for r in (base, index)):
        return Refuse("uses an unknown form of address")
    segment = SEGMENTS[segments[-1]] if segments else None
    where = MemoryOperand(base, index, memory.scale, displacement, segment, relative)
    return Indirect(None, where, pushes)


def _rip_relative(i: capstone.CsInsn, after: int) -> Verdict:
    """Return a rewrite whose displacement reaches the same address from the trampoline."""
    at = i.disp_offset
    if not at:
        return Refuse("uses an unknown form of address")
    code = bytes(i.bytes)
    (displacement,) = struct.unpack_from("<i", code, at)
    return Rewrite(code, displacement=(at, after + displacement))
