"""Guards: branches with which a kernel skips a tracepoint while no static probe is enabled.

A *guard* tests the kernel variable that says whether static probes are enabled.  The code between
the guard and the tracepoint only computes arguments, or finds that the probe does not fire.  It
must consist of few instructions and lead only to the tracepoint or to the *join*, where the guard's
other direction leads.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kinst.code.listing import ProbedInstruction
from kinst.relocation.trap import GuestTrap
from kinst.relocation.verdict import ConditionalJump, Jump

WITHIN = 8  # maximum number of instructions from a guard's load of its variable to its branch
MOST = 64  # maximum number of instructions between a guard and its tracepoint


@dataclass(frozen=True)
class Guard:
    """A branch that tests whether static probes are enabled.

    :param target: where the branch leads while they are enabled.
    :param otherwise: the instruction to which it leads while they are disabled.
    """

    branch: ProbedInstruction
    target: int
    otherwise: ProbedInstruction


def guard(trap: GuestTrap, table: list[ProbedInstruction], variable: int, tracepoint: int,
          word: Callable[[int], int]) -> Guard | None:
    """Return the guard of a tracepoint, or None if the kernel always executes the tracepoint.

    :param table: the instructions of the tracepoint's function.
    :param variable: address of the kernel variable that guards test.
    :param word: reads a word of kernel memory, which may hold an address; returns 0 on failure.
    """
    by_address = {i.address: n for n, i in enumerate(table)}
    for branch, verdict in tests(trap, table, variable, word):
        directions = (verdict.target, branch.address + len(branch.code))
        for target, otherwise in (directions, directions[::-1]):
            reached = _leads(table, by_address, target, {tracepoint, otherwise})
            if tracepoint in reached and reached <= {tracepoint, otherwise} & by_address.keys():
                return Guard(branch, target, table[by_address[otherwise]])
    return None


def tests(trap: GuestTrap, table: list[ProbedInstruction], variable: int,
          word: Callable[[int], int]) -> Iterator[tuple[ProbedInstruction, ConditionalJump]]:
    """Yield the branches of a function that test a kernel variable, with their verdicts.

    :param table: the instructions of the function.
    :param variable: address of the variable.
    :param word: reads a word of kernel memory, which may hold an address; returns 0 on failure.
    """
    known: dict[str, int] = {}
    for n, i in enumerate(table):
        loaded = trap.instructions.makes(i.code, i.verdict)
        if loaded is not None:
            known[loaded[0]] = loaded[1]
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
        if branch is not None and isinstance(branch.verdict, ConditionalJump):
            yield branch, branch.verdict


def _leads(table: list[ProbedInstruction], by_address: dict[int, int], start: int,
           ends: set[int]) -> set[int]:
    """Return the addresses at which paths from ``start`` reach ``ends``, a call, or another end."""
    waiting, seen, reached = [start], set[int](), set[int]()
    while waiting:
        address = waiting.pop()
        if address in ends or address not in by_address or len(seen) > MOST:
            reached.add(address)
            continue
        if address in seen:
            continue
        seen.add(address)
        i = table[by_address[address]]
        following = address + len(i.code)
        if isinstance(i.verdict, Jump):
            waiting.append(i.verdict.target)
        elif isinstance(i.verdict, ConditionalJump):
            waiting += [i.verdict.target, following]
        elif getattr(i.verdict, "ends_block", False):
            reached.add(address)
        else:
            waiting.append(following)
    return reached
