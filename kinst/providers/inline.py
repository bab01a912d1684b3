"""Probes on inline copies: ``kinst::name:entry`` and ``:return`` (the kinst paper, section V).

A copy is entered at its DW_AT_entry_pc.  If the debug data has none, the copy is entered at each of
its instructions, in the function of its first piece, that control can reach before any other
instruction of the copy: usually the one at the lowest address, but there may be padding or several
entries.  A copy is left at an instruction from which control goes outside of all its pieces;
functions that it calls are not outside.  So the probes fire once for each entry and once for each
return, whatever loops and pieces the compiler has made of the copy.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from dwarf.index import DebugIndex, Function
from emu.arch.architectures import arch_of
from emu.elf.image import Image
from emu.elf.symbols import KERNEL, Symbol, SymbolTable
from emu.guests.registry import guest_of
from emu.host.errors import ImageError
from kinst.code.cold_parts import is_cold
from kinst.code.listing import image_code
from kinst.probes.dispatcher import new_dispatcher
from kinst.probes.kinds import ProbeKind
from kinst.probes.probe_table import CopyEnd, ProbeTable
from kinst.probes.probed_code import ProbeError
from kinst.providers import fbt
from kinst.providers.patterns import matches
from kinst.providers.provider import MadeProbes
from kinst.relocation.trap import trap_of

MAX_PIECES = 4096  # maximum number of pieces of an inline copy (a limit of the dispatcher)
NAMES = (fbt.ENTRY, fbt.RETURN)


@dataclass(frozen=True)
class InlineEnd:
    """Instruction to probe at one end of an inline copy, as a function and an offset."""

    caller: Symbol
    offset: int

    def __str__(self) -> str:
        module = "" if self.caller.module == KERNEL else self.caller.module_name
        return f"kinst:{module}:{self.caller.name}:{self.offset}"


@dataclass
class _Copy:
    """Nested inline copies that share an entry address, treated as one copy.

    :param given: whether the debug data specifies the entry address.
    :param callers: function that contains code of the copies -> whether it contains the entry.
    """

    entry: int
    given: bool
    copies: list[Function]
    ranges: list[tuple[int, int]]
    callers: dict[Symbol, bool] = field(default_factory=dict)
    number: int = -1


def begin(copy: Function, symbols: SymbolTable) -> int:
    """Return the address at which an inline copy begins."""
    if copy.begins is not None and any(low <= copy.begins < high for low, high in copy.pieces):
        return copy.begins
    first = symbols.function_at(copy.pieces[0][0])
    return min(low for low, _high in copy.pieces if symbols.function_at(low) == first)


class Entrances:
    """Analysis of the kernel's file that finds the entry addresses of inline copies."""

    def __init__(self, image: Image) -> None:
        self._image, arch = image, arch_of(image)
        guest = guest_of(image, arch.name)
        self._trap = trap_of(guest, arch.name)
        self._dispatcher, _templates = new_dispatcher(
            arch, self._trap, guest.traps.trap_frame, None)

    def of(self, copy: Function) -> list[int]:
        """Return the addresses at which control enters an inline copy.

        Where the code does not determine them, return the one that follows from the debug data.
        """
        symbols = self._image.symbols
        entry = begin(copy, symbols)
        function = symbols.function_at(entry)
        if function is None or copy.begins == entry or len(copy.pieces) > MAX_PIECES:
            return [entry]
        number = self._dispatcher.add_copy(_united(list(copy.pieces)))
        try:
            code = image_code(self._image, function)
        except ImageError:  # the file contains only debug data
            return [entry]
        ((entered, _left),) = self._dispatcher.add_copy_ends(
            function.address, code, 0, function.size, 0, ProbeKind.OFFSET,
            [(number, entry - function.address, False)], False, False,
            self._trap.instructions.is_padding, is_cold(function.name))
        return [function.address + at for at, _number in entered]


def _merged(copies: list[Function], symbols: SymbolTable) -> Iterator[_Copy]:
    by_entry: dict[int, _Copy] = {}
    for copy in copies:
        entry = begin(copy, symbols)
        known = by_entry.setdefault(entry, _Copy(entry, copy.begins == entry, [], []))
        known.copies.append(copy)
        known.ranges += copy.pieces
    for copy_of_several in by_entry.values():
        copy_of_several.ranges = _united(copy_of_several.ranges)
        yield copy_of_several


