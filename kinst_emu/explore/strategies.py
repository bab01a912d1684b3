"""Which orders are tried: all with few preemptions, those of random priorities, or random ones."""

import bisect
import itertools
import math
import random
from collections.abc import Iterator, Sequence

from kinst_emu.explore.accesses import RunAccesses, points, shared_places
from kinst_emu.explore.order import Order, OrderTurn

MOST_LISTED = 200_000  # orders of one sequence of runs
STRATEGIES = ("all", "pct", "random")


def serial_orders(runs: int) -> list[Order]:
    return [tuple(OrderTurn(run) for run in order) for order in
            itertools.permutations(range(runs))]


class Preemptions:
    """All orders with at most so many preemptions, each before an access to a place that another
    run uses, too; of those that bring the accesses to each place into the same order, one.

    :param runs: what each did when it ran alone.
    """

    def __init__(self, runs: Sequence[RunAccesses], most: int) -> None:
        self._runs, self._most = runs, most
        self.shared = shared_places(runs)
        self.points = [points(run, self.shared) for run in runs]
        self.left_out, self.listed = 0, True
        # By run: of each shared place, where it is used.
        self._uses = [{place: sorted(run.every[place])
                       for place in self.shared & run.every.keys()} for run in runs]

    def estimate(self, preemptions: int) -> int:
        """About how many orders have just so many."""
        total = 0
        for sequence in self._sequences(preemptions):
            product = 1
            for run in sequence[:preemptions]:
                product *= len(self.points[run])
            total += product
        return total

    def _sequences(self, preemptions: int) -> list[tuple[int, ...]]:
        """Which run is preempted by which, and the order in which the rest is done."""
        runs = range(len(self._runs))
        found = []
        for head in itertools.product(runs, repeat=preemptions + 1):
            if any(a == b for a, b in itertools.pairwise(head)):
                continue
            left = [run for run in runs if run != head[-1]]
            found += [(*head, *rest) for rest in itertools.permutations(left)]
        return found

    def orders(self, preemptions: int, seed: int) -> Iterator[Order]:
        """Those with just so many, by chance spread over all: at most MOST_LISTED of each sequence
        of runs (``listed`` is then False)."""
        seen = set[tuple[object, ...]]()
        chosen = random.Random(seed)
        choices = [self._choices(sequence, preemptions, chosen)
                   for sequence in self._sequences(preemptions)]
        for one in itertools.chain.from_iterable(itertools.zip_longest(*choices)):
            if one is None:
                continue
            sequence, at = one
            key = self._key(sequence, at)
            if key in seen:
                self.left_out += 1
                continue
            seen.add(key)
            yield self._order(sequence, at)

    def _choices(self, sequence: tuple[int, ...], preemptions: int, chosen: random.Random
                 ) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """(sequence, where each of its first runs is preempted, in instructions of its own)."""
        points = [self.points[run] for run in sequence[:preemptions]]
        size = math.prod(map(len, points))
        self.listed &= size <= MOST_LISTED
        numbers = range(size) if preemptions == 1 else chosen.sample(
            range(size), min(size, MOST_LISTED))
        for number in numbers:
            at = list[int]()
            for some in points:
                number, index = divmod(number, len(some))
                at.append(some[index])
            reached: dict[int, int] = {}
            for run, index in zip(sequence, at, strict=False):
                if index <= reached.get(run, -1):
                    break
                reached[run] = index
            else:
                yield sequence, tuple(at)

    def _key(self, sequence: tuple[int, ...], at: tuple[int, ...]) -> tuple[object, ...]:
        """What order the accesses to each shared place come in, as far as it is foreseen."""
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

    def _order(self, sequence: tuple[int, ...], at: tuple[int, ...]) -> Order:
        turns, reached = [], [0] * len(self._runs)
        for run, index in zip(sequence, at, strict=False):
            if index > reached[run]:
                turns.append(OrderTurn(run, index - reached[run]))
            reached[run] = index
        return (*turns, *(OrderTurn(run) for run in sequence[len(at) :]))


def priority_orders(runs: Sequence[RunAccesses], depth: int, seed: int) -> Iterator[Order]:
    """Random priorities, which change at ``depth - 1`` random places: of n runs with k instructions
    in all, one order finds a defect of that depth with a probability of at least
    1/(n k^(depth - 1)) (Burckhardt and others, "A Randomized Scheduler with Probabilistic
    Guarantees of Finding Bugs", 2010)."""
    chosen = random.Random(seed)
    total = sum(run.length for run in runs)
    while True:
        priorities = list(range(len(runs)))
        chosen.shuffle(priorities)
        changes = sorted(chosen.randrange(1, max(2, total)) for _ in range(depth - 1))
        yield _by_priorities(runs, priorities, changes)


def _by_priorities(runs: Sequence[RunAccesses], priorities: list[int], changes: list[int]
                   ) -> Order:
    """:param priorities: the runs, the first one's highest."""
    left = [run.length for run in runs]
    turns, done, queue = list[OrderTurn](), 0, list(priorities)
    for change in changes:
        while queue and change - done >= left[queue[0]]:
            done += left[queue[0]]
            turns.append(OrderTurn(queue.pop(0)))
        if not queue or change == done:
            continue
        run = queue.pop(0)
        turns.append(OrderTurn(run, change - done))
        left[run] -= change - done
        done = change
        queue.append(run)
    return (*turns, *(OrderTurn(run) for run in queue))


def random_orders(runs: Sequence[RunAccesses], most: int, seed: int) -> Iterator[Order]:
    """So many preemptions at the most, anywhere."""
    chosen = random.Random(seed)
    while True:
        turns, left = list[OrderTurn](), [run.length for run in runs]
        run = chosen.randrange(len(runs))
        for _ in range(chosen.randint(1, most)):
            if left[run] <= 1:
                break
            count = chosen.randrange(1, left[run])
            turns.append(OrderTurn(run, count))
            left[run] -= count
            run = chosen.choice([other for other in range(len(runs)) if other != run])
        rest = [other for other in range(len(runs)) if other != run]
        chosen.shuffle(rest)
        yield (*turns, OrderTurn(run), *(OrderTurn(other) for other in rest))
