"""Data flow of riscv64 instructions.

A row is (mask, value, function from the code to the effect); the first row that matches applies
(unprivileged manual, "RV32/64G Instruction Set Listings", "RVC Instruction Set Listings").
"""

import functools
from collections.abc import Callable

from emu.riscv64.registers import NAMES
from kinst.code.dataflow import NOTHING, Effect
from kinst.relocation.rows import Overlaps

Row = tuple[int, int, Callable[[int], Effect]]


def _written(number: int) -> frozenset[str]:
    return frozenset({NAMES[number]} if number else ())


def _writes(code: int) -> Effect:
    return Effect(_written(code >> 7 & 31))


def _loads(code: int) -> Effect:
    rd = code >> 7 & 31
    return Effect(_written(rd), loads=(NAMES[rd],))


def _stores(code: int) -> Effect:
    return Effect(stores=(NAMES[code >> 20 & 31],))


def _copies(code: int) -> Effect:
    """Return the effect of ADDI, ADDIW (SEXT.W), ADD or OR with zero, which copies a register."""
    rd = code >> 7 & 31
    return Effect(_written(rd), {NAMES[rd]: (NAMES[code >> 15 & 31],)})


def _conditional(code: int) -> Effect:
    """Return the effect of SC, which stores a value and writes a status to a register."""
    return Effect(_written(code >> 7 & 31), stores=(NAMES[code >> 20 & 31],))


def _atomic(code: int) -> Effect:
    """Return the effect of an AMO, which loads the old value; only AMOSWAP stores a register."""
    rd, swaps = code >> 7 & 31, code >> 27 == 1
    return Effect(_written(rd), loads=(NAMES[rd],),
                  stores=(NAMES[code >> 20 & 31] if swaps else None,))


def _nothing(code: int) -> Effect:
    return NOTHING


def _compressed(at: int, short: bool) -> Callable[[int], int]:
    return lambda code: (code >> at & 7) + 8 if short else code >> at & 31


def _c(what: str, at: int, short: bool) -> Callable[[int], Effect]:
    number = _compressed(at, short)

    def effect(code: int) -> Effect:
        name = NAMES[number(code)]
        if what == "store":
            return Effect(stores=(name,))
        return Effect(_written(number(code)), loads=(name,) if what == "load" else ())
    return effect


def _c_register(code: int) -> Effect:
    """Return the effect of C.JR, C.MV, C.EBREAK, C.JALR or C.ADD."""
    rd, rs2, high = code >> 7 & 31, code >> 2 & 31, code >> 12 & 1
    if rs2 == 0:
        return Effect(frozenset({"ra"})) if high and rd else NOTHING
    return Effect(_written(rd), {} if high else {NAMES[rd]: (NAMES[rs2],)})


WIDE: tuple[Row, ...] = (
    (0x7F, 0x03, _loads), (0x7F, 0x23, _stores),
    (0xFFF0707F, 0x00000013, _copies), (0xFFF0707F, 0x0000001B, _copies),
    (0xFFF0707F, 0x00000033, _copies), (0xFFF0707F, 0x00006033, _copies),
    (0xF800007F, 0x1000002F, _loads), (0xF800007F, 0x1800002F, _conditional),  # LR, SC
    (0xF800007F, 0x2800002F, lambda code: Effect(_written(code >> 7 & 31), stores=(None,))),  # CAS
    (0x7F, 0x2F, _atomic),
    *((0x7F, opcode, _writes) for opcode in (
        0x13, 0x17, 0x1B, 0x33, 0x37, 0x3B, 0x67, 0x6F, 0x73)),
    # Floating-point instructions that write a general register: comparisons, conversions, FCLASS
    # and FMV
    *((0xF000007F, funct << 28 | 0x53, _writes) for funct in (0xA, 0xC, 0xE)),
    (0, 0, _nothing),
)
NARROW: tuple[Row, ...] = (
    (0xE003, 0x0000, _c("write", 2, True)),  # C.ADDI4SPN
    (0xE003, 0x4000, _c("load", 2, True)), (0xE003, 0x6000, _c("load", 2, True)),
    (0xE003, 0xC000, _c("store", 2, True)), (0xE003, 0xE000, _c("store", 2, True)),
    (0xF003, 0x8000, lambda code: _c("store" if code >> 11 & 1 else "load", 2, True)(code)),  # Zcb
    (0xE003, 0x0001, _c("write", 7, False)), (0xE003, 0x2001, _c("write", 7, False)),
    (0xE003, 0x4001, _c("write", 7, False)), (0xE003, 0x6001, _c("write", 7, False)),
    (0xE003, 0x8001, _c("write", 7, True)),
    (0xE003, 0x0002, _c("write", 7, False)),
    (0xE003, 0x4002, _c("load", 7, False)), (0xE003, 0x6002, _c("load", 7, False)),
    (0xE003, 0x8002, _c_register),
    (0xE003, 0xC002, _c("store", 2, False)), (0xE003, 0xE002, _c("store", 2, False)),
    (0, 0, _nothing),
)

# Intended overlaps, in the format of classify.py.  The last row of each table matches every
# instruction and is not listed here.
WIDE_OVERLAPS: Overlaps = {
    (0x7F, 0x2F): ((0xF800007F, 0x1000002F), (0xF800007F, 0x1800002F), (0xF800007F, 0x2800002F)),
    (0x7F, 0x13): ((0xFFF0707F, 0x00000013),),
    (0x7F, 0x1B): ((0xFFF0707F, 0x0000001B),),
    (0x7F, 0x33): ((0xFFF0707F, 0x00000033), (0xFFF0707F, 0x00006033)),
}
NARROW_OVERLAPS: Overlaps = {}


@functools.lru_cache(1 << 16)
def effect(code: bytes) -> Effect:
    """Return the data flow of one instruction."""
    word = int.from_bytes(code, "little")
    for mask, value, make in NARROW if len(code) == 2 else WIDE:
        if word & mask == value:
            return make(word)
    return NOTHING
