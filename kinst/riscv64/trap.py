"""Host side of the riscv64 trap path: breakpoints and trampolines with EBREAK, and the seam."""

from collections.abc import Mapping
from typing import ClassVar

from emu.riscv64 import registers
from kinst.relocation.trap import Breakpoint, CalledSeam, FrameRegisters, StatusRegister
from kinst.relocation.verdict import Copy, Rewrite
from kinst.riscv64.instructions import Riscv64Instructions

EBREAK = (0x00100073).to_bytes(4, "little")
C_EBREAK = (0x9002).to_bytes(2, "little")
# C.LUI x0, 0.  Unicorn does not count the bytes of an all-zero instruction as part of the block, so
# that instruction cannot serve as the breakpoint.
RESERVED = (0x6001).to_bytes(2, "little")
C_NOP = (0x0001).to_bytes(2, "little")
SIE, SPIE = 1 << 1, 1 << 5


class Riscv64Trap(CalledSeam):
    """Host side of the trap path on riscv64."""

    instructions = Riscv64Instructions()
    seam_code: ClassVar[bytes] = bytes.fromhex("8280")  # c.jr ra
    more_registers: ClassVar[tuple[str, ...]] = ("sstatus",)
    frame: ClassVar[FrameRegisters] = FrameRegisters(
        "a0", names={"pc": "sepc"}, unrestored=frozenset({"sp", "gp", "tp"}))
    numbers: ClassVar[Mapping[str, int]] = registers.UNICORN
    status: ClassVar[StatusRegister] = StatusRegister("sstatus", frame_mask=SPIE, cpu_mask=SIE)
    # Unicorn reports EBREAK as an invalid instruction (emu/unicorn/_engine.pxd, INVALID).  The
    # direct path uses a reserved instruction instead, which is five times faster.
    guest_breakpoint: ClassVar[Breakpoint] = Breakpoint(EBREAK, 0xFFFFFFFF, short=C_EBREAK)
    direct_breakpoint: ClassVar[Breakpoint] = Breakpoint(RESERVED, 2, bias=4, short=RESERVED)
    return_register: ClassVar[str] = "sepc"
    saved: ClassVar[Mapping[str, str]] = {  # registers that a trap sets (privileged manual, 12.1)
        "sepc": "the address of EBREAK", "scause": "the cause: 3 means breakpoint",
        "stval": "the trap value: zero or the address of the breakpoint",
        "sstatus": "the status: SPIE (bit 5) is the previous SIE (bit 1), SPP (bit 8) the privilege"
                   " of the interrupted code"}
    short_nop: ClassVar[bytes] = C_NOP

    def trampoline(
        self, at: int, code: bytes, verdict: Copy | Rewrite, after: int
    ) -> tuple[bytes, int]:
        body = code if isinstance(verdict, Copy) else verdict.code
        return body + C_NOP * (len(body) == 2) + EBREAK, 4


TRAP = Riscv64Trap()
