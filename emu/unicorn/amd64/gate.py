"""Where an entry of amd64's interrupt descriptor table leads, and how that is told."""

from dataclasses import dataclass

INTERRUPT_GATE, TRAP_GATE = 14, 15


@dataclass(frozen=True)
class Gate:
    """A gate of the table (Intel SDM volume 3, 6.14.1).

    :param at: its address, and ``target`` where it leads.
    :param kind: 14 for an interrupt gate, which clears IF; 15 for a trap gate.
    :param privilege: the least privileged level from which INT n may go through it.
    :param stack: the number of the interrupt stack that the CPU goes to (IST); 0: none.
    :param top: of that stack, as the task state segment at ``task`` has it; 0: none.
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
        """Of the descriptor's two words of 64 bits."""
        return cls(vector, at, low & 0xFFFF | low >> 48 << 16 | (high & 0xFFFFFFFF) << 32,
                   low >> 16 & 0xFFFF, low >> 40 & 0xF, low >> 45 & 3, low >> 32 & 7)

    def described(self, left: int, reached: int) -> str:
        """How the CPU goes through it.

        :param left: the stack pointer before, and ``reached`` at the vector.
        """
        kind = {INTERRUPT_GATE: "an interrupt gate (type 14): the CPU clears IF on the way",
                TRAP_GATE: "a trap gate (type 15): IF stays as it is"}.get(
                    self.kind, f"of type {self.kind}")
        may = "may" if self.privilege == 3 else "may not"
        text = (f"The exception has vector {self.vector}. Its gate in the interrupt descriptor "
                f"table, at {self.at:#x}, leads to {self.target:#x}. It is {kind}. Its privilege "
                f"level is {self.privilege}: programs {may} go through it with an instruction like "
                f"this one. Its interrupt stack (IST) is number {self.stack}")
        if not self.stack:
            return text + (f", which is none: the CPU stays on the stack that it finds. It aligns "
                           f"the stack pointer {left:#x} to 16 bytes and saves its words below, "
                           f"down to {reached:#x}.")
        return text + (f": the CPU leaves the stack of the thread, at {left:#x}, and goes to the "
                       f"stack whose top, {self.top:#x}, the task state segment at {self.task:#x} "
                       f"has for that number. It saves its words below, down to {reached:#x}.")
