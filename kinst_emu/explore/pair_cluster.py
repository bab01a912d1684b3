"""Pairs of a corpus, tried by the workers of a Dask cluster."""

import functools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dtrace.calls.prototypes import Prototypes
from images import catalog
from kinst.verify.sweep.workers import Cluster, check_identity
from kinst_emu.explore.exploration import for_runs
from kinst_emu.explore.pairs import CorpusCall, PairStage, explore_pair, read_lines, with_programs

_ONE_MACHINE = threading.Lock()  # a worker may have several threads


@dataclass(frozen=True)
class PairWork:
    """What a worker needs to know: the kernel's file, and files of C, are where they are here.

    :param identity: of the kernel.
    :param lines: of the corpus.
    """

    kernel: str
    modules: tuple[str, ...]
    identity: str
    lines: tuple[str, ...]
    memory: int
    unchecked: bool
    cpus: int | None
    orders: int
    seed: int


@dataclass(frozen=True)
class PairPart:
    """:param pair: the numbers of two lines."""

    work: PairWork
    pair: tuple[int, int]


@functools.lru_cache(maxsize=1)
def _prepared(work: PairWork) -> tuple[PairStage, list[CorpusCall]]:
    """A worker's machine, which it keeps."""
    image = for_runs(catalog.find(work.kernel, list(work.modules)), 2, work.cpus)
    check_identity(image, work.identity)
    prototypes = None if work.unchecked else Prototypes(image)
    image, corpus = with_programs(image, read_lines("the corpus", work.lines, image, prototypes))
    return PairStage(image, work.memory, prototypes), corpus


def explore_part(part: PairPart) -> dict[str, object]:
    """A row of the store.

    :raises KinstError: where the worker has no such kernel, or another one.
    """
    with _ONE_MACHINE:
        stage, corpus = _prepared(part.work)
        one, other = (corpus[number] for number in part.pair)
        return explore_pair(stage, one, other, part.work.orders, part.work.seed)


def rows_of_cluster(address: str, work: PairWork, pairs: Sequence[tuple[int, int]]
                    ) -> Iterator[dict[str, object]]:
    """What comes of each pair, as it comes.

    :raises KinstError: when no scheduler is there.
    """
    cluster = Cluster(address)
    try:
        for _number, row in cluster.results(explore_part, [PairPart(work, one) for one in pairs]):
            yield row
    finally:
        cluster.close()
