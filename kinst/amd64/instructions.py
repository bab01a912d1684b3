"""Properties of amd64 instructions, derived from the instruction bytes."""

import re
from collections.abc import Mapping
from typing import ClassVar

import kinst.amd64._encoding as _encoding
from kinst.amd64 import classify
from kinst.relocation.instructions import Instructions
from kinst.relocation.verdict import Verdict

PUSH_RBP, IRETQ = b"\x55", b"\x48\xcf"
REP = b"\xf2\xf3"
PREFIXES = bytes((0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67, 0xF2, 0xF3, *range(0x40, 0x50)))
# INS, OUTS, MOVS, CMPS, STOS, LODS, SCAS
STRINGS = {bytes((code,)) for code in (*range(0x6C, 0x70), *range(0xA4, 0xA8), *range(0xAA, 0xB0))}


class Amd64Instructions(Instructions):
    """amd64 instructions: their verdicts and other properties."""

    trap_returns: ClassVar[frozenset[bytes]] = frozenset(  # IRETQ, SYSRETQ
        {IRETQ, b"\x48\x0f\x07"})
    repeat_counter: ClassVar[str] = "rcx"
    # NOP of one or several bytes, with any prefixes (SDM volume 2, "NOP"), and INT3
    padding: ClassVar[re.Pattern[bytes]] = re.compile(
        rb"(?:[\x66\x2e]*(?:\x90|\x0f\x1f.*))|\xcc", re.DOTALL)
    examples: ClassVar[tuple[bytes, ...]] = tuple(map(bytes.fromhex, (
        "55", "8a07", "488b0510000000", "75f5", "c3", "f4", "fb", "9d", "8ed0", "0f05", "48cf")))

    def repeats(self, code: bytes) -> bool:
        """Return whether an instruction is a string instruction with REP (SDM volume 2, REP)."""
        for at, byte in enumerate(code):
            if byte in REP:
                return code[at + 1 :].lstrip(PREFIXES)[:1] in STRINGS
            if byte not in PREFIXES:
                break
        return False

    def literal(self, code: bytes, address: int) -> tuple[int, int] | None:
        return classify.literal(code, address)

    def classify(self, code: bytes, address: int) -> tuple[int, Verdict]:
        return classify.classify(code, address)

    def is_prologue(self, code: bytes) -> bool:
        return code == PUSH_RBP

    def links(self, verdict: Verdict) -> bool | None:
        if isinstance(verdict, classify.Indirect):
            return verdict.pushes is not None
        return True if isinstance(verdict, classify.DirectCall) else None

    def call_target(self, before: Verdict | None, verdict: Verdict) -> int | None:
        return verdict.target if isinstance(verdict, classify.DirectCall) else None

    def is_return(self, code: bytes) -> bool:
        return code.lstrip(b"\xf3\xf2")[:1] in (b"\xc3", b"\xc2")

    def read_by(self, code: bytes, address: int, known: Mapping[str, int]
                ) -> tuple[str, int, int] | None:
        data = self.literal(code, address)  # ``known`` is not needed for a RIP-relative operand
        return None if data is None else ("", *data)

    def second_argument(self, code: bytes) -> int | None:
        """Return n if ``code`` is LEA RSI, [register + n], else None (SDM volume 2, LEA)."""
        if len(code) != 7 or code[0] & 0xFE != 0x48 or code[1] != 0x8D or code[2] & 0xF8 != 0xB0:
            return None
        return int.from_bytes(code[3:7], "little", signed=True)

    def split(self) -> object:
        return _encoding.SPLIT
