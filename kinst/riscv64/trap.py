"""riscv64: EBREAK or C.EBREAK, the seam gets the frame, a second breakpoint comes back."""

from typing import ClassVar

from emu.machine import Machine
from emu.riscv64.arch import TRAP_FRAME
from kinst.riscv64 import classify
from kinst.trap import FrameState, GuestTrap
from kinst.verdict import Copy, Rewrite, Verdict

EBREAK = (0x00100073).to_bytes(4, "little")
C_EBREAK = (0x9002).to_bytes(2, "little")
C_NOP = (0x0001).to_bytes(2, "little")
SPIE = 1 << 5
NAMES = {"pc": "sepc"}


class Riscv64Trap(GuestTrap):
    excluded: ClassVar[frozenset[str]] = frozenset(
        {"cpu_exception_handler", "cpu_exception_handler_supervisor",
         "cpu_exception_handler_user", "do_trap_supervisor", "do_trap_user"}
    )
    second_breakpoint: ClassVar[bool] = True

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

    def enter(self, machine: Machine) -> tuple[int, FrameState]:
        state = FrameState(machine, TRAP_FRAME, machine.read_register("a0"), NAMES)
        return state.get("pc"), state

    def leave(self, machine: Machine, state: FrameState, pc: int) -> None:
        state.set("pc", pc)
        machine.write_register("a0", 0)
        machine.pc = machine.read_register("ra")

    def decline(self, machine: Machine, state: FrameState) -> None:
        machine.write_register("a0", 1)
        machine.pc = machine.read_register("ra")

    def mask(self, state: FrameState) -> int:
        saved = state.get("sstatus") & SPIE
        state.set("sstatus", state.get("sstatus") & ~SPIE)
        return saved

    def unmask(self, state: FrameState, saved: int) -> None:
        state.set("sstatus", state.get("sstatus") & ~SPIE | saved)
