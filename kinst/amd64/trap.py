"""amd64: INT3, the trap frame at the top of the stack, one way through the trampoline.

In a real system ``dtrace_invop_start`` restores the registers from the frame and executes IRETQ;
that is done here by setting the registers.
"""

import struct
from typing import ClassVar

from emu.amd64 import registers
from emu.amd64.arch import TRAP_FRAME
from emu.machine import Machine
from kinst.amd64 import classify
from kinst.trap import FrameState, GuestTrap
from kinst.verdict import Copy, Rewrite, Verdict

INT3, PUSH_RBP = b"\xcc", b"\x55"
JUMP = b"\xff\x25\x00\x00\x00\x00"  # jmp *0(%rip), the address follows


class Amd64Trap(GuestTrap):
    excluded: ClassVar[frozenset[str]] = frozenset({"Xbpt", "alltraps", "calltrap", "trap"})
    second_breakpoint: ClassVar[bool] = False

    def classify(self, code: bytes, address: int) -> tuple[int, Verdict]:
        return classify.classify(code, address)

    def is_prologue(self, code: bytes) -> bool:
        return code == PUSH_RBP

    def is_return(self, code: bytes) -> bool:
        return code.lstrip(b"\xf3\xf2")[:1] in (b"\xc3", b"\xc2")

    def breakpoint(self, length: int) -> bytes:
        return INT3

    def trampoline(
        self, at: int, code: bytes, verdict: Copy | Rewrite, after: int
    ) -> tuple[bytes, int]:
        if isinstance(verdict, Rewrite):
            body = bytearray(verdict.code)
            if verdict.displacement is not None:
                offset, target = verdict.displacement
                struct.pack_into("<i", body, offset, target - (at + len(body)))
            code = bytes(body)
        return code + JUMP + struct.pack("<Q", after), len(code)

    def enter(self, machine: Machine) -> tuple[int, FrameState]:
        state = FrameState(machine, TRAP_FRAME, machine.sp, {})
        return state.get("rip") - 1, state

    def leave(self, machine: Machine, state: FrameState, pc: int) -> None:
        for name in registers.NAMES:
            machine.write_register(name, state.get(name))
        machine.pc = pc

    def decline(self, machine: Machine, state: FrameState) -> None:
        machine.pc = machine.read_u64(machine.symbol("dtrace_invop_calltrap_addr").address)
