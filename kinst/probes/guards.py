"""Tracepoints that a kernel executes only where it knows that static probes are enabled.

A *guard* is the branch that tests the kernel's variable for that.  Between it and the tracepoint is
code that only makes arguments, or finds that the probe does not fire; it must be a few instructions
that lead to the tracepoint or to the *join*, the guard's other way, and nowhere else.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kinst.code.listing import ProbedInstruction
from kinst.relocation.trap import GuestTrap
from kinst.relocation.verdict import ConditionalJump, Jump

WITHIN = 8  # instructions from where the variable is read to the branch
MOST = 64  # instructions between a guard and its tracepoint


@dataclass(frozen=True)
class Guard:
    """:param target: where the branch leads when probes are enabled; ``otherwise`` else."""

    branch: ProbedInstruction
    target: int
    otherwise: ProbedInstruction


def guard(trap: GuestTrap, table: list[ProbedInstruction], variable: int, tracepoint: int,
          word: Callable[[int], int]) -> Guard | None:
    """That of a tracepoint, or None: the kernel executes it always.

    :param table: the instructions of its function.
    :param word: reads one of the kernel's memory, where addresses are kept; 0: it cannot.
    """
    by_address = {i.address: n for n, i in enumerate(table)}
    known: dict[str, int] = {}
    for n, i in enumerate(table):
        made = trap.instructions.makes(i.code, i.verdict)
        if made is not None:
            known[made[0]] = made[1]
            continue
        read = trap.instructions.read_by(i.code, i.address, known)
        if read is None:
            continue
        register, address, size = read
        if size == 8:
            known[register] = word(address)
        if address != variable:
            continue
        branch = next((b for b in table[n + 1 : n + 1 + WITHIN]
                       if getattr(b.verdict, "ends_block", False)), None)
        if branch is None or not isinstance(branch.verdict, ConditionalJump):
            continue
        ways = (branch.verdict.target, branch.address + len(branch.code))
        for target, otherwise in (ways, ways[::-1]):
            found = _leads(table, by_address, target, {tracepoint, otherwise})
            if tracepoint in found and found <= {tracepoint, otherwise} & by_address.keys():
                return Guard(branch, target, table[by_address[otherwise]])
    return None


def _leads(table: list[ProbedInstruction], by_address: dict[int, int], start: int,
           ends: set[int]) -> set[int]:
    """Which of some places code comes to, and what else it ends with: a call, a return."""
    waiting, seen, found = [start], set[int](), set[int]()
    while waiting:
        address = waiting.pop()
        if address in ends or address not in by_address or len(seen) > MOST:
            found.add(address)
            continue
        if address in seen:
            continue
        seen.add(address)
        i = table[by_address[address]]
        behind = address + len(i.code)
        if isinstance(i.verdict, Jump):
            waiting.append(i.verdict.target)
        elif isinstance(i.verdict, ConditionalJump):
            waiting += [i.verdict.target, behind]
        elif getattr(i.verdict, "ends_block", False):
            found.add(address)
        else:
            waiting.append(behind)
    return found
