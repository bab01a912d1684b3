"""Effects of arm64 instructions on the stack (Arm ARM, C4.1 and C6.2)."""

import functools

from kinst.arm64.dataflow import effect
from kinst.code.stack_effect import StackEffect

SP, ZERO = 31, 31
# (mask, value) of ADD and SUB (64-bit immediate); MOV to or from SP adds or subtracts zero.
ADD, SUB = (0xFF800000, 0x91000000), (0xFF800000, 0xD1000000)
# LDP and STP of 64-bit registers -> (whether it is a load, addressing mode)
PAIRS = {0xA8C00000: (True, "post"), 0xA9400000: (True, "offset"), 0xA9C00000: (True, "pre"),
         0xA8800000: (False, "post"), 0xA9000000: (False, "offset"), 0xA9800000: (False, "pre")}
# LDR and STR of a 64-bit register with a signed 9-bit offset -> (whether it is a load, mode)
SINGLES = {0xF8400400: (True, "post"), 0xF8400C00: (True, "pre"),
           0xF8000400: (False, "post"), 0xF8000C00: (False, "pre")}
# PACIASP, PACIBSP, AUTIASP and AUTIBSP sign and check the return address in bits that addresses do
# not use; CPUs without pointer authentication, such as that of the machine, ignore them.
SIGNING = frozenset({0xD503233F, 0xD503237F, 0xD50323BF, 0xD50323FF})
# LDR and STR of a 64-bit register with an unsigned 12-bit offset -> whether it is a load
UNSIGNED = {0xF9400000: True, 0xF9000000: False}


def _signed(value: int, bits: int) -> int:
    return (value ^ 1 << bits - 1) - (1 << bits - 1)


def _indexed(registers: list[int], load: bool, mode: str, base: int, offset: int, size: int,
             lost: frozenset[str]) -> StackEffect:
    """Return the effect of loading or storing one or more registers at consecutive addresses."""
    at = 0 if mode == "post" else offset
    moves = mode != "offset"
    if base == SP:
        places = tuple((f"x{n}", at + size * i) for i, n in enumerate(registers) if n != ZERO)
        change = offset if moves else 0
        if not load:
            return StackEffect(change=change, lost=lost - {"sp"}, saves=places)
        return StackEffect(change=change, loads=tuple((name, "sp", at) for name, at in places),
                           lost=lost - {"sp", *(name for name, _at in places)})
    loads = tuple((f"x{n}", f"x{base}", at + size * i) for i, n in enumerate(registers)
                  if n not in (ZERO, base)) if load and not moves else ()
    return StackEffect(loads=loads, lost=lost - {name for name, _base, _at in loads})


@functools.lru_cache(1 << 14)
def stack_effect(code: bytes) -> StackEffect:
    """Return the effect of one instruction on the stack."""
    word, lost = int.from_bytes(code[:4], "little"), effect(code).writes
    if word in SIGNING:
        return StackEffect()
    rt, base = word & 31, word >> 5 & 31
    for (mask, value), sign in ((ADD, 1), (SUB, -1)):
        if word & mask == value and rt == SP:
            amount = (word >> 10 & 0xFFF) << (12 if word >> 22 & 1 else 0)
            return StackEffect("" if base == SP else f"x{base}", sign * amount)
    form = PAIRS.get(word & 0xFFC00000)
    if form is not None:
        return _indexed([rt, word >> 10 & 31], *form, base, 8 * _signed(word >> 15 & 0x7F, 7), 8,
                        lost)
    form = SINGLES.get(word & 0xFFE00C00)
    if form is not None:
        return _indexed([rt], *form, base, _signed(word >> 12 & 0x1FF, 9), 8, lost)
    load = UNSIGNED.get(word & 0xFFC00000)
    if load is not None:
        return _indexed([rt], load, "offset", base, 8 * (word >> 10 & 0xFFF), 8, lost)
    return StackEffect(lost=lost)
