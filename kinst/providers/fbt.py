"""The FBT provider: probes where functions begin and return.

An entry is the instruction of the prologue that upstream's FBT takes (the arguments are still in
their registers there), or the first one of a function without a prologue.  A return is a return
instruction, or a jump out of the function: a tail call.  Where a condition or an address decides
whether a jump leads out, the probe fires when it does.  ``entry``, ``returns`` and ``leaving`` say
so in Python; probes are made by the native ``Dispatcher.add_boundaries``, which the tests hold to
them.
"""


from emu.elf.symbols import Symbol
from kinst.code.listing import ProbedInstruction
from kinst.probes.probe_table import ProbeTable
from kinst.probes.probed_code import ProbeError
from kinst.providers.functions import functions
from kinst.providers.patterns import matches
from kinst.providers.provider import MadeProbes, Provider, Wanted, inlined_only
from kinst.relocation.trap import GuestTrap
from kinst.relocation.verdict import ConditionalJump, Jump, Op, Refuse

PROVIDER = "fbt"
ENTRY, RETURN = "entry", "return"


class Fbt(Provider):
    """``fbt::FUNCTION:entry`` and ``fbt::FUNCTION:return``."""

    name = PROVIDER

    def create(self, probes: ProbeTable, wanted: Wanted) -> MadeProbes:
        try:
            numbers = create(probes, wanted.function, wanted.name, wanted.unsafe, wanted.module)
        except ProbeError as error:
            raise ProbeError(f"{error}{inlined_only(probes, wanted)}") from None
        return MadeProbes(numbers, [wanted.text], [])


def create(breakpoints: ProbeTable, function: str, name: str, unsafe: bool = False,
           module: str = "") -> list[int]:
    """Make the probes of ``fbt:module:function:name``.

    :param name: ``entry``, ``return``, a pattern, or empty for both.
    :param unsafe: also in functions that are excluded.
    :param module: whose functions; a pattern, or empty for all.
    :return: the numbers of the probes.
    :raises ProbeError: naming what does not fit.
    """
    where = f"{PROVIDER}:{module}:{function}:{name}"
    wanted = [n for n in (ENTRY, RETURN) if matches(name, n)]
    if not wanted:
        raise ProbeError(f"{where}: FBT probes are named entry and return, not '{name[:40]}'")
    symbols = functions(breakpoints, where, function, unsafe, module)
    if len(symbols) > 100:
        breakpoints.read_text()
    made: list[int] = []
    for symbol in symbols:
        found = breakpoints.add_boundaries(symbol, ENTRY in wanted, RETURN in wanted)
        made += found
        lacks = _lacks(breakpoints, found, wanted)
        if lacks:
            breakpoints.left_out.setdefault(symbol.name, lacks)
    if not made:
        raise ProbeError(f"{where}: it has no place for such a probe")
    return made


def _lacks(breakpoints: ProbeTable, made: list[int], wanted: list[str]) -> str:
    """Which of the probes that were wanted of a function is not among those made, and why."""
    names = {breakpoints.names(number)[3] for number in made}
    return " and ".join(why for name, why in (
        (ENTRY, "has no entry: it begins with what cannot be probed, or with a loop"),
        (RETURN, "never returns: neither an instruction nor a jump leads out of it"))
        if name in wanted and name not in names)


def _targets(table: list[ProbedInstruction]) -> set[int]:
    return {i.verdict.target for i in table if isinstance(i.verdict, Jump | ConditionalJump)}


def entry(trap: GuestTrap, function: Symbol,
          table: list[ProbedInstruction]) -> ProbedInstruction | None:
    """Where a function is entered, once a call; None when no instruction is."""
    targets = _targets(table)
    for i in table:
        if i.address in targets or isinstance(i.verdict, Refuse):
            break
        if trap.instructions.is_prologue(i.code):
            return i
        if getattr(i.verdict, "ends_block", False):
            break
    first = table[0] if table else None
    if first is None or first.address in targets or isinstance(first.verdict, Refuse):
        return None
    return first


def returns(trap: GuestTrap, function: Symbol,
            table: list[ProbedInstruction]) -> list[ProbedInstruction]:
    """Where a function is left for good: returns, and jumps to other functions."""
    end = function.address + function.size
    found = []
    before = None
    for i in table:
        target = trap.instructions.jump_target(before, i.verdict)
        leaves = target is not None and not function.address <= target < end
        if (trap.instructions.is_return(i.code) or leaves) and not isinstance(i.verdict, Refuse):
            found.append(i)
        before = i.verdict
    return found


def leaving(trap: GuestTrap, function: Symbol,
            table: list[ProbedInstruction]) -> list[ProbedInstruction]:
    """Where a function may be left: conditional jumps to others, and jumps to addresses that are
    not known."""
    end = function.address + function.size
    found = []
    before = None
    for i in table:
        verdict = i.verdict
        if isinstance(verdict, ConditionalJump):
            leaves = (verdict.lower(trap.status.flag_bits).op is not Op.BRANCH_COUNT
                      and not function.address <= verdict.target < end)
        else:
            leaves = (trap.instructions.links(verdict) is False
                      and not trap.instructions.is_return(i.code)
                      and trap.instructions.jump_target(before, verdict) is None)
        if leaves and not isinstance(verdict, Refuse):
            found.append(i)
        before = verdict
    return found
