"""Compare-and-swap operations of riscv64: pairs of LR.D and SC.D (unprivileged manual, "A")."""

import re
from collections.abc import Iterator

from emu.riscv64.registers import NAMES
from kinst.code.operands import Operand
from kinst.code.swaps import Swap

# SC.D, wherever it begins
STORE = re.compile(rb"(?=[\x2f\xaf][\x30-\x3f\xb0-\xbf].[\x18-\x1f])", re.DOTALL)
LOAD = 0xF9F0707F, 0x1000302F  # LR.D
WITHIN = 16  # maximum number of bytes from LR.D to SC.D


def _name(number: int) -> str:
    return NAMES[number] if number else ""


def swaps(code: bytes, address: int) -> Iterator[Swap]:
    """Yield the swaps in some code; see ``kinst/code/swaps.py``."""
    for found in STORE.finditer(code):
        at = found.start()
        if (address + at) % 2:
            continue
        word = int.from_bytes(code[at : at + 4], "little")
        base, status, new = word >> 15 & 31, word >> 7 & 31, word >> 20 & 31
        for before in range(at - 4, max(at - WITHIN, 0) - 1, -2):
            load = int.from_bytes(code[before : before + 4], "little")
            if load & LOAD[0] == LOAD[1] and load >> 15 & 31 == base:
                if status and load >> 7 & 31 not in (0, base, status):
                    yield Swap(address + at + 4, Operand(8, base=NAMES[base]),
                               _name(load >> 7 & 31), _name(new), _name(status), (1 << 64) - 1)
                break