def _united(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge ranges that overlap or touch."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return merged


def create(
    breakpoints: ProbeTable, index: DebugIndex, function: str, name: str, unsafe: bool = False,
    module: str = "", whole: bool = True,
) -> MadeProbes:
    """Create the probes that ``kinst::function:entry`` or ``kinst::function:return`` describes.

    These are at every inline copy and, where the function is not inline, those of FBT.

    :param whole: False to probe only the inline copies.
    :raises ProbeError: when no probe can be created; the message says why.
    """
    where = f"kinst:{module}:{function}:{name}"
    probes = MadeProbes([], [], [])
    by_caller: dict[Symbol, list[_Copy]] = {}
    for copy in _merged(index.copies(function), breakpoints.image.symbols):
        if _place(breakpoints, copy, probes, where, unsafe, module):
            copy.number = breakpoints.dispatcher.add_copy(copy.ranges)
            for caller in copy.callers:
                by_caller.setdefault(caller, []).append(copy)
    ends: dict[int, list[tuple[Symbol, list[CopyEnd], list[CopyEnd]]]] = {}
    for caller, inside in by_caller.items():
        made = breakpoints.add_copy_ends(
            caller, [(c.number, c.entry - caller.address if c.callers[caller] else None, c.given)
                     for c in inside], name == fbt.ENTRY, name == fbt.RETURN)
        for copy, (entered, left) in zip(inside, made, strict=True):
            ends.setdefault(copy.number, []).append((caller, entered, left))
    for copy in {c.number: c for inside in by_caller.values() for c in inside}.values():
        _take(breakpoints, copy, ends[copy.number], probes, where, name)
    # Drop duplicates, since static functions may share a name.
    probes.text[:] = dict.fromkeys(probes.text)
    if (whole and any(f.pieces and not f.inlined for f in index.named(function))) or (
            whole and not probes.text):
        _add_fbt(breakpoints, probes, function, name, unsafe, module)
    return probes


def _place(breakpoints: ProbeTable, copy: _Copy, found: MadeProbes, where: str, unsafe: bool,
           module: str) -> bool:
    """Find the functions that hold an inline copy; return False if the copy must not be probed."""
    symbols, exclusions = breakpoints.image.symbols, breakpoints.machine.guest.traps.exclusions
    if len(copy.ranges) > MAX_PIECES:
        found.reports.append(f"{where}: the copy at {copy.entry:#x} is not probed: it has "
                             f"{len(copy.ranges)} pieces of code, but at most {MAX_PIECES} are "
                             "supported")
        return False
    for low, _high in copy.ranges:
        caller = symbols.function_at(low)
        if caller is None:
            found.reports.append(f"{where}: the copy at {low:#x} is not in a function")
            return False
        if not matches(module, caller.module_name):
            return False
        reason = "" if unsafe else exclusions.reason(caller.name)
        if reason:
            found.reports.append(f"{where}: the copy is skipped in {caller.name}, which {reason}")
            return False
        copy.callers.setdefault(caller, False)
    inside = symbols.function_at(copy.entry)
    if inside is not None:
        copy.callers[inside] = True
    return True


def _take(breakpoints: ProbeTable, copy: _Copy,
          ends: list[tuple[Symbol, list[CopyEnd], list[CopyEnd]]], found: MadeProbes, where: str,
          name: str) -> None:
    """Record the probes of an inline copy, and report the instructions that cannot be probed."""
    refused = [(InlineEnd(caller, at), why) for caller, _entered, left in ends
               for at, why in left if isinstance(why, str)]
    numbers = [number for _caller, entered, left in ends
               for _at, number in [*entered, *left] if isinstance(number, int)]
    entries = [(InlineEnd(caller, at), number) for caller, entered, _left in ends
               for at, number in entered]
    unseen = next(((place, why) for place, why in entries if isinstance(why, str)), None)
    if unseen is not None:
        found.reports.append(f"{where}: {unseen[0]}: {unseen[1]}")
        # Without a probe at the copy's entry, the copy's return cannot be detected.
        breakpoints.dispatcher.forget_copy(numbers)
        return
    if refused:
        breakpoints.dispatcher.forget_copy(numbers)
        if name == fbt.RETURN:
            place, why = refused[0]
            found.reports.append(f"{where}: {place}: {why}")
            return
    if name == fbt.ENTRY:
        for place, number in entries:
            assert isinstance(number, int)
            found.numbers.append(number)
            found.text.append(str(place))
            found.copies[number] = copy.copies
        return
    for caller, _entered, left in ends:
        for at, number in left:
            if isinstance(number, int):
                found.numbers.append(number)
                found.text.append(str(InlineEnd(caller, at)))


def _add_fbt(breakpoints: ProbeTable, found: MadeProbes, function: str, name: str, unsafe: bool,
             module: str) -> None:
    """Add the FBT probes on a function's out-of-line copy.

    :raises ProbeError: when no probes could be created at all.
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
