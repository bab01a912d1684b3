"""The probes and clauses that linked programs enable, by their numbers."""

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dtrace.d.compile.clauses import ClauseFunction
from dtrace.d.compile.program import ListedProbe, ManyProbes
from dtrace.run.consumer import Enabled


@dataclass
class FiredProbe:
    """An enabled probe, with the address of its program and the number of its first clause."""

    probe: ListedProbe
    entry: int
    first: int


@dataclass(frozen=True)
class Many:
    """Probes that run the same program; each has numbers of its own for its clauses.

    :param first: number of the first clause of the first probe.
    """

    probes: ManyProbes
    functions: tuple[ClauseFunction, ...]
    first: int


class EnabledClauses:
    """The enabled clauses, numbered from 1 probe by probe."""

    def __init__(self) -> None:
        self._parts: list[list[Enabled] | Many] = []
        self._starts: list[int] = []  # number of clauses before each part
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Enabled]:
        return map(self.numbered, range(1, self._count + 1))

    def add(self, function: ClauseFunction, probe: ListedProbe) -> None:
        """Add a clause of one probe."""
        last = self._parts[-1] if self._parts else None
        if not isinstance(last, list):
            last = []
            self._parts.append(last)
            self._starts.append(self._count)
        self._count += 1
        last.append(Enabled(self._count, function, probe))

    def add_many(self, probes: ManyProbes, functions: Sequence[ClauseFunction]) -> Many:
        """Add the same clauses for each of many probes."""
        many = Many(probes, tuple(functions), self._count + 1)
        self._parts.append(many)
        self._starts.append(self._count)
        self._count += len(probes) * len(many.functions)
        return many

    def numbered(self, number: int) -> Enabled:
        """Return the clause with a number.

        :raises IndexError: if there is none.
        """
        if not 0 < number <= self._count:
            raise IndexError(number)
        part = bisect.bisect_right(self._starts, number - 1) - 1
        found, index = self._parts[part], number - 1 - self._starts[part]
        if isinstance(found, list):
            return found[index]
        probe, clause = divmod(index, len(found.functions))
        return Enabled(number, found.functions[clause], found.probes[probe])


class FiredProbes:
    """The enabled probes, by their numbers."""

    def __init__(self) -> None:
        self.single: dict[int, FiredProbe] = {}  # those that were added one by one
        self._many: list[tuple[Many, int]] = []

    def add(self, number: int, fired: FiredProbe) -> None:
        """Add a probe."""
        self.single[number] = fired

    def add_many(self, many: Many, entry: int) -> None:
        """Add many probes, whose program begins at an address."""
        self._many.append((many, entry))

    def numbered(self, number: int) -> FiredProbe:
        """Return the probe with a number.

        :raises KeyError: if it is not enabled.
        """
        found = self.single.get(number)
        if found is not None:
            return found
        for many, entry in self._many:
            numbers = many.probes.numbers
            index = bisect.bisect_left(numbers, number)
            if index < len(numbers) and numbers[index] == number:
                return FiredProbe(many.probes[index], entry,
                                  many.first + index * len(many.functions))
        raise KeyError(number)
