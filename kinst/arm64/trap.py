"""Host side of the arm64 trap path: breakpoints and trampolines with BRK #0x40d, and the seam."""

from collections.abc import Mapping
from typing import ClassVar

from emu.arm64 import registers
from kinst.arm64.instructions import Arm64Instructions
from kinst.relocation.trap import Breakpoint, CalledSeam, FrameRegisters, StatusRegister
from kinst.relocation.verdict import Copy, Rewrite

BRK = (0xD42081A0).to_bytes(4, "little")
PSTATE_I = 1 << 7


class Arm64Trap(CalledSeam):
    """Host side of the trap path on arm64."""

    instructions = Arm64Instructions()
    seam_code: ClassVar[bytes] = bytes.fromhex("c0035fd6")  # ret
    more_registers: ClassVar[tuple[str, ...]] = tuple(registers.VECTORS)
    frame: ClassVar[FrameRegisters] = FrameRegisters(
        "x0", names={"x30": "lr", "pc": "elr", "pstate": "spsr"},
        unrestored=frozenset(f"x{i}" for i in range(18, 29)),
        # FreeBSD's exception vectors for EL1 use x18 before saving x18 (exception.S).
        untold=frozenset({"x18"}))
    numbers: ClassVar[Mapping[str, int]] = registers.UNICORN | registers.VECTORS
    status: ClassVar[StatusRegister] = StatusRegister(
        "pstate", flag_bits=(28, 29, 30, 31),  # V C Z N
        frame_mask=PSTATE_I, mask_sets=True, cpu_mask=PSTATE_I)
    guest_breakpoint: ClassVar[Breakpoint] = Breakpoint(BRK, 7)  # EXCP_BKPT
    return_register: ClassVar[str] = "elr_el1"
    saved: ClassVar[Mapping[str, str]] = {  # Arm ARM D1.3, D24.2.40
        "elr": "ELR_EL1: the address of BRK", "spsr": "SPSR_EL1: PSTATE of the interrupted code",
        "esr": "ESR_EL1: the exception class (bits 31:26; 0x3c is BRK) and the immediate of BRK",
        "far": "FAR_EL1: left by an earlier fault; a breakpoint does not set it"}

    def trampoline(
        self, at: int, code: bytes, verdict: Copy | Rewrite, after: int
    ) -> tuple[bytes, int]:
        if isinstance(verdict, Copy):
            return code + BRK, 4
        body = verdict.code + BRK
        second = len(verdict.code)
        return body + bytes(-len(body) % 8) + verdict.data, second


TRAP = Arm64Trap()
