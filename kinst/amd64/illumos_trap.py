"""Host side of illumos's trap path on amd64: the kernel itself emulates displaced instructions.

INT3 switches to a stack of its own.  ``dtrace_invop`` receives the address and the stack, and its
result tells the vectors which of four instructions to emulate.  FBT needs no others.  There are no
trampolines, so other instructions cannot be probed.
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

# Results of illumos's dtrace_invop (sys/dtrace.h), as in ``images/teaching/amd64-illumos/regs.h``
EFFECTS = {
    PUSH_RBP: KernelEffect(1, "rsp", -8, stores="rbp"),
    b"\xc9": KernelEffect(3, "rbp", 8, loads="rbp"),  # LEAVE
    b"\x90": KernelEffect(4, "rsp", 0),
    b"\xc3": KernelEffect(5, "rsp", 8, returns=True)}
# dtrace_invop's ``stack`` points to a return address of this many bytes, followed by struct regs
RETURN_POINTER = 8


class IllumosInstructions(Amd64Instructions):
    """amd64 instructions, with a refusal for each one that illumos's vectors cannot emulate."""

    def classify(self, code: bytes, address: int) -> tuple[int, Verdict]:
        length, verdict = super().classify(code, address)
        if not length or isinstance(verdict, Refuse):
            return length, verdict
        effect = EFFECTS.get(code[:length])
        if effect is None:
            return length, Refuse("cannot be emulated by this kernel's vectors, which know only "
                                  "push %rbp, leave, nop and ret")
        # kinst-emu only moves the pc past the instruction; the kernel emulates the other effects.
        return length, verdict if effect.returns else Nothing(address + length)


class IllumosTrap(Amd64Trap):
    """Host side of the illumos trap path on amd64."""

    instructions = IllumosInstructions()
    called: ClassVar[bool] = True
    kernel_effects: ClassVar[Mapping[bytes, KernelEffect]] = EFFECTS
    seam_code: ClassVar[bytes] = b"\xc3"  # ret
    frame: ClassVar[FrameRegisters] = FrameRegisters("rsi", RETURN_POINTER)
    guest_breakpoint: ClassVar[Breakpoint] = Breakpoint(INT3, 3, bias=len(INT3))
    saved: ClassVar[Mapping[str, str]] = {**Amd64Trap.saved,
        "rip": "the address after INT3; brktrap has decremented it, as if INT3 were a fault"}

    def at_seam(self, machine: Machine) -> int:
        return machine.guest.traps.trap_frame.read(machine, self._frame(machine), "rip")

    def _frame(self, machine: Machine) -> int:
        return machine.read_register(self.frame.register) + self.frame.bias

    def enter(self, machine: Machine) -> CpuState:
        frame = self._frame(machine)
        return FrameState(machine, self.at_seam(machine), machine.guest.traps.trap_frame, frame,
                          self.frame)

    def leave(self, machine: Machine, state: CpuState, pc: int) -> None:
        """Continue at ``pc`` with the interrupted registers, bypassing the kernel's vectors."""
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
