"""Verdicts on riscv64 instructions.

A row is (mask, value, verdict); the first row that matches applies (unprivileged manual, "RV32/64G
Instruction Set Listings" and "C" extension).
"""

from dataclasses import dataclass
from typing import ClassVar

from emu.riscv64.registers import NAMES
from kinst.relocation.rows import Overlaps, VerdictRow, copy, possible, refuse, signed
from kinst.relocation.verdict import (
    Bits,
    ConditionalJump,
    Jump,
    JumpAndLink,
    Lowered,
    Op,
    Refuse,
    RegisterState,
    SetRegister,
    Verdict,
)

MASK = (1 << 64) - 1


def pick(code: int, *places: tuple[int, int, int]) -> int:
    """Assemble a number from fields: (lowest bit in the code, width, lowest bit in the number)."""
    return sum((code >> at & (1 << bits) - 1) << to for at, bits, to in places)


@dataclass(frozen=True)
class BranchCondition:
    """Condition of a branch; ``funct`` is funct3 of BEQ, BNE, BLT, BGE, BLTU or BGEU."""

    funct: int
    left: str
    right: str

    def holds(self, state: RegisterState) -> bool:
        a, b = state.get(self.left), state.get(self.right)
        if self.funct in (4, 5):
            a, b = signed(a, 64), signed(b, 64)
        truth = a == b if self.funct < 2 else a < b
        return truth != bool(self.funct & 1)

    def lower(self, bits: Bits) -> Lowered:
        return Lowered(Op.BRANCH_COMPARE, self.left, self.right, n=self.funct, extra=64)


def _branch(code: int, pc: int) -> Verdict:
    offset = signed(pick(code, (31, 1, 12), (7, 1, 11), (25, 6, 5), (8, 4, 1)), 13)
    condition = BranchCondition(code >> 12 & 7, NAMES[code >> 15 & 31], NAMES[code >> 20 & 31])
    return ConditionalJump(condition, pc + offset & MASK, pc + 4)


def _link(number: int) -> str | None:
    return NAMES[number] if number else None


def _jal(code: int, pc: int) -> Verdict:
    offset = signed(pick(code, (31, 1, 20), (12, 8, 12), (20, 1, 11), (21, 10, 1)), 21)
    target, link = pc + offset & MASK, _link(code >> 7 & 31)
    if link is None:
        return Jump(target)
    return JumpAndLink(link, pc + 4, offset=target)


def _jalr(code: int, pc: int) -> Verdict:
    link = _link(code >> 7 & 31)
    base, offset = NAMES[code >> 15 & 31], signed(code >> 20, 12)
    return JumpEven(JumpAndLink(link, pc + 4, base, offset))


@dataclass(frozen=True)
class JumpEven:
    """Emulation of JALR, which clears the lowest bit of the target."""

    ends_block: ClassVar[bool] = True
    jump: JumpAndLink

    def next_pc(self, state: RegisterState) -> int:
        return self.jump.next_pc(state) & ~1

    def lower(self, bits: Bits) -> Lowered:
        low = self.jump.lower(bits)
        return low.to(low.target, n=1)


def _auipc(code: int, pc: int) -> Verdict:
    rd = _link(code >> 7 & 31)
    if rd is None:
        return Refuse("is a landing pad (LPAD) or a hint")
    value = pc + signed(code >> 12, 20) * 4096 & MASK
    return SetRegister(rd, value, pc + 4)


def _c_jump(code: int, pc: int) -> Verdict:
    offset = signed(
        pick(code, (12, 1, 11), (11, 1, 4), (9, 2, 8), (8, 1, 10), (7, 1, 6), (6, 1, 7), (3, 3, 1),
             (2, 1, 5)), 12)
    return Jump(pc + offset & MASK)


def _c_branch(code: int, pc: int) -> Verdict:
    offset = signed(pick(code, (12, 1, 8), (10, 2, 3), (5, 2, 6), (3, 2, 1), (2, 1, 5)), 9)
    condition = BranchCondition(code >> 13 & 1, NAMES[8 + (code >> 7 & 7)], "zero")
    return ConditionalJump(condition, pc + offset & MASK, pc + 2)


def _c_register(code: int, pc: int) -> Verdict:
    number = code >> 7 & 31
    if not number:
        return Refuse("is a reserved instruction")
    link = "ra" if code >> 12 & 1 else None
    return JumpEven(JumpAndLink(link, pc + 2, NAMES[number]))


