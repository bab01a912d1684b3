"""Verdicts on arm64 instructions (Arm ARM, chapter C4, "A64 Instruction Set Encoding").

A row is (mask, value, verdict).  The first row that matches applies; an instruction that matches
no row is refused.
"""

from dataclasses import dataclass
from typing import ClassVar

from kinst.relocation.rows import Overlaps, VerdictRow, copy, possible, refuse, signed
from kinst.relocation.verdict import (
    Bits,
    ConditionalJump,
    Jump,
    JumpAndLink,
    Lowered,
    Nothing,
    Op,
    Refuse,
    RegisterState,
    Relative,
    Rewrite,
    Verdict,
    truth,
)

MASK = (1 << 64) - 1


@dataclass(frozen=True)
class NzcvCondition:
    """Condition on the flags N, Z, C and V (Arm ARM C1.2.4)."""

    code: int

    def holds(self, state: RegisterState) -> bool:
        flags = state.get("pstate") >> 28
        n, z, c, v = flags >> 3 & 1, flags >> 2 & 1, flags >> 1 & 1, flags & 1
        holds = (z, c, n, v, c and not z, n == v, n == v and not z, True)[self.code >> 1]
        return bool(holds) != (bool(self.code & 1) and self.code != 15)

    def lower(self, bits: Bits) -> Lowered:
        return Lowered(Op.BRANCH_FLAGS, truth=truth(self, bits))


DAIF = 0xF << 6  # bits of PSTATE that mask interrupts
BTYPE = 3 << 10


@dataclass(frozen=True)
class ChangeMask:
    """Emulation of MSR DAIFSet and DAIFClr, which set and clear bits of the interrupted PSTATE."""

    ends_block: ClassVar[bool] = True
    sets: int
    clears: int
    after: int

    def next_pc(self, state: RegisterState) -> int:
        state.set("pstate", (state.get("pstate") | self.sets) & ~self.clears)
        return self.after

    def lower(self, bits: Bits) -> Lowered:
        return Lowered(Op.CHANGE_FLAGS, target=self.sets, extra=self.clears, ends_block=True)


@dataclass(frozen=True)
class SpendLanding(ChangeMask):
    """Emulation of BTI, which changes PSTATE.BTYPE; the CPU does not begin a new block after it."""

    ends_block: ClassVar[bool] = False

    def lower(self, bits: Bits) -> Lowered:
        return Lowered(Op.CHANGE_FLAGS, target=self.sets, extra=self.clears)


@dataclass(frozen=True)
class ReadMask:
    """Emulation of MRS Xt, DAIF, which reads the interrupt mask of the interrupted code."""

    ends_block: ClassVar[bool] = False
    register: str
    after: int

    def next_pc(self, state: RegisterState) -> int:
        state.set(self.register, state.get("pstate") & DAIF)
        return self.after

    def lower(self, bits: Bits) -> Lowered:
        return Lowered(Op.READ_FLAGS, self.register, extra=DAIF)


@dataclass(frozen=True)
class WriteMask:
    """Emulation of MSR DAIF, Xt, which sets the interrupt mask of the interrupted code."""

    ends_block: ClassVar[bool] = True
    register: str
    after: int

    def next_pc(self, state: RegisterState) -> int:
        state.set("pstate", state.get("pstate") & ~DAIF | state.get(self.register) & DAIF)
        return self.after

    def lower(self, bits: Bits) -> Lowered:
        return Lowered(Op.WRITE_FLAGS, self.register, extra=DAIF, ends_block=True)


@dataclass(frozen=True)
class LoadVector:
    """Emulation of LDR (literal, SIMD&FP), which zeroes the rest of the vector register."""

    ends_block: ClassVar[bool] = False
    number: int
    address: int
    size: int
    after: int

    def next_pc(self, state: RegisterState) -> int:
        low = state.load(self.address, min(self.size, 8))
        high = state.load(self.address + 8, 8) if self.size == 16 else 0
        state.set_vector(self.number, high << 64 | low)
        return self.after

    def lower(self, bits: Bits) -> Lowered:
        return Lowered(Op.LOAD_VECTOR, f"q{self.number}", n=self.size, target=self.address,
                       relative=Relative.RELATIVE)


