"""Probes on inline copies: ``kinst::name:entry`` and ``kinst::name:return`` (the kinst paper, V).

The entry of a copy is its lowest address in the function that its first piece lies in.  It returns
at the last instruction of each piece: a copy that is split has an early return.  The probes are
those of the function that a piece lies in.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dwarf.index import DebugIndex, Function
from emu.symbols import KERNEL, Symbol, SymbolTable
from kinst import fbt
from kinst.patterns import matches
from kinst.probe_table import ProbeError, ProbeTable
from kinst.provider import MadeProbes

NAMES = (fbt.ENTRY, fbt.RETURN)


@dataclass(frozen=True)
class InlineEnd:
    """A function to probe and the offset in it, for one end of an inline copy."""

    caller: Symbol
    offset: int

    def __str__(self) -> str:
        module = "" if self.caller.module == KERNEL else self.caller.module_name
        return f"kinst:{module}:{self.caller.name}:{self.offset}"


def _ends(
    copy: Function, name: str, symbols: SymbolTable
) -> Iterator[tuple[Symbol | None, int, int]]:
    """(function, low, high) of the pieces that a copy is entered or left in."""
    pieces = [(symbols.function_at(low), low, high) for low, high in copy.pieces]
    if name == fbt.RETURN:
        yield from pieces
    else:
        yield min((p for p in pieces if p[0] == pieces[0][0]), key=lambda p: p[1])


def create(
    breakpoints: ProbeTable, index: DebugIndex, function: str, name: str, unsafe: bool = False,
    module: str = "",
) -> MadeProbes:
    """Make the probes of ``kinst::function:entry`` or ``return``: at every inline copy, and FBT's
    where the function is not inline; both where it is both.

    :raises ProbeError: when there is neither.
    """
    where = f"kinst:{module}:{function}:{name}"
    symbols = breakpoints.image.symbols
    exclusions = breakpoints.machine.guest.exclusions
    found = MadeProbes([], [], [])
    ends: dict[Symbol, list[tuple[Function, int, int]]] = {}
    for copy in index.copies(function):
        for caller, low, high in _ends(copy, name, symbols):
            if caller is None:
                found.reports.append(f"{where}: a copy at {low:#x} lies in no function")
                continue
            if not matches(module, caller.module_name):
                continue
            reason = "" if unsafe else exclusions.reason(caller.name)
            if reason:
                found.reports.append(f"{where}: not in {caller.name}, which {reason}")
                continue
            ends.setdefault(caller, []).append((copy, low - caller.address, high - caller.address))
    seen: set[int] = set()
    for caller, pieces in ends.items():
        made = breakpoints.add_within(caller, [(low, high) for _copy, low, high in pieces],
                                      name == fbt.RETURN)
        for (copy, _low, _high), (offset, number) in zip(pieces, made, strict=True):
            address, place = caller.address + offset, InlineEnd(caller, offset)
            if address in seen:  # two copies share it
                if name == fbt.ENTRY and isinstance(number, int):
                    found.copies[number].append(copy)
                continue
            seen.add(address)
            if isinstance(number, str):
                found.reports.append(f"{where}: {place}: {number}")
                continue
            found.numbers.append(number)
            found.text.append(str(place))
            if name == fbt.ENTRY:
                found.copies[number] = [copy]
    found.text[:] = dict.fromkeys(found.text)  # static functions may share a name
    if any(f.pieces and not f.inlined for f in index.named(function)) or not found.text:
        try:
            found.numbers.extend(fbt.create(breakpoints, function, name, unsafe, module))
            found.text.append(f"fbt:{module}:{function}:{name}")
        except ProbeError as error:
            if not found.text:
                if not found.reports:
                    raise
                more = f" (and {len(found.reports) - 1} more)" if len(found.reports) > 1 else ""
                raise ProbeError(found.reports[0] + more) from None
            found.reports.append(str(error))
    return found
