"""Probes on inline copies: ``kinst::name:entry`` and ``kinst::name:return`` (the kinst paper, V).

A copy is entered at DW_AT_entry_pc, or where the debug data has none at its lowest address in the
function of its first piece. It is left at an instruction from which control goes outside of all its
pieces; the functions that it calls are not outside. So it fires once for each entry and once for
each return, whatever loops and pieces the compiler has made of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from dwarf.index import DebugIndex, Function
from emu.symbols import KERNEL, Symbol, SymbolTable
from kinst import fbt
from kinst.patterns import matches
from kinst.probe_table import CopyEnd, ProbeError, ProbeTable
from kinst.provider import MadeProbes

MAX_PIECES = 4096  # of one copy, as the dispatcher has room for
NAMES = (fbt.ENTRY, fbt.RETURN)


@dataclass(frozen=True)
class InlineEnd:
    """A function to probe and the offset in it, for one end of an inline copy."""

    caller: Symbol
    offset: int

    def __str__(self) -> str:
        module = "" if self.caller.module == KERNEL else self.caller.module_name
        return f"kinst:{module}:{self.caller.name}:{self.offset}"


@dataclass
class _Copy:
    """Copies that are entered at one address, as one: they lie in each other.

    :param ends: by function, whether it is entered there.
    """

    entry: int
    copies: list[Function]
    ranges: list[tuple[int, int]]
    callers: dict[Symbol, bool] = field(default_factory=dict)
    number: int = -1


def begin(copy: Function, symbols: SymbolTable) -> int:
    if copy.begins is not None and any(low <= copy.begins < high for low, high in copy.pieces):
        return copy.begins
    first = symbols.function_at(copy.pieces[0][0])
    return min(low for low, _high in copy.pieces if symbols.function_at(low) == first)


def _merged(copies: list[Function], symbols: SymbolTable) -> Iterator[_Copy]:
    found: dict[int, _Copy] = {}
    for copy in copies:
        entry = begin(copy, symbols)
        known = found.setdefault(entry, _Copy(entry, [], []))
        known.copies.append(copy)
        known.ranges += copy.pieces
    for copy_of_several in found.values():
        copy_of_several.ranges = _united(copy_of_several.ranges)
        yield copy_of_several


def _united(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges without those that lie in others, or overlap."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1]:
            found[-1] = found[-1][0], max(high, found[-1][1])
        else:
            found.append((low, high))
    return found


def create(
    breakpoints: ProbeTable, index: DebugIndex, function: str, name: str, unsafe: bool = False,
    module: str = "", whole: bool = True,
) -> MadeProbes:
    """Make the probes of ``kinst::function:entry`` or ``return``: at every inline copy, and FBT's
    where the function is not inline; both where it is both.

    :param whole: False: of the inline copies alone.
    :raises ProbeError: when there is neither.
    """
    where = f"kinst:{module}:{function}:{name}"
    found = MadeProbes([], [], [])
    by_caller: dict[Symbol, list[_Copy]] = {}
    for copy in _merged(index.copies(function), breakpoints.image.symbols):
        if _place(breakpoints, copy, found, where, unsafe, module):
            copy.number = breakpoints.dispatcher.add_copy(copy.ranges)
            for caller in copy.callers:
                by_caller.setdefault(caller, []).append(copy)
    ends: dict[int, list[tuple[Symbol, CopyEnd | None, list[CopyEnd]]]] = {}
    for caller, inside in by_caller.items():
        made = breakpoints.add_copy_ends(
            caller, [(c.number, c.entry - caller.address if c.callers[caller] else None)
                     for c in inside], name == fbt.ENTRY, name == fbt.RETURN)
        for copy, (entered, left) in zip(inside, made, strict=True):
            ends.setdefault(copy.number, []).append((caller, entered, left))
    for copy in {c.number: c for inside in by_caller.values() for c in inside}.values():
        _take(breakpoints, copy, ends[copy.number], found, where, name)
    found.text[:] = dict.fromkeys(found.text)  # static functions may share a name
    if (whole and any(f.pieces and not f.inlined for f in index.named(function))) or (
            whole and not found.text):
        _add_fbt(breakpoints, found, function, name, unsafe, module)
    return found


def _place(breakpoints: ProbeTable, copy: _Copy, found: MadeProbes, where: str, unsafe: bool,
           module: str) -> bool:
    """Find the functions that a copy has code in; false when it is not to be probed."""
    symbols, exclusions = breakpoints.image.symbols, breakpoints.machine.guest.exclusions
    if len(copy.ranges) > MAX_PIECES:
        found.reports.append(f"{where}: the copy at {copy.entry:#x} is not probed: it has "
                             f"{len(copy.ranges)} pieces of code, and at most {MAX_PIECES} are "
                             "followed")
        return False
    for low, _high in copy.ranges:
        caller = symbols.function_at(low)
        if caller is None:
            found.reports.append(f"{where}: a copy at {low:#x} lies in no function")
            return False
        if not matches(module, caller.module_name):
            return False
        reason = "" if unsafe else exclusions.reason(caller.name)
        if reason:
            found.reports.append(f"{where}: not in {caller.name}, which {reason}")
            return False
        copy.callers.setdefault(caller, False)
    inside = symbols.function_at(copy.entry)
    if inside is not None:
        copy.callers[inside] = True
    return True


def _take(breakpoints: ProbeTable, copy: _Copy,
          ends: list[tuple[Symbol, CopyEnd | None, list[CopyEnd]]], found: MadeProbes, where: str,
          name: str) -> None:
    """Note a copy's probes, and what of it cannot be probed."""
    refused = [(InlineEnd(caller, at), why) for caller, _entered, left in ends
               for at, why in left if isinstance(why, str)]
    numbers = [number for _caller, entered, left in ends
               for _at, number in [*([entered] if entered is not None else []), *left]
               if isinstance(number, int)]
    entered = next(((InlineEnd(caller, end[0]), end[1]) for caller, end, _left in ends
                    if end is not None), None)
    if entered is not None and isinstance(entered[1], str):
        found.reports.append(f"{where}: {entered[0]}: {entered[1]}")
        breakpoints.dispatcher.forget_copy(numbers)  # what is not seen to be entered is not left
        return
    if refused:
        breakpoints.dispatcher.forget_copy(numbers)
        if name == fbt.RETURN:
            place, why = refused[0]
            found.reports.append(f"{where}: {place}: {why}")
            return
    if name == fbt.ENTRY:
        assert entered is not None and isinstance(entered[1], int)
        found.numbers.append(entered[1])
        found.text.append(str(entered[0]))
        found.copies[entered[1]] = copy.copies
        return
    for caller, _entered, left in ends:
        for at, number in left:
            if isinstance(number, int):
                found.numbers.append(number)
                found.text.append(str(InlineEnd(caller, at)))


def _add_fbt(breakpoints: ProbeTable, found: MadeProbes, function: str, name: str, unsafe: bool,
             module: str) -> None:
    """Add the probes of the function where it is not inline.

    :raises ProbeError: when there are no probes at all.
    """
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