@dataclass(frozen=True)
class LoadNothing:
    """Emulation of LDR (literal) into the zero register, whose only possible effect is a fault."""

    ends_block: ClassVar[bool] = False
    address: int
    after: int

    def next_pc(self, state: RegisterState) -> int:
        state.load(self.address, 4)
        return self.after

    def lower(self, bits: Bits) -> Lowered:
        return Lowered(Op.LOAD_VECTOR, None, n=4, target=self.address,
                       relative=Relative.RELATIVE)


@dataclass(frozen=True)
class Zero:
    """Condition of CBZ and CBNZ: whether the low ``bits`` bits of a register are zero.

    :param wanted: True for CBZ, False for CBNZ.
    """

    register: str
    bits: int
    wanted: bool

    def holds(self, state: RegisterState) -> bool:
        return (state.get(self.register) & (1 << self.bits) - 1 == 0) == self.wanted

    def lower(self, bits: Bits) -> Lowered:
        return Lowered(Op.BRANCH_COMPARE, self.register, n=int(not self.wanted), extra=self.bits)


@dataclass(frozen=True)
class Bit:
    """Condition of TBZ and TBNZ: whether bit ``number`` of a register equals ``wanted``."""

    register: str
    number: int
    wanted: bool

    def holds(self, state: RegisterState) -> bool:
        return bool(state.get(self.register) >> self.number & 1) == self.wanted

    def lower(self, bits: Bits) -> Lowered:
        return Lowered(Op.BRANCH_BIT, self.register, n=self.number, extra=int(self.wanted))


def register(number: int) -> str:
    """Return the name of a general register by its number, where 31 is the zero register."""
    return "xzr" if number == 31 else f"x{number}"


def _branch(code: int, pc: int) -> Verdict:
    target = pc + 4 * signed(code & 0x3FFFFFF, 26) & MASK
    return JumpAndLink("x30", pc + 4, offset=target) if code >> 31 else Jump(target)


def _conditional(code: int, pc: int) -> Verdict:
    target = pc + 4 * signed(code >> 5 & 0x7FFFF, 19) & MASK
    return ConditionalJump(NzcvCondition(code & 15), target, pc + 4)


def _compare(code: int, pc: int) -> Verdict:
    target = pc + 4 * signed(code >> 5 & 0x7FFFF, 19) & MASK
    condition = Zero(register(code & 31), 64 if code >> 31 else 32, not code >> 24 & 1)
    return ConditionalJump(condition, target, pc + 4)


def _test(code: int, pc: int) -> Verdict:
    target = pc + 4 * signed(code >> 5 & 0x3FFF, 14) & MASK
    number = code >> 31 << 5 | code >> 19 & 31
    return ConditionalJump(Bit(register(code & 31), number, bool(code >> 24 & 1)), target, pc + 4)


def _to_register(code: int, pc: int) -> Verdict:
    link = "x30" if code >> 21 & 3 == 1 else None
    return JumpAndLink(link, pc + 4, register=register(code >> 5 & 31))


# The trampoline of a rewritten instruction contains code, a breakpoint and 8-byte aligned data.
def _constant(number: int, value: int, relative: Relative) -> Rewrite:
    """Return the rewrite ``ldr xN, =value``.

    It also works for registers that the kernel's return path does not restore.
    """
    if number == 31:
        return Rewrite(NOP)
    return Rewrite(_word(0x58000000 | 2 << 5 | number), value.to_bytes(8, "little"),
                   relative=relative)


def _address(code: int, pc: int) -> Verdict:
    immediate = signed(code >> 5 & 0x7FFFF, 19) << 2 | code >> 29 & 3
    if code >> 31:
        return _constant(code & 31, (pc & ~0xFFF) + (immediate << 12) & MASK,
                         Relative.PAGE_RELATIVE)
    return _constant(code & 31, pc + immediate & MASK, Relative.RELATIVE)


def _literal(code: int, pc: int) -> Verdict:
    """Return the verdict on LDR and LDRSW (literal).

    The rewritten code loads the address into the register, then the data through the register.
    """
    number = code & 31
    target = pc + 4 * signed(code >> 5 & 0x7FFFF, 19) & MASK
    loads = {0: 0xB9400000, 1: 0xF9400000, 2: 0xB9800000}
    size = code >> 30
    if code >> 26 & 1:
        if size == 3:
            return Refuse("is a reserved instruction")
        return LoadVector(number, target, 4 << size, pc + 4)
    if size == 3 or number == 31:
        return Nothing(pc + 4) if size == 3 else LoadNothing(target, pc + 4)
    # Trampoline: ldr xN, pc + 16; ldr (w|x)N, [xN]; breakpoint; padding; the address
    first = _word(0x58000000 | 4 << 5 | number)
    return Rewrite(first + _word(loads[size] | number << 5 | number), target.to_bytes(8, "little"))


