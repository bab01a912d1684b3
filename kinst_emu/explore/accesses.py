"""What the runs read and write: where an order can matter."""

import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from emu.unicorn._engine import AccessKind, AccessLimit

ENTRY = struct.Struct("<4QI2HQ")  # AccessEntry of emu/unicorn/_accesses.pxi
MOST_REPEATED = 4  # accesses of one instruction to one place that are told apart
GRANULE = 8  # bytes that are looked at as one place
assert ENTRY.size == AccessLimit.ACCESS_SIZE


class Access(NamedTuple):
    """:param position: instructions executed before the one that does it.
    :param value: of its first eight bytes, behind it.
    """

    position: int
    pc: int
    physical: int
    value: int
    size: int
    kind: int
    cpu: int
    thread: int

    @property
    def stores(self) -> bool:
        return self.kind == AccessKind.ACCESS_STORE

    @property
    def places(self) -> range:
        """The numbers of the granules that it is in."""
        return range(self.physical // GRANULE, (self.physical + self.size - 1) // GRANULE + 1)


def read_accesses(entries: bytes) -> Iterator[Access]:
    return map(Access._make, ENTRY.iter_unpack(entries))


@dataclass
class RunAccesses:
    """Of one run, executed without being preempted.

    :param length: its instructions.
    :param places: by granule: (instructions of the run before it, whether it is a store).
    """

    length: int = 0
    places: dict[int, list[tuple[int, bool]]] = field(default_factory=lambda: defaultdict(list))

    def together(self, other: "RunAccesses") -> "RunAccesses":
        """What it did in two orders: in one it may go where it does not in the other."""
        both = RunAccesses(max(self.length, other.length))
        for one in (self, other):
            for place, uses in one.places.items():
                both.places[place] = sorted({*both.places[place], *uses})
        return both


def of_serial(entries: bytes, runs: int, begin: int) -> list[RunAccesses]:
    """What each run did in a serial order: a run is what its CPU did behind the first instruction.

    :param begin: instructions before the order began.
    """
    found = [RunAccesses() for _ in range(runs)]
    counts, last = [0] * runs, [-1] * runs
    starts = [-1] * runs
    repeated: dict[tuple[int, int, int], int] = defaultdict(int)
    for access in read_accesses(entries):
        cpu = access.cpu
        if cpu >= runs:
            continue
        if starts[cpu] < 0:
            # No other run is in the middle of its own: it began where the one before it ended.
            starts[cpu] = max((one + 1 for one in last if one >= 0), default=begin)
        index = access.position - starts[cpu]
        for place in access.places:
            # In a loop that waits, the first times stand for all.
            key = cpu, access.pc, place
            repeated[key] += 1
            if repeated[key] <= MOST_REPEATED:
                found[cpu].places[place].append((index, access.stores))
        last[cpu], counts[cpu] = access.position, index
    for run in range(runs):
        found[run].length = counts[run] + 1
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
