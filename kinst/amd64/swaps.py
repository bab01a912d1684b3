"""Compare-and-swap operations of amd64: CMPXCHG (SDM volume 2)."""

import re
from collections.abc import Iterator

from emu.amd64.registers import NAMES
from kinst.amd64.classify import classify
from kinst.amd64.operands import operands
from kinst.code.swaps import Swap

# CMPXCHG of 64 bits: REX.W 0F B1 /r, usually with LOCK
CMPXCHG = re.compile(rb"\xf0?[\x48-\x4f]\x0f\xb1", re.DOTALL)
LONGEST = 15
ZERO = 1 << 6  # ZF
# Registers in the order of their numbers in instructions
NUMBERED = ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", *NAMES[8:16])


def swaps(code: bytes, address: int) -> Iterator[Swap]:
    """Yield the swaps in some code; see ``kinst/code/swaps.py``."""
    for found in CMPXCHG.finditer(code):
        at, modrm = found.start(), code[found.end() : found.end() + 1]
        if not modrm or modrm[0] >> 6 == 3:  # the destination is a register
            continue
        piece = code[at : at + LONGEST]
        length = classify(piece, address + at)[0]
        words = operands(piece[:length], address + at).operands if length else ()
        if not words or not words[0].memory:
            continue
        number = modrm[0] >> 3 & 7 | (code[found.end() - 3] & 4) << 1
        yield Swap(address + at + length, words[0], "rax", NUMBERED[number], "rflags", ZERO,
                   value=ZERO)
