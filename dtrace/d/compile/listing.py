"""Listing of a function's BPF code with the program's source lines: ``kdtrace -S``."""

from collections.abc import Iterator, Sequence

from dtrace.bpf.assembler import Assembler
from dtrace.bpf.encoding import disassemble
from dtrace.bpf.layout import Helper
from dtrace.d.language.identifiers import SUBROUTINES

NAMES = {function.number: name for name, function in SUBROUTINES.items()} | {
    int(helper): helper.name.lower() for helper in Helper}


def listing(title: str, function: Assembler, source: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a function's listing.

    :param source: the program's lines; an instruction whose line is unknown shows none.
    """
    yield f"{title}:"
    at, line = 0, 0
    for i, place in zip(function.finish(), function.lines, strict=True):
        if place != line and 0 < place <= len(source):
            line = place
            yield f"; {place}: {source[place - 1].strip()}"
        yield f"{at:5d}: {i.encode()[:8].hex()}  {disassemble(i, at, NAMES)}"
        at += 1 if i.wide is None else 2
