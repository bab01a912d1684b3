"""Where an entry of a CPU's table of exceptions leads."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Gate:
    """A gate of amd64's interrupt descriptor table (Intel SDM volume 3, 6.14.1).

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
