"""The kinst provider: probes on instructions of kernel functions.

By pattern, functions without a frame are left out, as upstream's kinst leaves them out always: they
are mostly assembly that DTrace's own path may need.
"""

from emu.elf import Symbol
from kinst.breakpoints import OFFSET, Breakpoints, ProbeError
from kinst.functions import functions, is_glob
from kinst.listing import Instruction
from kinst.verdict import Refuse

PROVIDER = "kinst"
FRAMELESS = "has no frame; upstream leaves such functions alone"


def create(breakpoints: Breakpoints, function: str, name: str, unsafe: bool = False) -> list[int]:
    """Make the probes of ``kinst::function:name``.

    :param name: a decimal offset, or empty for every instruction that can be probed.
    :param unsafe: also in functions that are excluded.
    :return: the numbers of the probes.
    :raises ProbeError: naming what does not fit.
    """
    where = f"{PROVIDER}::{function}:{name}"
    symbols = functions(breakpoints, where, function, unsafe)
    if name and (not name.isdecimal() or len(name) > 12):
        raise ProbeError(f"{where}: '{name[:40]}' is not a decimal byte offset")
    if len(symbols) > 100:
        breakpoints.read_text()
    if is_glob(function) and not unsafe:
        symbols = [s for s in symbols if breakpoints.boundaries(s)[2]]
    made: list[int] = []
    refusal: ProbeError | None = None
    for symbol in symbols:
        if not name:
            made += breakpoints.add_all(symbol)
            continue
        try:
            instruction = _at_offset(where, symbol, breakpoints.instructions(symbol), int(name))
        except ProbeError as error:
            refusal = error
        else:
            made.append(breakpoints.add(symbol, OFFSET, instruction))
    if not made:
        raise refusal or ProbeError(f"{where}: no instruction of it can be probed")
    return made


def _at_offset(
    where: str, symbol: Symbol, table: list[Instruction], offset: int
) -> Instruction:
    for instruction in table:
        if instruction.offset == offset:
            if isinstance(instruction.verdict, Refuse):
                raise ProbeError(
                    f"{where}: the instruction at {symbol.name}+{offset} "
                    f"{instruction.verdict.reason}"
                )
            return instruction
    if offset >= symbol.size:
        last = table[-1].offset if table else 0
        raise ProbeError(
            f"{where}: {symbol.name} ends at offset {symbol.size}; "
            f"its last instruction is at {last}"
        )
    below = max((i.offset for i in table if i.offset < offset), default=0)
    above = min((i.offset for i in table if i.offset > offset), default=symbol.size)
    raise ProbeError(
        f"{where}: offset {offset} is not an instruction boundary of {symbol.name}; "
        f"the nearest are {below} and {above}"
    )
