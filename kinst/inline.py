"""Probes on inline copies: ``kinst::name:entry`` and ``kinst::name:return`` (the kinst paper, V).

The entry of a copy is its lowest address.  It returns at the last instruction of each piece:
a copy that is split has an early return.  The probes are those of the function it lies in.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dwarf.index import DebugIndex, Function, caller_of
from emu.elf import Symbol
from kinst import fbt
from kinst.listing import Instruction, exclusion
from kinst.probe_table import OFFSET, ProbeError, ProbeTable
from kinst.verdict import Refuse

NAMES = (fbt.ENTRY, fbt.RETURN)


@dataclass(frozen=True)
class Place:
    """A function to probe and the offset in it, for one end of an inline copy."""

    caller: Symbol
    offset: int

    def __str__(self) -> str:
        return f"kinst::{self.caller.name}:{self.offset}"


@dataclass
class Rewritten:
    """What a description of an inline function became.

    :param text: the descriptions, as dtrace -d prints them.
    :param numbers: of the probes made.
    :param reports: why a copy cannot be probed.
    """

    text: list[str]
    numbers: list[int]
    reports: list[str]


def addresses(copy: Function, name: str, table: list[Instruction]) -> Iterator[int]:
    """Where a copy is entered, or left, as addresses of instructions of its caller."""
    if name == fbt.ENTRY:
        yield min(low for low, _high in copy.pieces)
        return
    for low, high in copy.pieces:
        last = [i.address for i in table if low <= i.address < high]
        if last:
            yield last[-1]


def create(
    breakpoints: ProbeTable, index: DebugIndex, function: str, name: str, unsafe: bool = False
) -> Rewritten:
    """Make the probes of ``kinst::function:entry`` or ``return``: at every inline copy, and FBT's
    where the function is not inline; both where it is both.

    :raises ProbeError: when there is neither.
    """
    where = f"kinst::{function}:{name}"
    symbols = breakpoints.image.symbols
    found = Rewritten([], [], [])
    tables: dict[int, list[Instruction]] = {}
    seen: set[int] = set()
    for copy in index.copies(function):
        caller = caller_of(symbols, copy)
        if caller is None:
            found.reports.append(f"{where}: a copy at {copy.pieces[0][0]:#x} lies in no function")
            continue
        reason = "" if unsafe else exclusion(breakpoints.trap, caller.name)
        if reason:
            found.reports.append(f"{where}: not in {caller.name}, which {reason}")
            continue
        table = tables.get(caller.address)
        if table is None:
            table = tables[caller.address] = breakpoints.instructions(caller)
        by_address = {i.address: i for i in table}
        for address in addresses(copy, name, table):
            if address in seen:
                continue  # two copies share it
            seen.add(address)
            place = Place(caller, address - caller.address)
            instruction = by_address.get(address)
            if instruction is None:
                found.reports.append(f"{where}: {place} is no instruction of {caller.name}")
            elif isinstance(instruction.verdict, Refuse):
                found.reports.append(f"{where}: {place}: it {instruction.verdict.reason}")
            else:
                found.numbers.append(breakpoints.add(caller, OFFSET, instruction))
                found.text.append(str(place))
    if any(f.pieces and not f.inlined for f in index.named(function)) or not found.text:
        try:
            found.numbers += fbt.create(breakpoints, function, name, unsafe)
            found.text.append(f"fbt::{function}:{name}")
        except ProbeError as error:
            if not found.text:
                raise (found.reports and ProbeError(found.reports[0])) or error from None
            found.reports.append(str(error))
    return found