def _change_mask(code: int, pc: int) -> Verdict:
    bits = (code >> 8 & 15) << 6
    return ChangeMask(0, bits, pc + 4) if code >> 5 & 1 else ChangeMask(bits, 0, pc + 4)


def _mask_register(code: int, pc: int) -> Verdict:
    name = register(code & 31)
    if not code >> 21 & 1:
        return WriteMask(name, pc + 4)
    return ReadMask(name, pc + 4)


def _landing(code: int, pc: int) -> Verdict:
    """Return the emulation of BTI, which clears PSTATE.BTYPE.

    A branch may land on the breakpoint that replaces the BTI.
    """
    return SpendLanding(0, BTYPE, pc + 4)


def _nothing(code: int, pc: int) -> Verdict:
    return Nothing(pc + 4)


def _word(code: int) -> bytes:
    return code.to_bytes(4, "little")


NOP = _word(0xD503201F)


ROWS: tuple[VerdictRow, ...] = (
    # branches, exception generation, system
    (0x7C000000, 0x14000000, _branch),  # B, BL
    (0xFF000010, 0x54000000, _conditional),  # B.cond
    (0x7E000000, 0x34000000, _compare),  # CBZ, CBNZ
    (0x7E000000, 0x36000000, _test),  # TBZ, TBNZ
    (0xFFFFFC1F, 0xD61F0000, _to_register),  # BR
    (0xFFFFFC1F, 0xD63F0000, _to_register),  # BLR
    (0xFFFFFC1F, 0xD65F0000, _to_register),  # RET
    (0xFFFFFFFF, 0xD69F03E0, refuse("returns from an exception")),  # ERET
    (0xFFFFFFFF, 0xD6BF03E0, refuse("returns from an exception")),  # DRPS
    (0xFE000000, 0xD6000000, refuse("is an authenticated branch")),
    (0xFF000000, 0x55000000, refuse("is an authenticated branch")),  # RETAASPPC, RETABSPPC
    (0xFF000000, 0xD4000000, refuse("raises an exception")),  # SVC HVC SMC BRK HLT
    (0xFFFFFFFF, 0xD503203F, copy),  # YIELD
    (0xFFFFFFDF, 0xD503205F, refuse("waits for an event or interrupt")),  # WFE, WFI
    (0xFFFFFFC0, 0xD5031000, refuse("waits for an event or interrupt")),  # WFET, WFIT
    (0xFFFFFEE0, 0xD5233060, refuse("belongs to a transaction")),  # TSTART TTEST
    (0xFFFFFFFF, 0xD503307F, refuse("belongs to a transaction")),  # TCOMMIT
    (0xFFFFFF3F, 0xD503241F, _landing),  # BTI
    (0xFFFFF01F, 0xD503201F, copy),  # other hints
    (0xFFFFF0FF, 0xD503305F, refuse("ends an exclusive access")),  # CLREX
    (0xFFFFF01F, 0xD503301F, copy),  # barriers
    (0xFFFFF0DF, 0xD50340DF, _change_mask),  # MSR DAIFSet, DAIFClr
    (0xFFDFFFE0, 0xD51B4220, _mask_register),  # MRS/MSR DAIF
    (0xFFFFF0FF, 0xD50040BF, refuse("selects the stack pointer")),  # MSR SPSel
    # CPUs without FEAT_NMI and FEAT_EBEP reject ALLINT and PM, respectively, so refuse both.
    (0xFFFFFCFF, 0xD501401F, refuse("masks interrupts")),  # MSR ALLINT, PM (immediate)
    (0xFFFFFFC0, 0xD5184300, refuse("masks interrupts")),  # MSR ALLINT, PM (register)
    (0xFFF8F01F, 0xD500401F, copy),  # MSR (immediate), others
    # Registers of EL1 (op1 0), and of EL2 (op1 4) for a kernel that runs in EL2
    (0xFFDBFFC0, 0xD5184000, refuse("accesses the state of the last exception")),  # SPSR, ELR
    (0xFFDBFFC0, 0xD5185100, refuse("accesses the state of the last exception")),  # AFSR0, AFSR1
    (0xFFDBFFE0, 0xD5185200, refuse("accesses the state of the last exception")),  # ESR
    (0xFFDBFFE0, 0xD5186000, refuse("accesses the state of the last exception")),  # FAR
    (0xFFDFFFE0, 0xD51C6080, refuse("accesses the state of the last exception")),  # HPFAR_EL2
    (0xFFDBFFE0, 0xD51860A0, refuse("accesses the state of the last exception")),  # PFAR
    # GCSPUSHX, GCSPOPCX
    (0xFFFFFFC0, 0xD5087780, refuse("accesses the state of the last exception")),
    (0xFFDFFFE0, 0xD5184200, refuse("selects the stack pointer")),  # MRS/MSR SPSel
    (0xFFD80000, 0xD5000000, refuse("is not an instruction")),  # op0 0, others
    (0xFFC00000, 0xD5000000, copy),  # SYS, SYSL, MRS, MSR (register)
    # PAuth_LR: the signature covers the address of the instruction.
    (0xFFFF8000, 0xDAC18000, refuse("uses its own address in a signature")),  # PACIASPPC etc.
    (0xFF800000, 0xF3800000, refuse("uses its own address in a signature")),  # AUTIASPPC, AUTIBSPPC
    # MOPS: prologue, main and epilogue instructions; a fault may restart them at the prologue.
    # CPY*, SET*
    (0x3B200C00, 0x19000400, refuse("is one of three instructions that must stay together")),
    # PC-relative instructions
    (0x1F000000, 0x10000000, _address),  # ADR, ADRP
    (0xFF000000, 0xD8000000, _nothing),  # PRFM (literal)
    (0x3B000000, 0x18000000, _literal),  # LDR, LDRSW (literal), also vector
    # Exclusive accesses: a trap clears the monitor.  CAS and CASP are ordinary atomics.
    (0x3FA07C00, 0x08A07C00, copy),  # CAS
    (0xBFA07C00, 0x08207C00, copy),  # CASP
    (0x3F800000, 0x08000000, refuse("belongs to an exclusive access")),  # LDXR STXR LDXP STXP
    # LDTXR STTXR, LDATXR STLTXR
    (0xBFA00000, 0x89000000, refuse("belongs to an exclusive access")),
    (0x3F800000, 0x08800000, copy),  # LDAR, STLR
    # Other loads and stores, data processing, vectors
    (0x0A000000, 0x08000000, copy),
    (0x1C000000, 0x10000000, copy),
    (0x1E000000, 0x04000000, copy),  # SVE
    (0x9E000000, 0x80000000, refuse("is an SME instruction, or data")),
    (0x1A000000, 0x00000000, refuse("is not an instruction")),  # UDF and unallocated encodings
    (0x1A000000, 0x02000000, refuse("is not an instruction")),
    (0x0E000000, 0x0A000000, copy),
    (0x0E000000, 0x0E000000, copy),
)

