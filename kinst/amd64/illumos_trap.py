"""amd64, the illumos way: INT3 comes on a stack of its own, ``dtrace_invop`` is told the address
and the stack, and answers which instruction was there.  The kernel's own code does what that does.

So it can be one of four, which is what FBT needs: no trampoline is there for any other.
"""

from collections.abc import Mapping
from typing import ClassVar

from emu.amd64 import registers
from emu.machine.machine import Machine
from kinst.amd64.instructions import PUSH_RBP, Amd64Instructions
from kinst.amd64.trap import INT3, Amd64Trap
from kinst.relocation.trap import (
    Breakpoint,
    CpuState,
    FrameRegisters,
    FrameState,
    KernelEffect,
)
from kinst.relocation.verdict import Nothing, Refuse, Verdict

# The answers are illumos's (sys/dtrace.h); ``images/teaching/amd64-illumos/regs.h`` has them.
EFFECTS = {
    PUSH_RBP: KernelEffect(1, "rsp", -8, stores="rbp"),
    b"\xc9": KernelEffect(3, "rbp", 8, loads="rbp"),  # LEAVE
    b"\x90": KernelEffect(4, "rsp", 0),
    b"\xc3": KernelEffect(5, "rsp", 8, returns=True)}
RETURN_POINTER = 8  # bytes: what dtrace_invop's stack has before struct regs


class IllumosInstructions(Amd64Instructions):
    def classify(self, code: bytes, address: int) -> tuple[int, Verdict]:
        length, verdict = super().classify(code, address)
        if not length or isinstance(verdict, Refuse):
            return length, verdict
        effect = EFFECTS.get(code[:length])
        if effect is None:
            return length, Refuse("is not one that this kernel's vectors do themselves "
                                  "(push %rbp, leave, nop, ret)")
        # What else they do is not the host's: there the run goes on behind it.
        return length, verdict if effect.returns else Nothing(address + length)


class IllumosTrap(Amd64Trap):
    instructions = IllumosInstructions()
    called: ClassVar[bool] = True
    kernel_effects: ClassVar[Mapping[bytes, KernelEffect]] = EFFECTS
    seam_code: ClassVar[bytes] = b"\xc3"  # ret
    frame: ClassVar[FrameRegisters] = FrameRegisters("rsi", RETURN_POINTER)
    guest_breakpoint: ClassVar[Breakpoint] = Breakpoint(INT3, 3, bias=len(INT3))
    saved: ClassVar[Mapping[str, str]] = {**Amd64Trap.saved,
        "rip": "the address behind INT3; brktrap has counted it down, as if INT3 were a fault"}

    def at_seam(self, machine: Machine) -> int:
        return machine.guest.traps.trap_frame.read(machine, self._frame(machine), "rip")

    def _frame(self, machine: Machine) -> int:
        return machine.read_register(self.frame.register) + self.frame.bias

    def enter(self, machine: Machine) -> CpuState:
        frame = self._frame(machine)
        return FrameState(machine, self.at_seam(machine), machine.guest.traps.trap_frame, frame,
                          self.frame)

    def leave(self, machine: Machine, state: CpuState, pc: int) -> None:
        """Not by the kernel's vectors: the registers are the interrupted ones."""
        for name in registers.NAMES:
            if name != "rip":
                machine.write_register(name, state.get(name))
        machine.pc = pc

    def tell(self, machine: Machine, answer: int) -> None:
        machine.write_register("rax", answer)
        machine.pc = machine.read_u64(machine.sp)
        machine.write_register("rsp", machine.sp + 8)

    def decline(self, machine: Machine) -> None:
        self.tell(machine, 0)


TRAP = IllumosTrap()
