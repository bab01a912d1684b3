"""Host side of the amd64 trap path: INT3, a trap frame on the stack, trampolines with a jump.

On a real system, ``dtrace_invop_start`` restores the registers from the frame and executes IRETQ.
Here the host sets the registers instead.
"""

import struct
from collections.abc import Mapping
from typing import ClassVar

from emu.amd64 import registers
from emu.machine.machine import Machine
from kinst.amd64.instructions import IRETQ, Amd64Instructions
from kinst.relocation.trap import (
    Breakpoint,
    CpuState,
    FrameRegisters,
    GuestTrap,
    StatusRegister,
)
from kinst.relocation.verdict import Copy, Rewrite

INT3 = b"\xcc"
JUMP = b"\xff\x25\x00\x00\x00\x00"  # jmp *0(%rip), followed by the target address


class Amd64Trap(GuestTrap):
    """Host side of FreeBSD's trap path on amd64."""

    instructions = Amd64Instructions()
    second_breakpoint: ClassVar[bool] = False
    jump: ClassVar[bytes] = JUMP
    called: ClassVar[bool] = False
    more_registers: ClassVar[tuple[str, ...]] = ("fs_base", "gs_base")
    numbers: ClassVar[Mapping[str, int]] = registers.UNICORN
    frame: ClassVar[FrameRegisters] = FrameRegisters("rsp")
    status: ClassVar[StatusRegister] = StatusRegister(
        "rflags", flag_bits=(0, 2, 6, 7, 11))  # CF PF ZF SF OF
    frame_return: ClassVar[bytes] = IRETQ
    guest_breakpoint: ClassVar[Breakpoint] = Breakpoint(INT3, 3, bias=len(INT3))
    segment: ClassVar[str] = "gs_base"
    saved: ClassVar[Mapping[str, str]] = {  # Intel SDM 3A, 6.14.2
        "rip": "the address after INT3", "cs": "the code segment of the interrupted code",
        "rflags": "the flags before the exception, which clears IF (bit 9)",
        "rsp": "the stack pointer before the CPU pushed these five words",
        "ss": "the stack segment"}
    interrupt_flag: ClassVar[int] = registers.RFLAGS_IF

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

    def at_seam(self, machine: Machine) -> int:
        frame = machine.guest.traps.trap_frame
        return frame.read(machine, machine.sp, "rip") - self.guest_breakpoint.bias

    def enter(self, machine: Machine) -> CpuState:
        """Restore the interrupted code's registers from the trap frame; return the CPU state."""
        frame, address = machine.sp, self.at_seam(machine)
        for name in registers.NAMES:
            if name != "rip":
                value = machine.guest.traps.trap_frame.read(machine, frame, name)
                machine.write_register(name, value)
        return CpuState(machine, address)

    def leave(self, machine: Machine, state: CpuState, pc: int) -> None:
        machine.pc = pc

    def leave_by_frame(self, machine: Machine, frame: int, pc: int, at: int) -> None:
        """Return to ``pc`` as ``dtrace_invop_start`` does, by an IRETQ from the trap frame.

        The registers already have the interrupted code's values.  For IRETQ, the stack pointer is
        set to the last words of the trap frame.
        """
        machine.guest.traps.trap_frame.write(machine, frame, "rip", pc)
        machine.write_register("rflags", machine.read_register("rflags") & ~registers.RFLAGS_IF)
        machine.write_register("rsp", frame + machine.guest.traps.trap_frame.fields["rip"][0])
        machine.pc = at

    def decline(self, machine: Machine) -> None:
        machine.pc = machine.read_u64(machine.symbol(machine.guest.traps.seam_word).address)


TRAP = Amd64Trap()
