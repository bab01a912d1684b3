"""The kinst provider: probes on instructions of kernel functions.

A pattern does not select functions without a frame, which FreeBSD's kinst never probes: they are
mostly assembly code that DTrace's own path may need.
"""

import array
from collections.abc import Callable

from dwarf.debug_file import DebugDataError
from dwarf.index import DebugIndex
from emu.elf.symbols import Symbol
from kinst.code.listing import ProbedInstruction
from kinst.probes.kinds import ProbeKind
from kinst.probes.probe_table import ProbeTable
from kinst.probes.probed_code import ProbeError
from kinst.providers import copy_ends, fbt, inline
from kinst.providers.functions import functions
from kinst.providers.patterns import is_glob, matches, regular
from kinst.providers.provider import MadeProbes, Provider, Wanted, inlined_only
from kinst.relocation.verdict import Refuse

PROVIDER = "kinst"
FRAMELESS = "has no frame, and FreeBSD's kinst does not probe such functions"


class Kinst(Provider):
    """Provider of ``kinst::FUNCTION:OFFSET`` and, for inline functions, ``kinst::NAME:entry``.

    The probes are created on demand, only if the description names the provider and a function.
    """

    name = PROVIDER

    def matches(self, pattern: str) -> bool:
        return pattern == self.name

    def create(self, probes: ProbeTable, wanted: Wanted) -> MadeProbes:
        if not wanted.function:
            raise ProbeError(f"{wanted.text}: kinst needs a function, as in kinst::strlen:")
        if wanted.name in copy_ends.NAMES and is_glob(wanted.function) and wanted.index is not None:
            return _ends_by_pattern(probes, wanted, wanted.index)
        if wanted.name not in copy_ends.NAMES or wanted.index is None:
            try:
                numbers = create(probes, wanted.function, wanted.name, wanted.unsafe, wanted.module)
            except ProbeError as error:
                raise ProbeError(f"{error}{inlined_only(probes, wanted)}") from None
            return MadeProbes(numbers, [wanted.text], [])
        try:
            index = wanted.index()
        except DebugDataError as error:
            if not probes.image.symbols.named(wanted.function):
                raise ProbeError(f"{wanted.text}: the kernel has no function "
                                 f"'{wanted.function}', and its inline functions are unknown: "
                                 f"{error}") from None
            return fbt.Fbt().create(probes, wanted)
        return inline.create(probes, index, wanted.function, wanted.name, wanted.unsafe,
                             wanted.module)


def _ends_by_pattern(probes: ProbeTable, wanted: Wanted, index: Callable[[], DebugIndex]
                     ) -> MadeProbes:
    """Create the probes of ``kinst::*name*:entry`` at all matching functions and inline copies."""
    found, refusal = MadeProbes([], [], []), None
    try:
        found = fbt.Fbt().create(probes, wanted)
    except ProbeError as error:
        refusal = error
    accept = regular(wanted.function).match
    try:
        known = index()
        names = [name for name in known.names() if accept(name) and known.copies(name)]
    except DebugDataError:
        names = []
    for name in names:
        made = inline.create(probes, known, name, wanted.name, wanted.unsafe, wanted.module,
                             whole=False)
        found.add(made)
    if not found.numbers and refusal is not None:
        raise ProbeError(f"{wanted.text}: no function or inline copy that matches "
                         f"'{wanted.function}' can be probed") from refusal
    return found


def create(breakpoints: ProbeTable, function: str, name: str, unsafe: bool = False,
           module: str = "") -> "array.array[int]":
    """Create the probes that ``kinst:module:function:name`` describes.

    :param name: a decimal offset, a pattern of offsets, or empty for every instruction that can be
        probed.
    :param unsafe: whether to probe excluded functions, too.
    :param module: name or pattern of the functions' module; empty for all.
    :return: the numbers of the probes.
    :raises ProbeError: when no probe can be created; the message says why.
    """
    where = f"{PROVIDER}:{module}:{function}:{name}"
    symbols = functions(breakpoints, where, function, unsafe, module)
    if not is_glob(name) and not (name.isascii() and name.isdecimal()):
        last = max((i.offset for i in breakpoints.instructions(symbols[0])), default=0)
        raise ProbeError(
            f"{where}: '{name[:40]}' is not a decimal byte offset; {symbols[0].name} has offsets "
            f"from 0 to {last}"
        )
    if len(symbols) > 100:
        breakpoints.read_text()
    if is_glob(function) and not unsafe:
        frames = {s: breakpoints.boundaries(s)[2] for s in symbols}
        symbols = [s for s in symbols if frames[s]]
        breakpoints.left_out |= {s.name: FRAMELESS for s, framed in frames.items() if not framed}
    made = array.array("I")  # there may be millions
    refusal: ProbeError | None = None
    for symbol in symbols:
        if not name.strip("*"):
            made.extend(breakpoints.add_all(symbol))
            continue
        if is_glob(name):
            made.extend([breakpoints.add(symbol, ProbeKind.OFFSET, i)
                     for i in breakpoints.instructions(symbol)
                     if matches(name, str(i.offset)) and not isinstance(i.verdict, Refuse)])
            continue
        try:
            instruction = _at_offset(where, symbol, breakpoints.instructions(symbol),
                                     _number(name))
        except ProbeError as error:
            refusal = error
        else:
            made.append(breakpoints.add(symbol, ProbeKind.OFFSET, instruction))
    if not made:
        raise refusal or ProbeError(f"{where}: no matching instruction can be probed")
    return made


def _number(digits: str) -> int:
    """Convert an offset to a number; replace a huge offset with a number beyond any function."""
    digits = digits.lstrip("0") or "0"
    return int(digits) if len(digits) <= 18 else 1 << 62


def _at_offset(
    where: str, symbol: Symbol, table: list[ProbedInstruction], offset: int
) -> ProbedInstruction:
    good = [i.offset for i in table if not isinstance(i.verdict, Refuse)]
    for instruction in table:
        if instruction.offset == offset:
            if isinstance(instruction.verdict, Refuse):
                raise ProbeError(
                    f"{where}: the instruction at {symbol.name}+{offset} "
                    f"{instruction.verdict.reason}; nearest offsets that can be probed: "
                    f"{_nearest(good, offset)}"
                )
            return instruction
    boundaries = [i.offset for i in table]
    if offset >= symbol.size:
        raise ProbeError(
            f"{where}: {symbol.name} ends at offset {symbol.size}; its last instruction is at "
            f"{boundaries[-1] if boundaries else 0}"
        )
    raise ProbeError(
        f"{where}: offset {offset} is not an instruction boundary of {symbol.name}; "
        f"the nearest are {_nearest(boundaries, offset)}"
    )


def _nearest(offsets: list[int], offset: int) -> str:
    """Format the nearest offsets below and above a given offset for an error message."""
    below = [o for o in offsets if o < offset][-1:]
    above = [o for o in offsets if o > offset][:1]
    return " and ".join(str(o) for o in below + above) or "none"