WIDE: tuple[VerdictRow, ...] = (
    (0x607F, 0x2063, refuse("is a reserved instruction")),
    (0x7F, 0x63, _branch),
    (0x7F, 0x6F, _jal),
    (0x707F, 0x67, _jalr),
    (0x7F, 0x17, _auipc),
    (0x7F, 0x73, refuse("is a system instruction")),
    # LR and SC
    (0xF800007F, 0x1000002F, refuse("belongs to a load-reserved/store-conditional sequence")),
    (0xF800007F, 0x1800002F, refuse("belongs to a load-reserved/store-conditional sequence")),
    (0x7F, 0x2F, copy),  # other AMOs
    (0x7F, 0x03, copy), (0x7F, 0x07, copy), (0x7F, 0x0F, copy), (0x7F, 0x13, copy),
    (0x7F, 0x1B, copy), (0x7F, 0x23, copy), (0x7F, 0x27, copy), (0x7F, 0x33, copy),
    (0x7F, 0x37, copy), (0x7F, 0x3B, copy), (0x7F, 0x43, copy), (0x7F, 0x47, copy),
    (0x7F, 0x4B, copy), (0x7F, 0x4F, copy), (0x7F, 0x53, copy),
    (0x7F, 0x57, copy), (0x7F, 0x77, copy),  # OP-V, OP-VE: vectors
    *((0x7F, opcode, refuse("is a vendor-specific instruction"))
      for opcode in (0x0B, 0x2B, 0x5B, 0x7B)),
    (0x1F, 0x1F, refuse("is longer than four bytes")),
    (0x7F, 0x6B, refuse("is a reserved instruction")),
)
COMPRESSED: tuple[VerdictRow, ...] = (
    (0xFFFF, 0x0000, refuse("is not an instruction")),
    (0xFFFF, 0x9002, refuse("is already a breakpoint")),
    (0xE003, 0xA001, _c_jump),
    (0xC003, 0xC001, _c_branch),
    (0xE07F, 0x8002, _c_register),  # C.JR, C.JALR
    (0xFC03, 0x8000, copy), (0xFC03, 0x8400, copy),  # Zcb: C.LBU; C.LHU, C.LH
    (0xFC03, 0x8800, copy), (0xFC43, 0x8C00, copy),  # C.SB; C.SH
    (0xE003, 0x8000, refuse("is a reserved instruction")),
    (0x0003, 0x0000, copy), (0x0003, 0x0001, copy), (0x0003, 0x0002, copy),
)

# Intended overlaps: (mask, value) of a row -> (mask, value) of the earlier rows of its table that
# take precedence over it.  A test rejects any other overlap.
WIDE_OVERLAPS: Overlaps = {
    (0x7F, 0x63): ((0x607F, 0x2063),),
    (0x7F, 0x2F): ((0xF800007F, 0x1000002F), (0xF800007F, 0x1800002F)),
}
COMPRESSED_OVERLAPS: Overlaps = {
    (0xE07F, 0x8002): ((0xFFFF, 0x9002),),
    (0xE003, 0x8000): ((0xFC03, 0x8000), (0xFC03, 0x8400), (0xFC03, 0x8800), (0xFC43, 0x8C00)),
    (0x0003, 0x0000): (
        (0xFFFF, 0x0000), (0xFC03, 0x8000), (0xFC03, 0x8400), (0xFC03, 0x8800), (0xFC43, 0x8C00),
        (0xE003, 0x8000),
    ),
    (0x0003, 0x0001): ((0xE003, 0xA001), (0xC003, 0xC001)),
    (0x0003, 0x0002): ((0xFFFF, 0x9002), (0xE07F, 0x8002)),
}


# Rows that can match an instruction, indexed by opcode or (compressed) by function and quadrant
WIDE_BY = tuple(possible(WIDE, 0x7F, n) for n in range(0x80))
COMPRESSED_BY = tuple(possible(COMPRESSED, 0xE003, (n & 0x1C) << 11 | n & 3) for n in range(32))


def classify(code: bytes, address: int) -> tuple[int, Verdict]:
    """Return the length and the verdict of the first instruction of ``code``."""
    if not code:
        return 0, Refuse("is not an instruction")
    wide = code[0] & 3 == 3
    size = 4 if wide else 2
    word = int.from_bytes(code[:size], "little")
    rows = WIDE_BY[word & 0x7F] if wide else COMPRESSED_BY[word >> 11 & 0x1C | word & 3]
    for mask, value, verdict in rows:
        if word & mask == value:
            return size, verdict(word, address)
    return size, Refuse("is unknown")


def starts_exclusive(code: bytes) -> bool:
    """Return whether an instruction is LR, which begins an exclusive access that SC ends."""
    return len(code) >= 4 and int.from_bytes(code[:4], "little") & 0xF800007F == 0x1000002F


def ends_exclusive(code: bytes) -> bool:
    """Return whether an instruction is SC."""
    return len(code) >= 4 and int.from_bytes(code[:4], "little") & 0xF800007F == 0x1800002F
