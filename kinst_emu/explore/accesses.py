"""What the runs read and write: where an order can matter."""

import bisect
import struct
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from emu.unicorn._accesses import AccessKind, AccessLimit

ENTRY = struct.Struct("<4QI2HQ")  # AccessEntry of emu/unicorn/_accesses.pyx
MOST_REPEATED = 4  # accesses of one instruction to one place that are told apart
GRANULE = 8  # bytes that are looked at as one place
assert ENTRY.size == AccessLimit.ACCESS_SIZE
STORE, HELD = int(AccessKind.ACCESS_STORE), int(AccessKind.ACCESS_HELD)


class Access(NamedTuple):
    """:param position: instructions executed before the one that does it.
    :param value: of its first eight bytes, behind it.
    :param cpu: of a run that is a thread, the run's number.
    :param open: where its CPU is not given to another thread: the last position before it where it
        would have been; else its own.
    """

    position: int
    pc: int
    physical: int
    value: int
    size: int
    kind: int
    cpu: int
    open: int

    @property
    def stores(self) -> bool:
        return bool(self.kind & STORE)

    @property
    def held(self) -> bool:
        """Whether its CPU is not given to another thread there."""
        return bool(self.kind & HELD)

    @property
    def places(self) -> range:
        """The numbers of the granules that it is in."""
        return range(self.physical // GRANULE, (self.physical + self.size - 1) // GRANULE + 1)


def read_accesses(entries: bytes) -> Iterator[Access]:
    return map(Access._make, ENTRY.iter_unpack(entries))


def in_order(entries: bytes, more: bytes) -> bytes:
    """Two lists of entries as one, by their positions."""
    every = sorted([*read_accesses(entries), *read_accesses(more)], key=lambda one: one.position)
    return b"".join(ENTRY.pack(*one) for one in every)


@dataclass
class RunAccesses:
    """Of one run, executed without being preempted.

    :param length: its instructions.
    :param cut: accesses of loops that are not told apart from earlier ones.
    :param places: by granule: (instructions of the run before it, whether it is a store).
    :param every: by granule, the same counts of all accesses, those that are cut too.
    """

    length: int = 0
    cut: int = 0
    places: dict[int, list[tuple[int, bool]]] = field(default_factory=lambda: defaultdict(list))
    every: dict[int, "array[int]"] = field(
        default_factory=lambda: defaultdict(lambda: array("Q")))

    def together(self, other: "RunAccesses") -> "RunAccesses":
        """What it did in two orders: in one it may go where it does not in the other."""
        both = RunAccesses(max(self.length, other.length), max(self.cut, other.cut))
        for one in (self, other):
            for place, uses in one.places.items():
                both.places[place] = sorted({*both.places[place], *uses})
            for place, counts in one.every.items():
                both.every[place] = array("Q", sorted({*both.every[place], *counts}))
        return both


class RunStretch(NamedTuple):
    """A run goes on by itself: from a count of the machine's instructions to another one.

    :param before: instructions of its own that it had executed before.
    """

    begin: int
    end: int
    run: int
    before: int


def of_serial(entries: bytes, stretches: Sequence[RunStretch], runs: int) -> list[RunAccesses]:
    """What each run did in a serial order.

    :param stretches: of all runs, in their order.
    """
    found = [RunAccesses() for _run in range(runs)]
    for one in stretches:
        found[one.run].length = max(found[one.run].length, one.before + one.end - one.begin)
    repeated: dict[tuple[int, int, int, int], int] = defaultdict(int)
    begins = [one.begin for one in stretches]
    for access in read_accesses(entries):
        number = bisect.bisect_right(begins, access.position) - 1
        if number < 0 or access.position >= stretches[number].end or (
                access.cpu != stretches[number].run):
            continue
        run, stretch = found[access.cpu], stretches[number]
        index = stretch.before + max(access.open, stretch.begin) - stretch.begin
        for place in access.places:
            # In a loop that waits, the first times stand for all.
            key = access.cpu, access.pc, place, access.kind
            repeated[key] += 1
            run.every[place].append(index)
            if repeated[key] <= MOST_REPEATED:
                run.places[place].append((index, access.stores))
            else:
                run.cut += 1
    return found


def shared_places(runs: Sequence[RunAccesses]) -> set[int]:
    """The granules that several runs use, one of them with a store."""
    users: dict[int, int] = defaultdict(int)
    stored = set[int]()
    for number, run in enumerate(runs):
        for place, uses in run.places.items():
            users[place] |= 1 << number
            if any(store for _index, store in uses):
                stored.add(place)
    return {place for place, who in users.items() if who & who - 1 and place in stored}


def points(run: RunAccesses, shared: set[int]) -> list[int]:
    """Where a run may be preempted so that it matters: before each of its accesses to a shared
    place, as counts of its instructions."""
    return sorted({index for place in shared & run.places.keys()
                   for index, _store in run.places[place]})
