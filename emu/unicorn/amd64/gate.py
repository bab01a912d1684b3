"""Gates of the amd64 interrupt descriptor table, and their description in words."""

from dataclasses import dataclass

INTERRUPT_GATE, TRAP_GATE = 14, 15


@dataclass(frozen=True)
class Gate:
    """A gate of the interrupt descriptor table (Intel SDM volume 3, 6.14.1).

    :param at: address of the gate.
    :param target: address of the handler.
    :param kind: 14 for an interrupt gate, which clears IF; 15 for a trap gate.
    :param privilege: the least privileged level that may use the gate with INT n.
    :param stack: index of the interrupt stack to which the CPU switches (IST); 0: no switch.
    :param task: address of the task state segment that holds the interrupt stacks; 0: not used.
    :param top: top of the interrupt stack; 0: not used.
    """

    vector: int
    at: int
    target: int
    selector: int
    kind: int
    privilege: int
    stack: int
    task: int = 0
    top: int = 0

    @classmethod
    def parse(cls, vector: int, at: int, low: int, high: int) -> "Gate":
        """Parse the two 64-bit words of a gate descriptor."""
        return cls(vector, at, low & 0xFFFF | low >> 48 << 16 | (high & 0xFFFFFFFF) << 32,
                   low >> 16 & 0xFFFF, low >> 40 & 0xF, low >> 45 & 3, low >> 32 & 7)

    def described(self, left: int, reached: int) -> str:
        """Return sentences that describe how the CPU enters the handler.

        :param left: stack pointer before the exception.
        :param reached: stack pointer at the vector.
        """
        kind = {INTERRUPT_GATE: "an interrupt gate (type 14): the CPU clears IF on entry",
                TRAP_GATE: "a trap gate (type 15): IF does not change"}.get(
                    self.kind, f"of type {self.kind}")
        may = "may" if self.privilege == 3 else "may not"
        text = (f"The exception has vector {self.vector}. Its gate in the interrupt descriptor "
                f"table, at {self.at:#x}, points to {self.target:#x}. It is {kind}. Its privilege "
                f"level is {self.privilege}: programs {may} use it with an instruction like "
                f"INT3. Its interrupt stack table (IST) index is {self.stack}")
        if not self.stack:
            return text + (f", so the CPU stays on the current stack. It aligns the stack pointer "
                           f"{left:#x} down to 16 bytes and pushes the trap frame below it, "
                           f"down to {reached:#x}.")
        return text + (f": the CPU leaves the thread's stack, at {left:#x}, and switches to the "
                       f"interrupt stack. The task state segment at {self.task:#x} holds its top, "
                       f"{self.top:#x}. The CPU pushes the trap frame below it, down to "
                       f"{reached:#x}.")
