"""Properties of riscv64 instructions, derived from the instruction bytes."""

import re
from collections.abc import Mapping
from typing import ClassVar

import kinst.riscv64._encoding as _encoding
from emu.riscv64 import registers
from kinst.relocation import rows
from kinst.relocation.instructions import Instructions
from kinst.relocation.verdict import SetRegister, Verdict
from kinst.riscv64 import classify

RET, C_JR_RA = bytes.fromhex("67800000"), bytes.fromhex("8280")
C_PROLOGUE = (0xE07F, 0xE006)  # c.sdsp ra, N(sp)
PROLOGUE = (0x01FFF07F, 0x00113023)  # sd ra, N(sp)
AUIPC, LOADS = 0x17, (0x03, 0x07)
C_FLD, C_LW, C_LD = 1, 2, 3


class Riscv64Instructions(Instructions):
    """riscv64 instructions: their verdicts and other properties."""

    trap_returns: ClassVar[frozenset[bytes]] = frozenset(  # SRET, MRET
        {bytes.fromhex("73002010"), bytes.fromhex("73002030")})
    padding: ClassVar[re.Pattern[bytes]] = re.compile(rb"\x01\x00|\x13\x00\x00\x00")  # nop
    examples: ClassVar[tuple[bytes, ...]] = tuple(map(bytes.fromhex, (
        "8145", "03b50500", "17150000", "7dfa", "8280", "73000000", "73100014", "73005010",
        "73002010", "2fb50510", "2fb6d518")))

    def literal(self, code: bytes, address: int) -> tuple[int, int] | None:
        """Return (address, size) of the data that AUIPC and a load directly after it read, or None.

        The load uses AUIPC's register (unprivileged manual, 2.5 and 2.6; compressed loads: chapter
        "C").
        """
        first, second = (int.from_bytes(code[at : at + 4], "little") for at in (0, 4))
        register = first >> 7 & 31
        if first & 0x7F != AUIPC or len(code) < 6:
            return None
        target = address + ((first >> 12 ^ 0x80000) - 0x80000 << 12)
        if second & 0x7F in LOADS and second >> 15 & 31 == register and len(code) >= 8:
            offset = (second >> 20 ^ 0x800) - 0x800
            return target + offset, 1 << (second >> 12 & 3)
        if second & 3 == 0 and (second >> 7 & 7) + 8 == register:
            high = second >> 10 & 7
            if second >> 13 & 7 == C_LW:
                return target + (high << 3 | (second >> 6 & 1) << 2 | (second >> 5 & 1) << 6), 4
            if second >> 13 & 7 in (C_FLD, C_LD):
                return target + (high << 3 | (second >> 5 & 3) << 6), 8
        return None

    def classify(self, code: bytes, address: int) -> tuple[int, Verdict]:
        return classify.classify(code, address)

    def starts_exclusive(self, code: bytes) -> bool:
        return classify.starts_exclusive(code)

    def ends_exclusive(self, code: bytes) -> bool:
        return classify.ends_exclusive(code)

    def is_prologue(self, code: bytes) -> bool:
        word = int.from_bytes(code, "little")
        mask, value = C_PROLOGUE if len(code) == 2 else PROLOGUE
        return word & mask == value

    def is_return(self, code: bytes) -> bool:
        return code in (RET, C_JR_RA)

    def read_by(self, code: bytes, address: int, known: Mapping[str, int]
                ) -> tuple[str, int, int] | None:
        """Return (register, address, size) if LBU, LD or C.LD reads a known address, else None.

        See the unprivileged manual, 2.6.
        """
        word = int.from_bytes(code, "little")
        if len(code) == 2 and word & 3 == 0 and word >> 13 == C_LD:
            base = known.get(registers.NAMES[(word >> 7 & 7) + 8])
            offset = (word >> 10 & 7) << 3 | (word >> 5 & 3) << 6
            rd = registers.NAMES[(word >> 2 & 7) + 8]
            return None if base is None else (rd, base + offset, 8)
        size = {0x4003: 1, 0x3003: 8}.get(word & 0x707F)
        base = known.get(registers.NAMES[word >> 15 & 31])
        if len(code) != 4 or size is None or base is None:
            return None
        return registers.NAMES[word >> 7 & 31], base + ((word >> 20 ^ 0x800) - 0x800), size

    def second_argument(self, code: bytes) -> int | None:
        """Return n if ``code`` is ADDI a1, register, n, else None (Unprivileged ISA, 2.4.1)."""
        word = int.from_bytes(code, "little")
        if len(code) != 4 or word & 0x7FFF != 0x593:
            return None
        return (word >> 20 ^ 0x800) - 0x800

    def links(self, verdict: Verdict) -> bool | None:
        return super().links(
            verdict.jump if isinstance(verdict, classify.JumpEven) else verdict)

    def jump_target(self, before: Verdict | None, verdict: Verdict) -> int | None:
        """Return the target of an unconditional jump without link, or None if unknown.

        This includes AUIPC and JR through the same register, the far form of a tail call.
        """
        if isinstance(verdict, classify.JumpEven) and verdict.jump.link is None:
            return _far(before, verdict)
        return super().jump_target(before, verdict)

    def call_target(self, before: Verdict | None, verdict: Verdict) -> int | None:
        """Return the address of the function that an instruction calls, or None if unknown.

        This includes AUIPC and JALR through the same register.
        """
        if isinstance(verdict, classify.JumpEven) and verdict.jump.link is not None:
            return _far(before, verdict)
        return super().call_target(before, verdict)

    def split(self) -> object:
        return _encoding.SPLIT


def _far(before: Verdict | None, verdict: classify.JumpEven) -> int | None:
    """Return the target of a jump through a register that AUIPC has just set, else None."""
    if isinstance(before, SetRegister) and before.register == verdict.jump.register:
        return before.value + verdict.jump.offset & classify.MASK & ~1
    return None


# Prologue rows come first: the row of a copied instruction alone does not show whether the
# instruction is a prologue.  The rows of the two tables differ in the lowest two bits.
_encoding.know([(*C_PROLOGUE, False), (*PROLOGUE, False),
                *((mask, value, verdict is rows.copy)
                  for mask, value, verdict in (*classify.WIDE, *classify.COMPRESSED))])
