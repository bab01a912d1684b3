"""arm64: BRK #0x40d, the seam is called with the frame, and a second breakpoint comes back."""

from typing import ClassVar

from kinst.arm64 import classify
from kinst.trap import CalledSeam, FrameState
from kinst.verdict import Copy, Rewrite, Verdict

BRK = (0xD42081A0).to_bytes(4, "little")
PSTATE_I = 1 << 7


class Arm64Trap(CalledSeam):
    excluded: ClassVar[frozenset[str]] = frozenset(
        {"handle_el1h_sync", "do_el1h_sync", "exception_vectors"}
    )
    excluded_prefixes: ClassVar[tuple[str, ...]] = ("handle_el",)
    names: ClassVar[dict[str, str]] = {"x30": "lr", "pc": "elr", "pstate": "spsr"}

    def classify(self, code: bytes, address: int) -> tuple[int, Verdict]:
        return classify.classify(code, address)

    def starts_exclusive(self, code: bytes) -> bool:
        return classify.starts_exclusive(code)

    def ends_exclusive(self, code: bytes) -> bool:
        return classify.ends_exclusive(code)

    def is_prologue(self, code: bytes) -> bool:
        word = int.from_bytes(code, "little")
        # stp xA, xB, [sp, #-N]! and sub sp, sp, #N
        return word & 0xFFC003E0 == 0xA98003E0 or word & 0xFF8003FF == 0xD10003FF

    def is_return(self, code: bytes) -> bool:
        return int.from_bytes(code, "little") & 0xFFFFFC1F == 0xD65F0000

    def is_landing(self, code: bytes) -> bool:
        return int.from_bytes(code, "little") & 0xFFFFFF3F == 0xD503241F  # BTI

    def breakpoint(self, length: int) -> bytes:
        return BRK

    def trampoline(
        self, at: int, code: bytes, verdict: Copy | Rewrite, after: int
    ) -> tuple[bytes, int]:
        if isinstance(verdict, Copy):
            return code + BRK, 4
        body = verdict.code + BRK
        second = len(verdict.code)
        return body + bytes(-len(body) % 8) + verdict.data, second

    def mask(self, state: FrameState) -> int:
        saved = state.get("pstate") & PSTATE_I
        state.set("pstate", state.get("pstate") | PSTATE_I)
        return saved

    def unmask(self, state: FrameState, saved: int) -> None:
        state.set("pstate", state.get("pstate") & ~PSTATE_I | saved)
