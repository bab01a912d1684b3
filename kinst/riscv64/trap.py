"""riscv64: EBREAK or C.EBREAK, the seam gets the frame, a second breakpoint comes back."""

from collections.abc import Mapping
from typing import ClassVar

from emu.riscv64 import registers
from kinst import _dispatch
from kinst.riscv64 import classify
from kinst.trap import MASK, Breakpoint, CalledSeam
from kinst.verdict import Copy, Rewrite, SetRegister, Verdict

EBREAK = (0x00100073).to_bytes(4, "little")
C_EBREAK = (0x9002).to_bytes(2, "little")
RET, C_JR_RA = bytes.fromhex("67800000"), bytes.fromhex("8280")
# C.LUI x0, 0.  Not the all-zero instruction: Unicorn does not count its bytes to the block's.
RESERVED = (0x6001).to_bytes(2, "little")
C_NOP = (0x0001).to_bytes(2, "little")
SIE, SPIE = 1 << 1, 1 << 5


class Riscv64Trap(CalledSeam):
    seam_code: ClassVar[bytes] = bytes.fromhex("8280")  # c.jr ra
    excluded: ClassVar[frozenset[str]] = frozenset(
        {"cpu_exception_handler", "cpu_exception_handler_supervisor",
         "cpu_exception_handler_user", "do_trap_supervisor", "do_trap_user"}
    )
    more_registers: ClassVar[tuple[str, ...]] = ("sstatus",)
    unrestored: ClassVar[frozenset[str]] = frozenset({"sp", "gp", "tp"})
    numbers: ClassVar[Mapping[str, int]] = registers.UNICORN
    status: ClassVar[str] = "sstatus"
    frame_mask: ClassVar[int] = SPIE
    cpu_mask: ClassVar[int] = SIE
    # Unicorn gives up on EBREAK (emu/_engine.pxd, INVALID) and ends its run: on the direct path a
    # reserved instruction is there instead, five times faster.
    guest_breakpoint: ClassVar[Breakpoint] = Breakpoint(EBREAK, 0xFFFFFFFF, short=C_EBREAK)
    direct_breakpoint: ClassVar[Breakpoint] = Breakpoint(RESERVED, 2, bias=4, short=RESERVED)
    frame_register: ClassVar[str] = "a0"
    short_nop: ClassVar[bytes] = C_NOP
    names: ClassVar[dict[str, str]] = {"pc": "sepc"}

    def classify(self, code: bytes, address: int) -> tuple[int, Verdict]:
        return classify.classify(code, address)

    def starts_exclusive(self, code: bytes) -> bool:
        return classify.starts_exclusive(code)

    def ends_exclusive(self, code: bytes) -> bool:
        return classify.ends_exclusive(code)

    def is_prologue(self, code: bytes) -> bool:
        word = int.from_bytes(code, "little")
        if len(code) == 2:
            return word & 0xE07F == 0xE006  # c.sdsp ra, N(sp)
        return word & 0x01FFF07F == 0x00113023  # sd ra, N(sp)

    def is_return(self, code: bytes) -> bool:
        return code in (RET, C_JR_RA)

    def jump_target(self, before: Verdict | None, verdict: Verdict) -> int | None:
        """Also AUIPC and JR through the same register: the far form of a tail call."""
        if (
            isinstance(verdict, classify.JumpEven) and verdict.jump.link is None
            and isinstance(before, SetRegister) and before.register == verdict.jump.register
        ):
            return before.value + verdict.jump.offset & MASK & ~1
        return super().jump_target(before, verdict)

    def trampoline(
        self, at: int, code: bytes, verdict: Copy | Rewrite, after: int
    ) -> tuple[bytes, int]:
        body = code if isinstance(verdict, Copy) else verdict.code
        return body + C_NOP * (len(body) == 2) + EBREAK, 4

    def split(self) -> object:
        return _dispatch.COMPRESSED
