"""Many probes of the kernel's instructions, as one sequence."""

import array
import functools
import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import overload

from dtrace.d.compile.program import ListedProbe, ManyProbes
from emu.elf.symbols import Symbol
from kinst.probes.probe_table import ProbeTable


class InstructionProbes(ManyProbes):
    """Probes of the kinst provider, from the numbers of their places in a probe table.

    :param base: ID of the table's first probe.
    :param places: the numbers; a number that is repeated counts once.
    """

    def __init__(self, table: ProbeTable, base: int, places: Sequence[int]) -> None:
        self._table, self._base = table, base
        ascends = all(map(operator.lt, places, itertools.islice(places, 1, None)))
        known = places if ascends else sorted(set(places))
        self._places: Sequence[int] = (
            range(known[0], known[-1] + 1) if known and known[-1] - known[0] == len(known) - 1
            else array.array("I", known))

    @functools.cached_property
    def _numbers(self) -> Sequence[int]:
        base, places = self._base, self._places
        return (range(places.start + base, places.stop + base) if isinstance(places, range)
                else array.array("I", [place + base for place in places]))

    @property
    def numbers(self) -> Sequence[int]:
        """Their numbers, in ascending order."""
        return self._numbers

    def runs(self) -> Iterator[tuple[Symbol, int, list[int]]]:
        """Yield (function, index of the first, offsets) for the probes of each function."""
        return self._table.runs(self._places)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> ListedProbe: ...

    @overload
    def __getitem__(self, index: slice) -> list[ListedProbe]: ...

    def __getitem__(self, index: int | slice) -> ListedProbe | list[ListedProbe]:
        if isinstance(index, slice):
            return [self._probe(place) for place in self._places[index]]
        return self._probe(self._places[index])

    def _probe(self, place: int) -> ListedProbe:
        return ListedProbe(self._base + place, *self._table.names(place))
