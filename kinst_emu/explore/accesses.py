"""Memory accesses of the runs, and the memory locations at which interleavings can matter."""

import bisect
import struct
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from emu.unicorn._accesses import AccessKind, AccessLimit

ENTRY = struct.Struct("<4QI2HQ")  # structure AccessEntry of emu/unicorn/_accesses.pyx
# maximum number of one instruction's accesses to one granule that are considered separately
MOST_REPEATED = 4
GRANULE = 8  # size in bytes of a granule, the unit in which accesses are compared
assert ENTRY.size == AccessLimit.ACCESS_SIZE
STORE, HELD = int(AccessKind.ACCESS_STORE), int(AccessKind.ACCESS_HELD)


class Access(NamedTuple):
    """A memory access of a run.

    :param position: number of instructions that the machine executed before the accessing one.
    :param value: the first eight bytes at the address after the access.
    :param cpu: number of the CPU, or of the run if the runs are threads.
    :param open: if the CPU cannot switch threads at this access, the last earlier position at
        which it could; otherwise ``position``.
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
        """Whether the access is a store rather than a load."""
        return bool(self.kind & STORE)

    @property
    def held(self) -> bool:
        """Whether the CPU cannot switch to another thread at this access."""
        return bool(self.kind & HELD)

    @property
    def places(self) -> range:
        """Numbers of the granules that the access overlaps."""
        return range(self.physical // GRANULE, (self.physical + self.size - 1) // GRANULE + 1)


def read_accesses(entries: bytes) -> Iterator[Access]:
    """Decode packed access entries."""
    return map(Access._make, ENTRY.iter_unpack(entries))


def in_order(entries: bytes, more: bytes) -> bytes:
    """Merge two sequences of packed access entries in order of their positions."""
    merged = sorted([*read_accesses(entries), *read_accesses(more)], key=lambda one: one.position)
    return b"".join(ENTRY.pack(*one) for one in merged)


@dataclass
class RunAccesses:
    """Memory accesses of one run that was executed without preemption.

    :param length: number of instructions that the run executed.
    :param cut: number of accesses in loops that are not distinguished from earlier ones.
    :param places: by granule: (instructions of the run before the access, whether it is a store),
        without the accesses counted in ``cut``.
    :param every: by granule: the same instruction counts for all accesses.
    """

    length: int = 0
    cut: int = 0
    places: dict[int, list[tuple[int, bool]]] = field(default_factory=lambda: defaultdict(list))
    every: dict[int, "array[int]"] = field(
        default_factory=lambda: defaultdict(lambda: array("Q")))

    def together(self, other: "RunAccesses") -> "RunAccesses":
        """Merge a run's accesses from two schedules, in which the run may take different paths."""
        both = RunAccesses(max(self.length, other.length), max(self.cut, other.cut))
        for one in (self, other):
            for place, uses in one.places.items():
                both.places[place] = sorted({*both.places[place], *uses})
            for place, counts in one.every.items():
                both.every[place] = array("Q", sorted({*both.every[place], *counts}))
        return both


class RunStretch(NamedTuple):
    """An uninterrupted part of a run, between two instruction counts of the machine.

    :param before: number of instructions that the run had executed before.
    """

    begin: int
    end: int
    run: int
    before: int


def of_serial(entries: bytes, stretches: Sequence[RunStretch], runs: int) -> list[RunAccesses]:
    """Return the memory accesses of each run in a serial schedule.

    :param entries: access entries of the whole schedule.
    :param stretches: stretches of all runs, in the order of their execution.
    :param runs: number of runs.
    """
    by_run = [RunAccesses() for _run in range(runs)]
    for one in stretches:
        by_run[one.run].length = max(by_run[one.run].length, one.before + one.end - one.begin)
    repeated: dict[tuple[int, int, int, int], int] = defaultdict(int)
    begins = [one.begin for one in stretches]
    for access in read_accesses(entries):
        number = bisect.bisect_right(begins, access.position) - 1
        if number < 0 or access.position >= stretches[number].end or (
                access.cpu != stretches[number].run):
            continue
        run, stretch = by_run[access.cpu], stretches[number]
        index = stretch.before + max(access.open, stretch.begin) - stretch.begin
        for place in access.places:
            # The first iterations of a wait loop represent all its iterations.
            key = access.cpu, access.pc, place, access.kind
            repeated[key] += 1
            run.every[place].append(index)
            if repeated[key] <= MOST_REPEATED:
                run.places[place].append((index, access.stores))
            else:
                run.cut += 1
    return by_run


def shared_places(runs: Sequence[RunAccesses]) -> set[int]:
    """Return the granules that several runs access and at least one run stores to."""
    users: dict[int, int] = defaultdict(int)
    stored = set[int]()
    for number, run in enumerate(runs):
        for place, uses in run.places.items():
            users[place] |= 1 << number
            if any(store for _index, store in uses):
                stored.add(place)
    return {place for place, who in users.items() if who & who - 1 and place in stored}


def points(run: RunAccesses, shared: set[int]) -> list[int]:
    """Return the positions in a run at which a preemption can matter.

    The positions are those before accesses to shared granules, as counts of the run's instructions.
    """
    return sorted({index for place in shared & run.places.keys()
                   for index, _store in run.places[place]})
