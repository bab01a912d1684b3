"""The FBT provider: probes at the entry and the returns of functions.

An entry probe is at the prologue instruction that FreeBSD's FBT uses (the arguments are still in
their registers there), or at the first instruction of a function without a prologue.  A return
probe is at a return instruction, or at a jump out of the function (a tail call).  At a conditional
or indirect jump, the probe fires only when the jump leaves the function.  ``entry``, ``returns``
and ``leaving`` define this in Python; the native ``Dispatcher.add_boundaries`` makes the probes,
and tests compare the two.
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
    """Provider of ``fbt::FUNCTION:entry`` and ``fbt::FUNCTION:return``."""

    name = PROVIDER

    def create(self, probes: ProbeTable, wanted: Wanted) -> MadeProbes:
        try:
            numbers = create(probes, wanted.function, wanted.name, wanted.unsafe, wanted.module)
        except ProbeError as error:
            raise ProbeError(f"{error}{inlined_only(probes, wanted)}") from None
        return MadeProbes(numbers, [wanted.text], [])


def create(breakpoints: ProbeTable, function: str, name: str, unsafe: bool = False,
           module: str = "") -> list[int]:
    """Create the probes that ``fbt:module:function:name`` describes.

    :param name: ``entry``, ``return``, a pattern, or empty for both.
    :param unsafe: whether to probe excluded functions, too.
    :param module: name or pattern of the functions' module; empty for all.
    :return: the numbers of the probes.
    :raises ProbeError: when no probe can be created; the message says why.
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
        raise ProbeError(f"{where}: no matching function has an instruction that can carry this "
                         "probe")
    return made


def _lacks(breakpoints: ProbeTable, made: list[int], wanted: list[str]) -> str:
    """Explain why requested probes were not created; return an empty string if all were created."""
    names = {breakpoints.names(number)[3] for number in made}
    return " and ".join(why for name, why in (
        (ENTRY, "has no entry probe: it begins with an unprobeable instruction or a loop"),
        (RETURN, "has no return probe: it contains neither a return nor a tail call"))
        if name in wanted and name not in names)


def _targets(table: list[ProbedInstruction]) -> set[int]:
    return {i.verdict.target for i in table if isinstance(i.verdict, Jump | ConditionalJump)}


def entry(trap: GuestTrap, function: Symbol,
          table: list[ProbedInstruction]) -> ProbedInstruction | None:
    """Return the instruction at which an entry probe fires once per call, or None."""
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
    """Return the instructions that always leave a function: returns and tail calls."""
    end = function.address + function.size
    exits = []
    before = None
    for i in table:
        target = trap.instructions.jump_target(before, i.verdict)
        leaves = target is not None and not function.address <= target < end
        if (trap.instructions.is_return(i.code) or leaves) and not isinstance(i.verdict, Refuse):
            exits.append(i)
        before = i.verdict
    return exits


def leaving(trap: GuestTrap, function: Symbol,
            table: list[ProbedInstruction]) -> list[ProbedInstruction]:
    """Return the instructions that may leave a function: conditional and indirect jumps."""
    end = function.address + function.size
    exits = []
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
            exits.append(i)
        before = verdict
    return exits
