"""Probes where control enters and leaves inline copies, in the kernel or in a program.

A copy is entered at its DW_AT_entry_pc.  If the debug data has none, the copy is entered at each of
its instructions, in the function of its first piece, that control can reach before any other
instruction of the copy: usually the one at the lowest address, but there may be padding or several
entries.  A copy is left at an instruction from which control goes outside of all its pieces;
functions that it calls are not outside.  So the probes fire once for each entry and once for each
return, whatever loops and pieces the compiler has made of the copy.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from dwarf.index import Function
from emu.elf.symbols import Symbol
from kinst.probes.probe_table import CopyEnd, ProbeTable
from kinst.providers.fbt import ENTRY, RETURN
from kinst.providers.provider import MadeProbes

MAX_PIECES = 4096  # maximum number of pieces of an inline copy (a limit of the dispatcher)
NAMES = (ENTRY, RETURN)
FindFunction = Callable[[int], Symbol | None]  # returns the function that contains an address


@dataclass
class Copy:
    """Nested inline copies that share an entry address, treated as one copy.

    :param given: whether the debug data specifies the entry address.
    :param callers: function that contains code of the copies -> whether it contains the entry.
    :param number: the dispatcher's number.
    :param made: the probes at the ends.
    """

    entry: int
    given: bool
    copies: list[Function]
    ranges: list[tuple[int, int]]
    callers: dict[Symbol, bool] = field(default_factory=dict)
    number: int = -1
    made: MadeProbes = field(default_factory=lambda: MadeProbes([], [], []))


class CopiedInto(ABC):
    """Code that contains inline copies: the kernel, or an object that a process has mapped.

    :param where: the probe description, for messages.
    """

    def __init__(self, probes: ProbeTable, where: str) -> None:
        self.probes, self.where = probes, where

    @property
    @abstractmethod
    def program(self) -> int:
        """Number of the program that contains the code, or 0 for the kernel."""

    @abstractmethod
    def function_at(self, address: int) -> Symbol | None:
        """Return the function that contains an address, or None."""

    @abstractmethod
    def is_wanted(self, caller: Symbol) -> bool:
        """Return whether the description selects the copies in a function."""

    @abstractmethod
    def refusal(self, caller: Symbol) -> str:
        """Return why the copies in a function must not be probed, or an empty string."""

    @abstractmethod
    def add_ends(self, caller: Symbol, copies: Sequence[tuple[int, int | None, bool]], entry: bool,
                 returns: bool) -> list[tuple[list[CopyEnd], list[CopyEnd]]]:
        """Add the probes of copies in a function, as ``ProbeTable.add_copy_ends`` does."""

    @abstractmethod
    def end(self, caller: Symbol, offset: int) -> str:
        """Return the description of the probe at one end of a copy."""

    def create(self, copies: Sequence[Function], name: str) -> MadeProbes:
        """Create the ``entry`` or ``return`` probes of inline copies; report those that have none.

        :param copies: with the addresses at which they are in memory.
        """
        by_caller: dict[Symbol, list[Copy]] = {}
        made: list[MadeProbes] = []  # for each copy
        for copy in _merged(copies, self.function_at):
            made.append(copy.made)
            if not self._place(copy, copy.made):
                continue
            known = self._known(copy, name)
            if known is not None:
                made[-1] = known
                continue
            copy.number = self.probes.dispatcher.add_copy(
                copy.ranges, min(one.number for one in copy.copies))
            for caller in copy.callers:
                by_caller.setdefault(caller, []).append(copy)
        ends: dict[int, list[tuple[Symbol, list[CopyEnd], list[CopyEnd]]]] = {}
        for caller, inside in by_caller.items():
            added = self.add_ends(
                caller, [(c.number, c.entry - caller.address if c.callers[caller] else None,
                          c.given) for c in inside], name == ENTRY, name == RETURN)
            for copy, (entered, left) in zip(inside, added, strict=True):
                ends.setdefault(copy.number, []).append((caller, entered, left))
        for copy in {c.number: c for inside in by_caller.values() for c in inside}.values():
            self._take(copy, ends[copy.number], copy.made, name)
            self.probes.copy_probes[self._key(copy, name)] = copy.made
        found = MadeProbes([], [], [])
        for one in made:
            found.add(one)
        # Drop duplicates, since static functions may share a name.
        found.text[:] = dict.fromkeys(found.text)
        return found

    def _key(self, copy: Copy, name: str) -> tuple[object, ...]:
        return (self.program, name, copy.entry, copy.given, tuple(copy.ranges),
                *(one.number for one in copy.copies))

    def _known(self, copy: Copy, name: str) -> MadeProbes | None:
        """Return the probes that an earlier description has created for a copy, or None."""
        known = self.probes.copy_probes.get(self._key(copy, name))
        if not isinstance(known, MadeProbes) or not known.numbers or any(
                self.probes.is_removed(number) for number in known.numbers):
            return None
        return replace(known, reports=[])

    def _place(self, copy: Copy, found: MadeProbes) -> bool:
        """Find the functions that hold a copy; return False if the copy must not be probed."""
        if len(copy.ranges) > MAX_PIECES:
            found.reports.append(f"{self.where}: the copy at {copy.entry:#x} is not probed: it has "
                                 f"{len(copy.ranges)} pieces of code, but at most {MAX_PIECES} are "
                                 "supported")
            return False
        for low, _high in copy.ranges:
            caller = self.function_at(low)
            if caller is None:
                found.reports.append(f"{self.where}: the copy at {low:#x} is not in a function")
                return False
            if not self.is_wanted(caller):
                return False
            reason = self.refusal(caller)
            if reason:
                found.reports.append(f"{self.where}: the copy is skipped in {caller.name}, which "
                                     f"{reason}")
                return False
            copy.callers.setdefault(caller, False)
        inside = self.function_at(copy.entry)
        if inside is not None:
            copy.callers[inside] = True
        return True

    def _take(self, copy: Copy, ends: list[tuple[Symbol, list[CopyEnd], list[CopyEnd]]],
              found: MadeProbes, name: str) -> None:
        """Record the probes of a copy, and report the instructions that cannot be probed."""
        refused = [(self.end(caller, at), why) for caller, _entered, left in ends
                   for at, why in left if isinstance(why, str)]
        numbers = [number for _caller, entered, left in ends
                   for _at, number in [*entered, *left] if isinstance(number, int)]
        entries = [(self.end(caller, at), number) for caller, entered, _left in ends
                   for at, number in entered]
        unseen = next(((place, why) for place, why in entries if isinstance(why, str)), None)
        if unseen is not None:
            found.reports.append(f"{self.where}: {unseen[0]}: {unseen[1]}")
            # Without a probe at the copy's entry, the copy's return cannot be detected.
            self.probes.dispatcher.forget_copy(numbers)
            return
        if refused:
            self.probes.dispatcher.forget_copy(numbers)
            if name == RETURN:
                place, why = refused[0]
                found.reports.append(f"{self.where}: {place}: {why}")
                return
        if name == ENTRY:
            for place, number in entries:
                assert isinstance(number, int)
                found.numbers.append(number)
                found.text.append(place)
                found.copies[number] = copy.copies
            return
        for caller, _entered, left in ends:
            for at, number in left:
                if isinstance(number, int):
                    found.numbers.append(number)
                    found.text.append(self.end(caller, at))


def begin(copy: Function, function_at: FindFunction) -> int:
    """Return the address at which an inline copy begins."""
    if copy.begins is not None and any(low <= copy.begins < high for low, high in copy.pieces):
        return copy.begins
    first = function_at(copy.pieces[0][0])
    return min(low for low, _high in copy.pieces if function_at(low) == first)


def _merged(copies: Sequence[Function], function_at: FindFunction) -> Iterator[Copy]:
    by_entry: dict[int, Copy] = {}
    for copy in copies:
        entry = begin(copy, function_at)
        known = by_entry.setdefault(entry, Copy(entry, copy.begins == entry, [], []))
        known.copies.append(copy)
        known.ranges += copy.pieces
    for copy_of_several in by_entry.values():
        copy_of_several.ranges = united(copy_of_several.ranges)
        yield copy_of_several


def united(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge ranges that overlap or touch."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return merged
