"""Strategies for choosing schedules: few preemptions, random priorities, random preemptions."""

import bisect
import itertools
import math
import random
from collections.abc import Iterator, Sequence

from kinst_emu.explore.accesses import RunAccesses, points, shared_places
from kinst_emu.explore.schedule import Schedule, ScheduleTurn

MOST_LISTED = 200_000  # maximum number of schedules that are listed for one sequence of turns
ALL, EVERY, PCT, RANDOM = "all", "every", "pct", "random"
STRATEGIES = (ALL, EVERY, PCT, RANDOM)


def serial_schedules(runs: int) -> list[Schedule]:
    """Return the schedules that execute the runs one after another."""
    return [tuple(ScheduleTurn(run) for run in schedule) for schedule in
            itertools.permutations(range(runs))]


class Preemptions:
    """Enumeration of schedules with few preemptions; equivalent schedules are skipped.

    Each preemption comes before an access to a granule that another run uses, too.  Schedules are
    equivalent if the accesses to each granule come in the same sequence.

    :param runs: memory accesses of each run, executed without preemption.
    :param most: maximum number of preemptions.
    """

    def __init__(self, runs: Sequence[RunAccesses], most: int) -> None:
        self._runs, self._most = runs, most
        self.shared = shared_places(runs)
        self.points = [points(run, self.shared) for run in runs]
        self.skipped, self.listed = 0, True
        # For each run: the positions of the run's accesses to each shared granule.
        self._uses = [{place: sorted(run.every[place])
                       for place in self.shared & run.every.keys()} for run in runs]

    def estimate(self, preemptions: int) -> int:
        """Estimate the number of schedules with a given number of preemptions."""
        total = 0
        for sequence in self._sequences(preemptions):
            product = 1
            for run in sequence[:preemptions]:
                product *= len(self.points[run])
            total += product
        return total

    def _sequences(self, preemptions: int) -> list[tuple[int, ...]]:
        """Return all possible sequences of turns, each as the numbers of the runs."""
        runs = range(len(self._runs))
        sequences = []
        for head in itertools.product(runs, repeat=preemptions + 1):
            if any(a == b for a, b in itertools.pairwise(head)):
                continue
            left = [run for run in runs if run != head[-1]]
            sequences += [(*head, *rest) for rest in itertools.permutations(left)]
        return sequences

    def schedules(self, preemptions: int, seed: int) -> Iterator[Schedule]:
        """Yield schedules with a given number of preemptions, rotating among the turn sequences.

        At most MOST_LISTED schedules of a sequence of runs are yielded; ``listed`` becomes False if
        there are more.
        """
        seen = set[tuple[object, ...]]()
        chosen = random.Random(seed)
        choices = [self._choices(sequence, preemptions, chosen)
                   for sequence in self._sequences(preemptions)]
        for one in itertools.chain.from_iterable(itertools.zip_longest(*choices)):
            if one is None:
                continue
            sequence, positions = one
            key = self._key(sequence, positions)
            if key in seen:
                self.skipped += 1
                continue
            seen.add(key)
            yield self._schedule(sequence, positions)

    def _choices(self, sequence: tuple[int, ...], preemptions: int, chosen: random.Random
                 ) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Yield (turn sequence, positions at which its turns are preempted) pairs."""
        points = [self.points[run] for run in sequence[:preemptions]]
        size = math.prod(map(len, points))
        self.listed &= size <= MOST_LISTED
        numbers = range(size) if preemptions == 1 else chosen.sample(
            range(size), min(size, MOST_LISTED))
        for number in numbers:
            positions = list[int]()
            for some in points:
                number, index = divmod(number, len(some))
                positions.append(some[index])
            reached: dict[int, int] = {}
            for run, index in zip(sequence, positions, strict=False):
                if index <= reached.get(run, -1):
                    break
                reached[run] = index
            else:
                yield sequence, tuple(positions)

    def _key(self, sequence: tuple[int, ...], at: tuple[int, ...]) -> tuple[object, ...]:
        """Return a key for a schedule; equivalent schedules have the same key."""
        parts: list[tuple[object, ...]] = []
        for place in sorted(self.shared):
            row: list[tuple[int, int]] = []
            begun = [0] * len(self._runs)
            for number, run in enumerate(sequence):
                uses = self._uses[run].get(place, ())
                end = len(uses) if number >= len(at) else bisect.bisect_left(uses, at[number])
                if end > begun[run]:
                    if row and row[-1][0] == run:
                        row[-1] = run, row[-1][1] + end - begun[run]
                    else:
                        row.append((run, end - begun[run]))
                    begun[run] = end
            parts.append(tuple(row))
        return tuple(parts)

    def _schedule(self, sequence: tuple[int, ...], at: tuple[int, ...]) -> Schedule:
        turns, reached = [], [0] * len(self._runs)
        for run, index in zip(sequence, at, strict=False):
            if index > reached[run]:
                turns.append(ScheduleTurn(run, index - reached[run]))
            reached[run] = index
        return (*turns, *(ScheduleTurn(run) for run in sequence[len(at) :]))


class EveryPlace(Preemptions):
    """Enumeration of schedules with few preemptions, before any instruction of a run.

    Runs may influence each other by other means than memory accesses: one may change the code that
    another one executes.
    """

    def __init__(self, runs: Sequence[RunAccesses], most: int) -> None:
        super().__init__(runs, most)
        self.points = [list(range(1, run.length)) for run in runs]

    def _key(self, sequence: tuple[int, ...], at: tuple[int, ...]) -> tuple[object, ...]:
        return sequence, at


def priority_schedules(runs: Sequence[RunAccesses], depth: int, seed: int) -> Iterator[Schedule]:
    """Yield schedules from random priorities that change at ``depth - 1`` random positions.

    For n runs with k instructions in total, each schedule finds a defect of that depth with a
    probability of at least 1/(n k^(depth - 1)) (Burckhardt and others, "A Randomized Scheduler with
    Probabilistic Guarantees of Finding Bugs", 2010).
    """
    chosen = random.Random(seed)
    total = sum(run.length for run in runs)
    while True:
        priorities = list(range(len(runs)))
        chosen.shuffle(priorities)
        changes = sorted(chosen.randrange(1, max(2, total)) for _ in range(depth - 1))
        yield _by_priorities(runs, priorities, changes)


def _by_priorities(runs: Sequence[RunAccesses], priorities: list[int], changes: list[int]
                   ) -> Schedule:
    """Return the schedule in which the run with the highest priority always runs.

    :param priorities: the runs, highest priority first.
    :param changes: instruction counts at which the running run gets the lowest priority.
    """
    left = [run.length for run in runs]
    turns, done, queue = list[ScheduleTurn](), 0, list(priorities)
    for change in changes:
        while queue and change - done >= left[queue[0]]:
            done += left[queue[0]]
            turns.append(ScheduleTurn(queue.pop(0)))
        if not queue or change == done:
            continue
        run = queue.pop(0)
        turns.append(ScheduleTurn(run, change - done))
        left[run] -= change - done
        done = change
        queue.append(run)
    return (*turns, *(ScheduleTurn(run) for run in queue))


def random_schedules(runs: Sequence[RunAccesses], most: int, seed: int) -> Iterator[Schedule]:
    """Yield schedules with up to ``most`` preemptions at random positions."""
    chosen = random.Random(seed)
    while True:
        turns, left = list[ScheduleTurn](), [run.length for run in runs]
        run = chosen.randrange(len(runs))
        for _ in range(chosen.randint(1, most)):
            if left[run] <= 1:
                break
            count = chosen.randrange(1, left[run])
            turns.append(ScheduleTurn(run, count))
            left[run] -= count
            run = chosen.choice([other for other in range(len(runs)) if other != run])
        rest = [other for other in range(len(runs)) if other != run]
        chosen.shuffle(rest)
        yield (*turns, ScheduleTurn(run), *(ScheduleTurn(other) for other in rest))
