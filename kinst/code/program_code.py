"""Code of a program or shared object, with or without symbols."""

import bisect
from collections.abc import Iterable, Iterator

from dwarf.debug_file import DebugDataError
from dwarf.eh_frames import EhFrames
from emu.elf.program import ProgramFile
from emu.elf.symbols import Symbol
from kinst.code.listing import MAX_FUNCTION


def program_code(file: ProgramFile) -> list[Symbol]:
    """Return the functions of a file, and the rest of its code in pieces.

    A stripped file names only the functions that other files can use.  The others begin and end
    where its call frame information says; the rest is divided at the starts of these functions and
    named by its section.  Such a piece may begin with padding, and may contain data.

    :raises ImageError: if the call frame information is truncated.
    """
    functions = list(file.symbols.functions())
    try:
        described = EhFrames(*file.call_frames()).ranges()
    except DebugDataError:
        described = []
    sections = file.code_sections()
    found = functions + [
        Symbol(_name(sections, low), low, high - low, 0)
        for low, high in _outside(described, functions)
        if any(begin <= low and high <= end for _section, begin, end in sections)]
    known = sorted((one.address, one.address + one.size) for one in found)
    for name, begin, end in sections:
        at = begin
        for low, high in [*(one for one in known if begin <= one[0] < end), (end, end)]:
            while at < low:
                size = min(low - at, MAX_FUNCTION)
                found.append(Symbol(f"{name}+{at - begin:#x}", at, size, 0))
                at += size
            at = max(at, high)
    return found


def _outside(ranges: Iterable[tuple[int, int]], functions: Iterable[Symbol]
             ) -> Iterator[tuple[int, int]]:
    """Yield the ranges that begin in no function, up to the next function."""
    known = sorted((one.address, one.address + one.size) for one in functions)
    ends, highest = [], 0
    for _low, high in known:
        highest = max(highest, high)
        ends.append(highest)
    starts = [low for low, _high in known]
    for low, high in ranges:
        at = bisect.bisect_right(starts, low)
        if (at == 0 or ends[at - 1] <= low) and low < high:
            yield low, min(high, *starts[at : at + 1], high)


def _name(sections: Iterable[tuple[str, int, int]], address: int) -> str:
    return next((f"{name}+{address - begin:#x}" for name, begin, end in sections
                 if begin <= address < end), f"{address:#x}")
