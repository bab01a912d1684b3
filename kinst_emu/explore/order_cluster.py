"""Orders of a few runs, tried by the workers of a Dask cluster."""

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from images import catalog
from kinst.verify.sweep.workers import Cluster, check_identity
from kinst_emu.explore.exploration import Runs, for_runs, stage_of
from kinst_emu.explore.explorer import Explorer, Search

CHUNK = 64  # orders that a worker is asked at once
_ONE_MACHINE = threading.Lock()  # a worker may have several threads
MOST_CHUNKS = 500  # that are listed before all answers to them are there


@dataclass(frozen=True)
class OrderWork:
    """What a worker needs to know: the kernel's file, and files of C, are where they are here.

    :param identity: of the kernel.
    """

    kernel: str
    modules: tuple[str, ...]
    identity: str
    runs: Runs
    memory: int
    unchecked: bool
    cpus: int | None
    search: Search


@dataclass(frozen=True)
class OrderPart:
    """:param orders: as text."""

    work: OrderWork
    orders: tuple[str, ...]


@functools.lru_cache(maxsize=1)
def _prepared(work: OrderWork) -> Explorer:
    """A worker's machine, which it keeps; the serial orders have been executed on it."""
    image = for_runs(catalog.find(work.kernel, list(work.modules)), len(work.runs.texts), work.cpus)
    check_identity(image, work.identity)
    stage, judge = stage_of(image, work.runs, work.memory, unchecked=work.unchecked)
    explorer = Explorer(stage, work.search, judge)
    explorer.learn()
    return explorer


def judge_part(part: OrderPart) -> list[str]:
    """What is wrong with each order.

    :raises KinstError: where the worker has no such kernel, or another one.
    """
    with _ONE_MACHINE:
        explorer = _prepared(part.work)
        return [explorer.answer(text) for text in part.orders]


@contextlib.contextmanager
def order_workers(address: str, work: OrderWork) -> Iterator[
        Callable[[Iterable[str]], Iterator[tuple[str, str]]]]:
    """As ``explore.workers.workers``: answers come in the order of what is asked.

    :raises KinstError: when no scheduler is there.
    """
    cluster = Cluster(address)

    def answers(asked: Iterable[str]) -> Iterator[tuple[str, str]]:
        left = iter(asked)
        while parts := list(itertools.islice(_parts(work, left), MOST_CHUNKS)):
            early: dict[int, list[str]] = {}
            wanted = 0
            for number, found in cluster.results(judge_part, parts):
                early[number] = found
                while wanted in early:
                    yield from zip(parts[wanted].orders, early.pop(wanted), strict=True)
                    wanted += 1
    try:
        yield answers
    finally:
        cluster.close()


def _parts(work: OrderWork, orders: Iterator[str]) -> Iterator[OrderPart]:
    while some := tuple(itertools.islice(orders, CHUNK)):
        yield OrderPart(work, some)
