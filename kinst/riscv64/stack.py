"""Effects of riscv64 instructions on the stack (unprivileged manual, "RV64I", "C" extension)."""

import functools

from emu.riscv64.registers import NAMES
from kinst.code.stack_effect import StackEffect
from kinst.riscv64.dataflow import effect

SP = NAMES.index("sp")


def _signed(value: int, bits: int) -> int:
    return (value ^ 1 << bits - 1) - (1 << bits - 1)


def _bits(code: int, *places: tuple[int, int]) -> int:
    """Assemble a number from single bits: (bit in the code, bit in the number)."""
    return sum((code >> source & 1) << to for source, to in places)


def _to_sp(base: int, amount: int) -> StackEffect:
    return StackEffect("" if base == SP else NAMES[base], amount)


@functools.lru_cache(1 << 14)
def stack_effect(code: bytes) -> StackEffect:
    """Return the effect of one instruction on the stack."""
    word, lost = int.from_bytes(code, "little"), effect(code).writes
    rd = word >> 7 & 31
    if len(code) == 2:
        amount = _signed(word >> 12 << 5 & 32 | word >> 2 & 31, 6)
        if word & 0xEF83 == 0x6101:  # C.ADDI16SP
            return _to_sp(SP, _signed(_bits(word, (12, 9), (6, 4), (5, 6), (4, 8), (3, 7), (2, 5)),
                                      10))
        if word & 0xE003 == 0x0001 and rd == SP:  # C.ADDI
            return _to_sp(SP, amount)
        if word & 0xF003 == 0x8002 and rd == SP and word >> 2 & 31:  # C.MV
            return _to_sp(word >> 2 & 31, 0)
        if word & 0xE003 == 0x6002 and rd:  # C.LDSP
            at = _bits(word, (12, 5), (6, 4), (5, 3), (4, 8), (3, 7), (2, 6))
            return StackEffect(loads=((NAMES[rd], "sp", at),), lost=lost - {NAMES[rd]})
        if word & 0xE003 == 0xE002:  # C.SDSP
            at = _bits(word, (12, 5), (11, 4), (10, 3), (9, 8), (8, 7), (7, 6))
            return StackEffect(lost=lost, saves=((NAMES[word >> 2 & 31], at),))
        return StackEffect(lost=lost)
    base = word >> 15 & 31
    if word & 0x707F == 0x0013 and rd == SP:  # ADDI
        return _to_sp(base, _signed(word >> 20, 12))
    if word & 0x707F == 0x3003 and rd and rd != SP:  # LD
        return StackEffect(loads=((NAMES[rd], NAMES[base], _signed(word >> 20, 12)),),
                           lost=lost - {NAMES[rd]})
    if word & 0x707F == 0x3023 and base == SP:  # SD
        at = _signed(word >> 25 << 5 | rd, 12)
        return StackEffect(lost=lost, saves=((NAMES[word >> 20 & 31], at),))
    return StackEffect(lost=lost)
