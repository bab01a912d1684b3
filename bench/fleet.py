"""Simulation of machines that test the relocation of many kernels at every commit of a week.

Nothing here runs a kernel: durations and sizes are rates that ``bench/scale`` has measured, and how
much a commit changes is a parameter.
"""

import heapq
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

HOUR = 3600.0
DAY = 24 * HOUR
WEEK = 7 * DAY
BUSY_HOURS = range(8, 20)  # UTC; commits are three times as frequent as in the other hours
BUSY = 3.0


@dataclass(frozen=True)
class Rates:
    """Measured rates of one architecture, on one core.

    :param encodings: distinct encodings of a build.
    :param fixed: seconds per build for reading, surveying and booting, on each machine.
    :param each: seconds per executed encoding.
    """

    encodings: int
    fixed: float
    each: float


@dataclass(frozen=True)
class Plan:
    """A week's commits, and the machines and stores for their tests.

    :param commits: commits in the week.
    :param kernels: configurations of each architecture.
    :param touched: share of the configurations whose kernel a commit changes.
    :param own: share of a changed kernel's encodings that no earlier build with this configuration
        has.
    :param shared: share of the new encodings that another configuration has already at this commit.
    :param machines: machines of ``cores`` cores each.
    :param efficiency: speed of ``cores`` workers as a share of ``cores`` times one worker's speed.
    :param written: results that the writer of a store accepts per second.
    :param stores: stores, each with its own writer.
    :param bytes_new: size in a store of an encoding with its result and place.
    :param bytes_known: size of the place of an encoding whose result is known.
    """

    commits: int
    kernels: int
    touched: float
    own: float
    shared: float
    machines: int
    cores: int
    efficiency: float
    written: float
    stores: int
    bytes_new: int
    bytes_known: int


@dataclass(frozen=True)
class Week:
    """Work, times and storage of a simulated week.

    :param builds: builds that were tested.
    :param executed: encodings that were executed.
    :param known: encodings whose results were known.
    :param core_hours: core hours of all machines that were busy.
    :param used: share of the machines' time in which they were busy, until the end of the week
        or of the last build, whichever is later.
    :param latencies: seconds from each commit to the end of its last build, sorted.
    :param writers: share of the time in which the writers of the stores were busy.
    :param stored: bytes added to the stores.
    """

    builds: int
    executed: int
    known: int
    core_hours: float
    used: float
    latencies: list[float]
    writers: float
    stored: int

    def latency(self, share: float) -> float:
        """Return the seconds within which this share of the commits was done."""
        return self.latencies[min(len(self.latencies) - 1, int(share * len(self.latencies)))]


def arrivals(count: int, chance: random.Random) -> list[float]:
    """Return the sorted times of commits in a week, in seconds; more by day than by night."""
    weights = [BUSY if hour % 24 in BUSY_HOURS else 1.0 for hour in range(7 * 24)]
    return sorted(HOUR * (hour + chance.random())
                  for hour in chance.choices(range(7 * 24), weights, k=count))


def builds(plan: Plan, rates: dict[str, Rates], chance: random.Random
           ) -> Iterator[tuple[int, float, str, bool]]:
    """Yield (commit, time, architecture, first) of each changed build, in the order of commits.

    ``first`` is whether no other build of this architecture has been tested at this commit.
    """
    for commit, time in enumerate(arrivals(plan.commits, chance)):
        for arch in rates:
            first = True
            for _configuration in range(plan.kernels):
                if chance.random() < plan.touched:
                    yield commit, time, arch, first
                    first = False


def simulated(plan: Plan, rates: dict[str, Rates], seed: int = 1) -> Week:
    """Run a week's builds through the machines, the oldest build first.

    A build is tested by all cores of one machine.  The writer of its store writes the results in
    the order in which the builds were tested, while other builds are tested.
    """
    chance = random.Random(seed)
    free = [0.0] * plan.machines
    tested: list[list[tuple[float, int, float]]] = [[] for _store in range(plan.stores)]
    done: dict[int, float] = {}
    arrived: dict[int, float] = {}
    total: dict[str, float] = defaultdict(float)
    count = 0
    for commit, time, arch, first in builds(plan, rates, chance):
        rate = rates[arch]
        new = int(rate.encodings * plan.own * (1.0 if first else 1.0 - plan.shared))
        begin = max(time, heapq.heappop(free))
        busy = rate.fixed + new * rate.each / (plan.cores * plan.efficiency)
        heapq.heappush(free, begin + busy)
        writing = rate.encodings / plan.written
        tested[count % plan.stores].append((begin + busy, commit, writing))
        arrived[commit] = time
        count += 1
        total["busy"] += busy
        total["writing"] += writing
        total["new"] += new
        total["known"] += rate.encodings - new
    for builds_of_store in tested:
        written = 0.0
        for end, commit, writing in sorted(builds_of_store):
            written = max(written, end) + writing
            done[commit] = max(done.get(commit, 0.0), written)
    end = max([*done.values(), WEEK])
    return Week(
        count, int(total["new"]), int(total["known"]), total["busy"] * plan.cores / HOUR,
        total["busy"] / (plan.machines * end),
        sorted(done[commit] - arrived[commit] for commit in done) or [0.0],
        total["writing"] / (plan.stores * end),
        int(total["new"] * plan.bytes_new + total["known"] * plan.bytes_known))
