"""riscv64: EBREAK or C.EBREAK, the seam gets the frame, a second breakpoint comes back."""

from typing import ClassVar

from kinst.riscv64 import classify
from kinst.trap import CalledSeam, FrameState
from kinst.verdict import Copy, Rewrite, Verdict

EBREAK = (0x00100073).to_bytes(4, "little")
C_EBREAK = (0x9002).to_bytes(2, "little")
C_NOP = (0x0001).to_bytes(2, "little")
SPIE = 1 << 5


class Riscv64Trap(CalledSeam):
    excluded: ClassVar[frozenset[str]] = frozenset(
        {"cpu_exception_handler", "cpu_exception_handler_supervisor",
         "cpu_exception_handler_user", "do_trap_supervisor", "do_trap_user"}
    )
    names: ClassVar[dict[str, str]] = {"pc": "sepc"}

    def classify(self, code: bytes, address: int) -> tuple[int, Verdict]:
        return classify.classify(code, address)

    def starts_exclusive(self, code: bytes) -> bool:
        return classify.starts_exclusive(code)

    def ends_exclusive(self, code: bytes) -> bool:
        return classify.ends_exclusive(code)

    def breakpoint(self, length: int) -> bytes:
        return C_EBREAK if length == 2 else EBREAK

    def trampoline(
        self, at: int, code: bytes, verdict: Copy | Rewrite, after: int
    ) -> tuple[bytes, int]:
        body = code if isinstance(verdict, Copy) else verdict.code
        return body + C_NOP * (len(body) == 2) + EBREAK, 4

    def mask(self, state: FrameState) -> int:
        saved = state.get("sstatus") & SPIE
        state.set("sstatus", state.get("sstatus") & ~SPIE)
        return saved

    def unmask(self, state: FrameState, saved: int) -> None:
        state.set("sstatus", state.get("sstatus") & ~SPIE | saved)
