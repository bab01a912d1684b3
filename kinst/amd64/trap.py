"""amd64: INT3, the trap frame at the top of the stack, one way through the trampoline.

In a real system ``dtrace_invop_start`` restores the registers from the frame and executes IRETQ;
that is done here by setting the registers.
"""

import re
import struct
from collections.abc import Mapping
from typing import ClassVar

import kinst.amd64._encoding as _encoding
from emu.amd64 import registers
from emu.machine.machine import Machine
from kinst.amd64 import classify
from kinst.relocation.trap import Breakpoint, CpuState, GuestTrap
from kinst.relocation.verdict import Copy, Rewrite, Verdict

INT3, PUSH_RBP, IRETQ = b"\xcc", b"\x55", b"\x48\xcf"
REP = b"\xf2\xf3"
PREFIXES = bytes((0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67, 0xF2, 0xF3, *range(0x40, 0x50)))
# INS, OUTS, MOVS, CMPS, STOS, LODS, SCAS.
STRINGS = {bytes((code,)) for code in (*range(0x6C, 0x70), *range(0xA4, 0xA8), *range(0xAA, 0xB0))}
JUMP = b"\xff\x25\x00\x00\x00\x00"  # jmp *0(%rip), the address follows


class Amd64Trap(GuestTrap):
    trap_returns: ClassVar[frozenset[bytes]] = frozenset(  # IRETQ, SYSRETQ
        {IRETQ, b"\x48\x0f\x07"})
    second_breakpoint: ClassVar[bool] = False
    jump: ClassVar[bytes] = JUMP
    called: ClassVar[bool] = False
    more_registers: ClassVar[tuple[str, ...]] = ("fs_base", "gs_base")
    numbers: ClassVar[Mapping[str, int]] = registers.UNICORN
    status: ClassVar[str] = "rflags"
    flag_bits: ClassVar[tuple[int, ...]] = (0, 2, 6, 7, 11)  # CF PF ZF SF OF
    frame_return: ClassVar[bytes] = IRETQ
    guest_breakpoint: ClassVar[Breakpoint] = Breakpoint(INT3, 3, bias=len(INT3))
    frame_register: ClassVar[str] = "rsp"
    segment: ClassVar[str] = "gs_base"
    repeat_counter: ClassVar[str] = "rcx"
    saved: ClassVar[Mapping[str, str]] = {  # Intel SDM 3A, 6.14.2
        "rip": "the address behind INT3", "cs": "the code segment that was executed in",
        "rflags": "the flags before; at the vector IF (bit 9) is clear",
        "rsp": "the stack pointer before the CPU pushed these five words",
        "ss": "the stack segment"}
    # SDM volume 2, "NOP": with any prefixes, and of several bytes; INT3.
    padding: ClassVar[re.Pattern[bytes]] = re.compile(
        rb"(?:[\x66\x2e]*(?:\x90|\x0f\x1f.*))|\xcc", re.DOTALL)
    examples: ClassVar[tuple[bytes, ...]] = tuple(map(bytes.fromhex, (
        "55", "8a07", "488b0510000000", "75f5", "c3", "f4", "fb", "9d", "8ed0", "0f05", "48cf")))
    interrupt_flag: ClassVar[int] = registers.RFLAGS_IF

    def repeats(self, code: bytes) -> bool:
        """REP and a string instruction (Intel SDM volume 2, REP)."""
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
        found = self.literal(code, address)  # its register does not matter: addresses are not read
        return None if found is None else ("", *found)

    def second_argument(self, code: bytes) -> int | None:
        """LEA RSI, [register + displacement] (Intel SDM volume 2, LEA; table 2-2)."""
        if len(code) != 7 or code[0] & 0xFE != 0x48 or code[1] != 0x8D or code[2] & 0xF8 != 0xB0:
            return None
        return int.from_bytes(code[3:7], "little", signed=True)

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

    def split(self) -> object:
        return _encoding.SPLIT

    def at_seam(self, machine: Machine) -> int:
        frame = machine.guest.traps.trap_frame
        return frame.read(machine, machine.sp, "rip") - self.guest_breakpoint.bias

    def enter(self, machine: Machine) -> CpuState:
        """The registers are the interrupted ones from here on."""
        frame, address = machine.sp, self.at_seam(machine)
        for name in registers.NAMES:
            if name != "rip":
                value = machine.guest.traps.trap_frame.read(machine, frame, name)
                machine.write_register(name, value)
        return CpuState(machine, address)

    def leave(self, machine: Machine, state: CpuState, pc: int) -> None:
        machine.pc = pc

    def leave_by_frame(self, machine: Machine, frame: int, pc: int, at: int) -> None:
        """As ``dtrace_invop_start`` goes back: the registers are the interrupted ones, and the last
        words of the trap frame are at the stack pointer for IRETQ."""
        machine.guest.traps.trap_frame.write(machine, frame, "rip", pc)
        machine.write_register("rflags", machine.read_register("rflags") & ~registers.RFLAGS_IF)
        machine.write_register("rsp", frame + machine.guest.traps.trap_frame.fields["rip"][0])
        machine.pc = at

    def decline(self, machine: Machine) -> None:
        machine.pc = machine.read_u64(machine.symbol(machine.guest.traps.seam_word).address)


TRAP = Amd64Trap()
