"""The kinst provider: probes on instructions of kernel functions."""

from emu.elf import Symbol
from kinst.breakpoints import Breakpoints, Probe, ProbeError
from kinst.functions import functions
from kinst.listing import Instruction
from kinst.verdict import Refuse

PROVIDER = "kinst"


def create(breakpoints: Breakpoints, function: str, name: str) -> list[Probe]:
    """Make the probes of ``kinst::function:name``.

    :param name: a decimal offset, or empty for every instruction that can be probed.
    :raises ProbeError: naming what does not fit.
    """
    where = f"{PROVIDER}::{function}:{name}"
    symbols = functions(breakpoints, where, function)
    if name and (not name.isdecimal() or len(name) > 12):
        raise ProbeError(f"{where}: '{name[:40]}' is not a decimal byte offset")
    chosen = []
    for symbol in symbols:
        table = breakpoints.instructions(symbol)
        if name:
            chosen.append(_at_offset(where, symbol, table, int(name)))
        else:
            chosen += [i for i in table if not isinstance(i.verdict, Refuse)]
    if not chosen:
        raise ProbeError(f"{where}: no instruction of it can be probed")
    return [breakpoints.add(PROVIDER, function, str(i.offset), i) for i in chosen]


def _at_offset(
    where: str, symbol: Symbol, table: list[Instruction], offset: int
) -> Instruction:
    for instruction in table:
        if instruction.offset == offset:
            if isinstance(instruction.verdict, Refuse):
                raise ProbeError(f"{where}: the instruction {instruction.verdict.reason}")
            return instruction
    if offset >= symbol.size:
        raise ProbeError(f"{where}: {symbol.name} ends at offset {symbol.size}")
    below = max((i.offset for i in table if i.offset < offset), default=0)
    above = min((i.offset for i in table if i.offset > offset), default=symbol.size)
    raise ProbeError(
        f"{where}: offset {offset} is not an instruction boundary of {symbol.name}; "
        f"the nearest are {below} and {above}"
    )
