"""Detection of data races in executed schedules.

A data race is a pair of accesses by different CPUs to the same bytes, at least one of them a store,
neither atomic, and without synchronization between them.  Locations that some instruction accesses
atomically, such as locks, synchronize: a read of such a location happens after every earlier write
to it (vector clocks; Lamport's happens-before).  Even a schedule without preemptions shows a race
if only chance ordered the accesses.

Where runs share a CPU, sections in which it cannot be preempted (with interrupts masked, or
critical sections) synchronize like sections under a common lock.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kinst_emu.explore.accesses import Access, read_accesses

MAX_RACES = 1000  # maximum number of races reported for one schedule
THE_CPU = -1  # key of the CPU that all runs share, in the table of released locations
Bytes = tuple[int, int, int]  # CPU, physical address, number of bytes


@dataclass(frozen=True)
class DataRace:
    """Two conflicting accesses without synchronization between them.

    :param first: the access that came first in the executed schedule.
    """

    first: Access
    second: Access

    @property
    def places(self) -> tuple[int, int]:
        """Addresses of the two instructions, lower address first, which identify the race."""
        low, high = sorted((self.first.pc, self.second.pc))
        return low, high


@dataclass
class _Place:
    """Most recent stores and loads in one granule, each with the clock of its CPU."""

    stores: dict[Bytes, tuple[int, Access]] = field(default_factory=dict)
    loads: dict[Bytes, tuple[int, Access]] = field(default_factory=dict)


def data_races(entries: bytes, cpus: int, is_atomic: Callable[[int], bool],
               one_cpu: bool = False) -> list[DataRace]:
    """Return the data races of a schedule, one for each pair of instructions.

    :param entries: access entries of the schedule.
    :param cpus: number of CPUs.
    :param is_atomic: whether the instruction at an address accesses memory atomically.
    :param one_cpu: whether the runs share a CPU.  Two read-modify-write instructions do not race
        then, because nothing comes between the load and the store of one.
    """
    accesses = list(read_accesses(entries))
    changing = _changing(accesses) if one_cpu else frozenset()
    atomic = {pc: is_atomic(pc) for pc in {access.pc for access in accesses}}
    # (address, size) of atomic accesses, keyed by granule
    ordering: dict[int, set[tuple[int, int]]] = {}
    for access in accesses:
        if atomic[access.pc]:
            for place in access.places:
                ordering.setdefault(place, set()).add((access.physical, access.size))
    clocks = [[1 if cpu == other else 0 for other in range(cpus)] for cpu in range(cpus)]
    released: dict[int, list[int]] = {}
    places: dict[int, _Place] = {}
    races: dict[tuple[int, int], DataRace] = {}
    users: dict[int, int] = {}
    for access in accesses:
        for place in access.places:
            users[place] = users.get(place, 0) | 1 << access.cpu
    for access in accesses:
        if access.cpu >= cpus:
            continue
        own = clocks[access.cpu]
        if access.held:
            _acquire(own, released, THE_CPU)
        for place in access.places:
            if place in ordering and any(
                    at < access.physical + access.size and access.physical < at + size
                    for at, size in ordering[place]):
                _acquire(own, released, place)
                if access.stores:
                    _release(own, access.cpu, released, place)
            elif users[place] & users[place] - 1:
                known = places.setdefault(place, _Place())
                for race in _against(known, own, access):
                    if len(races) < MAX_RACES and not changing.issuperset(race.places):
                        races.setdefault(race.places, race)
        if access.held:
            _release(own, access.cpu, released, THE_CPU)
    return sorted(races.values(), key=lambda race: race.second.position)


def _changing(accesses: list[Access]) -> frozenset[int]:
    """Return the addresses of instructions that load from and store to the same location."""
    loads = {(a.position, a.physical, a.pc) for a in accesses if not a.stores}
    return frozenset(a.pc for a in accesses
                     if a.stores and (a.position, a.physical, a.pc) in loads)


def _acquire(own: list[int], released: dict[int, list[int]], place: int) -> None:
    """Order a CPU's later accesses after all accesses that were released at a location."""
    there = released.get(place)
    if there is not None:
        own[:] = map(max, own, there)


def _release(own: list[int], cpu: int, released: dict[int, list[int]], place: int) -> None:
    """Order a CPU's previous accesses before later acquire operations at a location."""
    released[place] = list(map(max, own, released.get(place, own)))
    own[cpu] += 1


def _overlap(a: Access, b: Access) -> bool:
    return a.physical < b.physical + b.size and b.physical < a.physical + a.size


def _against(place: _Place, own: list[int], access: Access) -> Iterable[DataRace]:
    """Yield the races of an access with earlier accesses to a granule, then record the access."""
    others = [place.stores] if not access.stores else [place.stores, place.loads]
    for table in others:
        for (cpu, _physical, _size), (clock, before) in table.items():
            if cpu != access.cpu and clock > own[cpu] and _overlap(before, access):
                yield DataRace(before, access)
    table = place.stores if access.stores else place.loads
    table[access.cpu, access.physical, access.size] = own[access.cpu], access