# Intended overlaps: (mask, value) of a row -> (mask, value) of the earlier rows that take
# precedence over it.  A test rejects any other overlap.
OVERLAPS: Overlaps = {
    (0xFE000000, 0xD6000000): (
        (0xFFFFFC1F, 0xD61F0000), (0xFFFFFC1F, 0xD63F0000), (0xFFFFFC1F, 0xD65F0000),
        (0xFFFFFFFF, 0xD69F03E0), (0xFFFFFFFF, 0xD6BF03E0),
    ),
    (0xFFFFF01F, 0xD503201F): (
        (0xFFFFFFFF, 0xD503203F), (0xFFFFFFDF, 0xD503205F), (0xFFFFFF3F, 0xD503241F),
    ),
    (0xFFFFF01F, 0xD503301F): (
        (0xFFFFFFFF, 0xD503307F), (0xFFFFF0FF, 0xD503305F),
    ),
    (0xFFF8F01F, 0xD500401F): (
        (0xFFFFF0DF, 0xD50340DF), (0xFFFFF0FF, 0xD50040BF), (0xFFFFFCFF, 0xD501401F),
    ),
    (0xFFD80000, 0xD5000000): (
        (0xFFFFFFFF, 0xD503203F), (0xFFFFFFDF, 0xD503205F), (0xFFFFFFC0, 0xD5031000),
        (0xFFFFFEE0, 0xD5233060), (0xFFFFFFFF, 0xD503307F), (0xFFFFFF3F, 0xD503241F),
        (0xFFFFF01F, 0xD503201F), (0xFFFFF0FF, 0xD503305F), (0xFFFFF01F, 0xD503301F),
        (0xFFFFF0DF, 0xD50340DF), (0xFFFFF0FF, 0xD50040BF), (0xFFFFFCFF, 0xD501401F),
        (0xFFF8F01F, 0xD500401F),
    ),
    (0xFFC00000, 0xD5000000): (
        (0xFFFFFFFF, 0xD503203F), (0xFFFFFFDF, 0xD503205F), (0xFFFFFFC0, 0xD5031000),
        (0xFFFFFEE0, 0xD5233060), (0xFFFFFFFF, 0xD503307F), (0xFFFFFF3F, 0xD503241F),
        (0xFFFFF01F, 0xD503201F), (0xFFFFF0FF, 0xD503305F), (0xFFFFF01F, 0xD503301F),
        (0xFFFFF0DF, 0xD50340DF), (0xFFDFFFE0, 0xD51B4220), (0xFFFFF0FF, 0xD50040BF),
        (0xFFFFFCFF, 0xD501401F), (0xFFFFFFC0, 0xD5184300), (0xFFF8F01F, 0xD500401F),
        (0xFFDBFFC0, 0xD5184000), (0xFFDBFFC0, 0xD5185100), (0xFFDBFFE0, 0xD5185200),
        (0xFFDBFFE0, 0xD5186000), (0xFFDFFFE0, 0xD51C6080), (0xFFDBFFE0, 0xD51860A0),
        (0xFFFFFFC0, 0xD5087780), (0xFFDFFFE0, 0xD5184200), (0xFFD80000, 0xD5000000),
    ),
    (0x3B000000, 0x18000000): (
        (0xFF000000, 0xD8000000),
    ),
    (0x3F800000, 0x08000000): (
        (0xBFA07C00, 0x08207C00),
    ),
    (0x3F800000, 0x08800000): (
        (0x3FA07C00, 0x08A07C00),
    ),
    (0x0A000000, 0x08000000): (
        (0x3B200C00, 0x19000400), (0xFF000000, 0xD8000000), (0x3B000000, 0x18000000),
        (0x3FA07C00, 0x08A07C00), (0xBFA07C00, 0x08207C00), (0x3F800000, 0x08000000),
        (0xBFA00000, 0x89000000), (0x3F800000, 0x08800000),
    ),
    (0x1C000000, 0x10000000): (
        (0xFF800000, 0xF3800000), (0x1F000000, 0x10000000),
    ),
    (0x1A000000, 0x00000000): (
        (0x1E000000, 0x04000000), (0x9E000000, 0x80000000),
    ),
    (0x0E000000, 0x0A000000): (
        (0xFFFF8000, 0xDAC18000),
    ),
}


