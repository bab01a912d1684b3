"""A function's code as text, with the program's lines beside it: ``kdtrace -S``."""

from collections.abc import Iterator, Sequence

from dtrace.bpf.assembler import Assembler
from dtrace.bpf.encoding import disassemble
from dtrace.bpf.layout import Helper
from dtrace.d.language.identifiers import SUBROUTINES

NAMES = {function.number: name for name, function in SUBROUTINES.items()} | {
    int(helper): helper.name.lower() for helper in Helper}


def listing(title: str, function: Assembler, source: Sequence[str]) -> Iterator[str]:
    """The lines of a listing.

    :param source: of the program; what no line is known of has none.
    """
    yield f"{title}:"
    at, line = 0, 0
    for i, place in zip(function.finish(), function.lines, strict=True):
        if place != line and 0 < place <= len(source):
            line = place
            yield f"; {place}: {source[place - 1].strip()}"
        yield f"{at:5d}: {i.encode()[:8].hex()}  {disassemble(i, at, NAMES)}"
        at += 1 if i.wide is None else 2
