"""Data races in what was executed: two accesses of different CPUs to the same bytes, one of them a
store, neither atomic, and nothing between them that orders them.

Order comes from places that some instruction uses atomically, as locks are: who reads such a place
goes on behind whoever has written it before (vector clocks; Lamport's happens-before).  A run that
was not preempted at all shows a race, too, where nothing but luck has ordered it.

Where runs share a CPU, sections in which it is not taken from them order each other as those under
a lock do: with interrupts masked, or critical ones.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kinst_emu.explore.accesses import Access, read_accesses

MAX_RACES = 1000  # of one order; more are not told
THE_CPU = -1  # a place that is none
Bytes = tuple[int, int, int]  # the CPU that uses them, the first one's physical address, how many


@dataclass(frozen=True)
class DataRace:
    """:param first: the access that came first in the order that was executed."""

    first: Access
    second: Access

    @property
    def places(self) -> tuple[int, int]:
        """The two instructions, the lower address first: what it is known by."""
        low, high = sorted((self.first.pc, self.second.pc))
        return low, high


@dataclass
class _Place:
    """Of a granule: the last stores and loads, by CPU and bytes, with the clocks of their CPUs."""

    stores: dict[Bytes, tuple[int, Access]] = field(default_factory=dict)
    loads: dict[Bytes, tuple[int, Access]] = field(default_factory=dict)


def data_races(entries: bytes, cpus: int, is_atomic: Callable[[int], bool],
               one_cpu: bool = False) -> list[DataRace]:
    """The races of an order, one for each pair of instructions.

    :param is_atomic: whether the instruction at an address is.
    :param one_cpu: the runs share one: two instructions that each read, change and write are no
        race there, as nothing comes in the midst of one.
    """
    accesses = list(read_accesses(entries))
    changing = _changing(accesses) if one_cpu else frozenset()
    atomic = {pc: is_atomic(pc) for pc in {access.pc for access in accesses}}
    ordering: dict[int, set[tuple[int, int]]] = {}  # by granule: what is used atomically there
    for access in accesses:
        if atomic[access.pc]:
            for place in access.places:
                ordering.setdefault(place, set()).add((access.physical, access.size))
    clocks = [[1 if cpu == other else 0 for other in range(cpus)] for cpu in range(cpus)]
    released: dict[int, list[int]] = {}
    places: dict[int, _Place] = {}
    found: dict[tuple[int, int], DataRace] = {}
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
                    if len(found) < MAX_RACES and not changing.issuperset(race.places):
                        found.setdefault(race.places, race)
        if access.held:
            _release(own, access.cpu, released, THE_CPU)
    return sorted(found.values(), key=lambda race: race.second.position)


def _changing(accesses: list[Access]) -> frozenset[int]:
    """The instructions that load and store the same."""
    loads = {(a.position, a.physical, a.pc) for a in accesses if not a.stores}
    return frozenset(a.pc for a in accesses
                     if a.stores and (a.position, a.physical, a.pc) in loads)


def _acquire(own: list[int], released: dict[int, list[int]], place: int) -> None:
    """What was released at a place that orders is behind."""
    there = released.get(place)
    if there is not None:
        own[:] = map(max, own, there)


def _release(own: list[int], cpu: int, released: dict[int, list[int]], place: int) -> None:
    """What came before is behind whoever acquires that place."""
    released[place] = list(map(max, own, released.get(place, own)))
    own[cpu] += 1


def _overlap(a: Access, b: Access) -> bool:
    return a.physical < b.physical + b.size and b.physical < a.physical + a.size


def _against(place: _Place, own: list[int], access: Access) -> Iterable[DataRace]:
    """The races of an access with those before it; it is then one of them."""
    others = [place.stores] if not access.stores else [place.stores, place.loads]
    for table in others:
        for (cpu, _physical, _size), (clock, before) in table.items():
            if cpu != access.cpu and clock > own[cpu] and _overlap(before, access):
                yield DataRace(before, access)
    table = place.stores if access.stores else place.loads
    table[access.cpu, access.physical, access.size] = own[access.cpu], access
