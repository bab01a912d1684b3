"""The FBT provider: probes where functions begin and return.

An entry is the instruction of the prologue that upstream's FBT takes (the arguments are still in
their registers there), or the first one of a function without a prologue.  A return is a return
instruction, or a jump out of the function: a tail call.
"""

from emu.elf import Symbol
from kinst.breakpoints import Breakpoints, Probe, ProbeError
from kinst.functions import functions
from kinst.listing import Instruction
from kinst.trap import GuestTrap
from kinst.verdict import ConditionalJump, Jump, Refuse

PROVIDER = "fbt"
ENTRY, RETURN = "entry", "return"


def create(breakpoints: Breakpoints, function: str, name: str) -> list[Probe]:
    """Make the probes of ``fbt::function:name``.

    :param name: ``entry``, ``return``, or empty for both.
    :raises ProbeError: naming what does not fit.
    """
    where = f"{PROVIDER}::{function}:{name}"
    if name not in ("", ENTRY, RETURN):
        raise ProbeError(f"{where}: FBT probes are named entry and return, not '{name[:40]}'")
    probes = []
    for symbol in functions(breakpoints, where, function):
        table = breakpoints.instructions(symbol)
        if name != RETURN:
            first = entry(breakpoints.trap, symbol, table)
            if first is not None:
                probes.append(breakpoints.add(PROVIDER, function, ENTRY, first))
        if name != ENTRY:
            probes += [
                breakpoints.add(PROVIDER, function, RETURN, i)
                for i in returns(breakpoints.trap, symbol, table)
            ]
    if not probes:
        raise ProbeError(f"{where}: it has no place for such a probe")
    return probes


def _targets(table: list[Instruction]) -> set[int]:
    return {i.verdict.target for i in table if isinstance(i.verdict, Jump | ConditionalJump)}


def entry(trap: GuestTrap, function: Symbol, table: list[Instruction]) -> Instruction | None:
    """Where a function is entered, once a call; None when no instruction is."""
    targets = _targets(table)
    for i in table:
        if i.address in targets or isinstance(i.verdict, Refuse):
            break
        if trap.is_prologue(i.code):
            return i
        if getattr(i.verdict, "ends_block", False) and not trap.is_landing(i.code):
            break
    first = table[0] if table else None
    if first is None or first.address in targets or isinstance(first.verdict, Refuse):
        return None
    return first


def returns(trap: GuestTrap, function: Symbol, table: list[Instruction]) -> list[Instruction]:
    """Where a function is left for good: returns, and jumps to other functions."""
    end = function.address + function.size
    found = []
    before = None
    for i in table:
        target = trap.jump_target(before, i.verdict)
        leaves = target is not None and not function.address <= target < end
        if trap.is_return(i.code) or leaves:
            found.append(i)
        before = i.verdict
    return found
