"""Properties of arm64 instructions, derived from the instruction bytes."""

import re
from collections.abc import Mapping
from typing import ClassVar

import kinst.arm64._encoding as _encoding
from kinst.arm64 import classify
from kinst.relocation import rows
from kinst.relocation.instructions import Instructions
from kinst.relocation.verdict import Rewrite, Verdict

PRFM_LITERAL = 0xD8
# stp xA, xB, [sp, #-N]! and sub sp, sp, #N
PROLOGUES = ((0xFFC003E0, 0xA98003E0), (0xFF8003FF, 0xD10003FF))


class Arm64Instructions(Instructions):
    """arm64 instructions: their verdicts and other properties."""

    trap_returns: ClassVar[frozenset[bytes]] = frozenset({bytes.fromhex("e0039fd6")})  # ERET
    padding: ClassVar[re.Pattern[bytes]] = re.compile(rb"\x1f\x20\x03\xd5")  # nop
    examples: ClassVar[tuple[bytes, ...]] = tuple(map(bytes.fromhex, (
        "e8031faa", "200040f9", "00000090", "60000010", "21000054", "c0035fd6", "df4203d5",
        "010000d4", "7f2003d5", "287d5fc8", "287d0ac8")))

    def classify(self, code: bytes, address: int) -> tuple[int, Verdict]:
        return classify.classify(code, address)

    def literal(self, code: bytes, address: int) -> tuple[int, int] | None:
        """Return (address, size) of the data that LDR or LDRSW (literal) reads, else None.

        This includes loads of vectors (Arm ARM C4.1, "Load register (literal)").
        """
        word = int.from_bytes(code[:4], "little")
        if word & 0x3B000000 != 0x18000000 or word >> 24 == PRFM_LITERAL:
            return None
        offset = (word >> 5 & 0x7FFFF ^ 0x40000) - 0x40000
        opc, vector = word >> 30, word >> 26 & 1
        if vector and opc == 3:
            return None  # unallocated
        return address + 4 * offset, 4 << opc if vector or opc < 2 else 4

    def starts_exclusive(self, code: bytes) -> bool:
        return classify.starts_exclusive(code)

    def ends_exclusive(self, code: bytes) -> bool:
        return classify.ends_exclusive(code)

    def is_prologue(self, code: bytes) -> bool:
        word = int.from_bytes(code, "little")
        return any(word & mask == value for mask, value in PROLOGUES)

    def is_return(self, code: bytes) -> bool:
        return int.from_bytes(code, "little") & 0xFFFFFC1F == 0xD65F0000

    def makes(self, code: bytes, verdict: Verdict) -> tuple[str, int] | None:
        """Return (register, address) if an instruction sets a register to an address, else None.

        For ADRP, which is rewritten, the trampoline's data is the address (Arm ARM C6.2.12).
        """
        word = int.from_bytes(code, "little")
        if isinstance(verdict, Rewrite) and word & 0x9F000000 == 0x90000000:
            return f"x{word & 31}", int.from_bytes(verdict.data, "little")
        return super().makes(code, verdict)

    def read_by(self, code: bytes, address: int, known: Mapping[str, int]
                ) -> tuple[str, int, int] | None:
        """Return (register, address, size) if LDRB or LDR reads a known address, else None.

        LDR must have an X register, and both an unsigned offset (Arm ARM C6.2.166, C6.2.169).
        """
        word = int.from_bytes(code, "little")
        size = {0x39400000: 1, 0xF9400000: 8}.get(word & 0xFFC00000)
        base = known.get(f"x{word >> 5 & 31}")
        if size is None or base is None:
            return None
        return f"x{word & 31}", base + size * (word >> 10 & 0xFFF), size

    def second_argument(self, code: bytes) -> int | None:
        """Return n if an instruction is ADD X1, register, #n, else None (Arm ARM C6.2.4)."""
        word = int.from_bytes(code, "little")
        return word >> 10 & 0xFFF if word & 0xFFC0001F == 0x91000001 else None

    def is_landing(self, code: bytes) -> bool:
        return int.from_bytes(code, "little") & 0xFFFFFF3F == 0xD503241F  # BTI

    def split(self) -> object:
        return _encoding.SPLIT


# Prologue rows come first: the row of a copied instruction alone does not show whether the
# instruction is a prologue.
_encoding.know([*((*row, False) for row in PROLOGUES),
                *((mask, value, verdict is rows.copy)
                  for mask, value, verdict in classify.ROWS)])
