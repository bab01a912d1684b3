"""What riscv64 instructions do to the stack (unprivileged manual, "RV64I", "C" extension)."""

import functools

from emu.riscv64.registers import NAMES
from kinst.code.stack_effect import StackEffect
from kinst.riscv64.dataflow import effect

SP = NAMES.index("sp")


def _signed(value: int, bits: int) -> int:
    return (value ^ 1 << bits - 1) - (1 << bits - 1)


def _bits(code: int, *places: tuple[int, int]) -> int:
    """A number put together of single bits of the code: (bit of the code, bit of the number)."""
    return sum((code >> source & 1) << to for source, to in places)


def _to_sp(base: int, amount: int) -> StackEffect:
    return StackEffect("" if base == SP else NAMES[base], amount)


@functools.lru_cache(1 << 14)
def stack_effect(code: bytes) -> StackEffect:
    """The effect of one instruction."""
    word, lost = int.from_bytes(code, "little"), effect(code).writes
    to = word >> 7 & 31
    if len(code) == 2:
        amount = _signed(word >> 12 << 5 & 32 | word >> 2 & 31, 6)
        if word & 0xEF83 == 0x6101:  # C.ADDI16SP
            return _to_sp(SP, _signed(_bits(word, (12, 9), (6, 4), (5, 6), (4, 8), (3, 7), (2, 5)),
                                      10))
        if word & 0xE003 == 0x0001 and to == SP:  # C.ADDI
            return _to_sp(SP, amount)
        if word & 0xF003 == 0x8002 and to == SP and word >> 2 & 31:  # C.MV
            return _to_sp(word >> 2 & 31, 0)
        if word & 0xE003 == 0x6002 and to:  # C.LDSP
            at = _bits(word, (12, 5), (6, 4), (5, 3), (4, 8), (3, 7), (2, 6))
            return StackEffect(loads=((NAMES[to], "sp", at),), lost=lost - {NAMES[to]})
        return StackEffect(lost=lost)
    base = word >> 15 & 31
    if word & 0x707F == 0x0013 and to == SP:  # ADDI
        return _to_sp(base, _signed(word >> 20, 12))
    if word & 0x707F == 0x3003 and to and to != SP:  # LD
        return StackEffect(loads=((NAMES[to], NAMES[base], _signed(word >> 20, 12)),),
                           lost=lost - {NAMES[to]})
    return StackEffect(lost=lost)