# Rows that can match an instruction, indexed by the highest byte of the instruction
ROWS_BY = tuple(possible(ROWS, 0xFF000000, n << 24) for n in range(0x100))


def classify(code: bytes, address: int) -> tuple[int, Verdict]:
    """Return the length and the verdict of the first instruction of ``code``."""
    word = int.from_bytes(code[:4], "little")
    for mask, value, verdict in ROWS_BY[word >> 24]:
        if word & mask == value:
            return 4, verdict(word, address)
    return 4, Refuse("is unknown")


def starts_exclusive(code: bytes) -> bool:
    """Return whether an instruction is LDXR, LDAXR, LDXP, LDAXP, LDTXR or LDATXR.

    The instructions from there to the store belong to the exclusive access.
    """
    word = int.from_bytes(code[:4], "little")
    load = word & 0x3FC00000 == 0x08400000 and not _is_casp(word)
    return load or word & 0xBFE00000 == 0x89400000


def ends_exclusive(code: bytes) -> bool:
    """Return whether an instruction is STXR, STLXR, STXP, STLXP, STTXR, STLTXR or CLREX."""
    word = int.from_bytes(code[:4], "little")
    store = word & 0x3FC00000 == 0x08000000 and not _is_casp(word)
    return store or word & 0xBFE00000 == 0x89000000 or word & 0xFFFFF0FF == 0xD503305F


def _is_casp(word: int) -> bool:
    return word & 0xBFA07C00 == 0x08207C00
