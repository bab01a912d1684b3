"""Code of a program or shared object, with or without symbols."""

import bisect
from collections.abc import Iterator
from itertools import pairwise

from dwarf.debug_file import DebugDataError
from dwarf.eh_frames import EhFrames
from emu.elf.program import ProgramFile
from emu.elf.symbols import Symbol
from kinst.code.listing import MAX_FUNCTION


def program_code(file: ProgramFile) -> list[Symbol]:
    """Return the functions of a file, and the rest of its code in pieces.

    A stripped file names only the functions that other files can use.  The rest is divided where
    its call frame information says that a function begins, and named by its section.  Such a piece
    may end with padding, and may contain data.

    :raises ImageError: if the file's sections are truncated or overlap too much.
    """
    functions = list(file.symbols.functions())
    try:
        described = EhFrames(*file.call_frames()).ranges()
    except DebugDataError:
        described = []
    sections = sorted(file.code_sections(), key=lambda one: one[1])
    known = sorted((one.address, one.address + one.size) for one in functions)
    starts = [low for low, _high in described]
    found = functions
    for name, begin, end in sections:
        at = begin
        for low, high in [*known[bisect.bisect_left(known, (begin, 0)) :
                                 bisect.bisect_left(known, (end, 0))], (end, end)]:
            divided = [at, *starts[bisect.bisect_right(starts, at) :
                                   bisect.bisect_left(starts, low)], low] if at < low else []
            for first, last in pairwise(dict.fromkeys(divided)):
                found += _pieces(name, begin, first, last)
            at = max(at, high)
    return found


def _pieces(section: str, begin: int, first: int, last: int) -> Iterator[Symbol]:
    """Yield the code between two addresses of a section in pieces that can be decoded."""
    for at in range(first, last, MAX_FUNCTION):
        yield Symbol(f"{section}+{at - begin:#x}", at, min(last - at, MAX_FUNCTION), 0)
