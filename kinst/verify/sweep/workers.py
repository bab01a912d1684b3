"""Workers that run the parts of a task: this process, forked processes, or a Dask cluster."""

import ctypes
import functools
import importlib
import itertools
import os
import platform
import socket
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, Generic, Self

from emu.elf.image import Image
from emu.host.child_processes import ended_pool, first_done, uninterrupted
from emu.host.errors import KinstError
from emu.host.extras import need
from emu.host.fingerprint import our_code
from emu.host.system import end_with
from kinst.verify.sweep.task import Item, Result, Task, begin_copy, carry_out

MAX_JOBS = 64
AHEAD = 4  # number of parts queued for each process
AHEAD_OF_THREAD = 2  # number of parts queued for each thread of a cluster
EVERY = 5.0  # interval in seconds at which a cluster's threads are counted
LOSSES = 20  # maximum number of lost workers that are replaced (on a cluster, for each part)
# mallopt(3) parameters (<malloc.h>), set to the highest values that glibc itself would choose
MALLOPT = {-1: 64 << 20, -3: 32 << 20}  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, in bytes
WAIT = 30  # seconds to wait for a response from the scheduler


@dataclass(frozen=True)
class Done(Generic[Item, Result]):
    """Completed part of a task: the items and their results."""

    items: Sequence[Item]
    results: list[Result]


class Workers(ABC):
    """Processes that run the parts of a sweep.

    :raises KinstError: if they cannot be used.
    """

    @abstractmethod
    def done(self, task: Task[Item, Result, Any], parts: Iterable[Sequence[Item]],
             ordered: bool = False) -> Iterator[Done[Item, Result]]:
        """Run the parts of a task, and request further parts while others run.

        :param ordered: yield parts in their order, not in the order of completion.
        """

    def close(self) -> None:
        """Stop the workers."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class Here(Workers):
    """A single worker: this process."""

    def done(self, task: Task[Item, Result, Any], parts: Iterable[Sequence[Item]],
             ordered: bool = False) -> Iterator[Done[Item, Result]]:
        """Run the parts one after another in this process."""
        for items in parts:
            yield Done(items, carry_out(task, items))


class Processes(Workers):
    """Forked copies of this process, which inherit the object prepared for a task.

    :param losses: number of lost processes that are replaced.
    :param advice: what a user can do if more are lost, and the option before it.
    """

    def __init__(self, jobs: int, losses: int = LOSSES, advice: tuple[str, str] = (
            "--jobs", "try fewer jobs or a smaller --memory")) -> None:
        self._jobs, self._losses = min(jobs, MAX_JOBS), losses
        self._advice = advice

    def done(self, task: Task[Item, Result, Any], parts: Iterable[Sequence[Item]],
             ordered: bool = False) -> Iterator[Done[Item, Result]]:
        """Run the parts in forked processes, and replace processes that die."""
        left, losses = iter(parts), 0
        asked: deque[Sequence[Item]] = deque()  # parts whose results are pending
        while True:
            asked.extend(itertools.islice(left, AHEAD * self._jobs - len(asked)))
            if not asked:
                return
            # A forked worker has nothing to clean up: it exits at once when this process is killed.
            pool = ProcessPoolExecutor(min(self._jobs, len(asked)), get_context("fork"), _begin,
                                       (os.getpid(), task.copied))
            # results of the first parts in ``asked``
            futures: deque[Future[list[Result]]] = deque()
            try:
                with ended_pool(pool):
                    while asked:
                        for items in itertools.islice(asked, len(futures), None):
                            with uninterrupted():
                                futures.append(pool.submit(carry_out, task, items))
                        ready = first_done(list(futures)[:1] if ordered else list(futures))
                        futures.rotate(-ready)
                        asked.rotate(-ready)
                        results = futures[0].result()
                        futures.popleft()
                        yield Done(asked.popleft(), results)
                        asked.extend(itertools.islice(left, AHEAD * self._jobs - len(asked)))
            except BrokenProcessPool:
                losses += 1
                if losses > self._losses:
                    lost = "a worker process was lost" if losses == 1 else (
                        f"worker processes were lost {losses} times")
                    option, advice = self._advice
                    raise KinstError(f"{option}: {lost}, perhaps because memory ran out; {advice}"
                                     ) from None


def _begin(parent: int, copied: bool) -> None:
    """Initialize a process of a pool; the process must not use its parent's open stores."""
    end_with(parent)
    begin_copy(copied)


@functools.cache
def _keep_memory() -> None:
    """Raise malloc's thresholds, which Dask lowers for its workers (mallopt(3)).

    Dask starts workers with MALLOC_TRIM_THRESHOLD_=65536, so that glibc returns memory to the
    system over and over, and a part takes a third longer.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # only glibc provides mallopt()
        for parameter, value in MALLOPT.items():
            mallopt(parameter, value)


@dataclass(frozen=True)
class Work:
    """Work for a cluster worker: a task, the items to process, and the client's code version.

    This is an object because Dask would search a list for futures.
    """

    task: Task[Any, Any, Any]
    items: Sequence[Any]
    code: str  # value of ``our_code()`` on the client


def carry_out_remotely(work: Work) -> bytes:
    """Run a part on a worker of a cluster and return the serialized results.

    Dask itself would serialize each object in the thread that maintains the worker's connections.

    :raises KinstError: if the worker has another version of kinst-emu.
    """
    if work.code != our_code():
        raise KinstError(f"--cluster: the worker on {platform.node()} has another version of "
                         "kinst-emu, so its results may differ; install the same version there")
    _keep_memory()
    return bytes(_protocol().serialize_bytes(carry_out(work.task, work.items)))


def _protocol() -> Any:
    return importlib.import_module("distributed.protocol")


class Cluster(Workers):
    """Workers of a Dask scheduler, which may join and leave during a sweep.

    :param address: address of the scheduler: ``tcp://HOST:PORT`` or ``HOST:PORT``.
    """

    def __init__(self, address: str) -> None:
        need("cluster", "--cluster")
        self._dask: Any = importlib.import_module("distributed")
        try:
            self._client = self._dask.Client(address, timeout=WAIT, set_as_default=False)
        except (OSError, ValueError) as error:
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise KinstError(f"--cluster {address}: no scheduler answers: {text}") from None
        self._address = address
        self._threads, self._ask_at = 0, 0.0

    def done(self, task: Task[Item, Result, Any], parts: Iterable[Sequence[Item]],
             ordered: bool = False) -> Iterator[Done[Item, Result]]:
        """Run the parts on the cluster, and resubmit the parts of lost workers."""
        client, code = self._client, our_code()
        lost = (self._dask.KilledWorker, self._dask.client.FutureCancelledError)
        left = enumerate(parts)
        # (index of the part, items of the part, number of lost workers)
        waiting: dict[Any, tuple[int, Sequence[Item], int]] = {}
        early: dict[int, Done[Item, Result]] = {}
        running, wanted = self._dask.as_completed(loop=client.loop), 0

        def submit(number: int, items: Sequence[Item], losses: int) -> None:
            future = client.submit(carry_out_remotely, Work(task, items, code), pure=False)
            waiting[future] = number, items, losses
            running.add(future)

        def fill() -> None:
            """Submit parts until all workers, including new workers, have enough parts queued."""
            room = self._room() - len(waiting) - (len(early) if ordered else 0)
            for number, items in itertools.islice(left, max(0 if waiting else 1, room)):
                submit(number, items, 0)

        fill()
        for future in running:
            number, items, losses = waiting.pop(future)
            try:
                results = _protocol().deserialize_bytes(future.result())
            except lost:
                if losses == LOSSES:
                    raise KinstError(f"--cluster {self._address}: more than {LOSSES} workers died "
                                     "while executing the same part of the sweep") from None
                submit(number, items, losses + 1)
                continue
            early[number] = Done(items, results)
            fill()
            if not ordered:
                wanted = number
            while wanted in early:
                yield early.pop(wanted)
                wanted += 1

    def _room(self) -> int:
        """Return how many parts may be submitted at the same time."""
        if time.monotonic() >= self._ask_at:
            self._threads = sum(self._client.nthreads().values())
            self._ask_at = time.monotonic() + EVERY
        return AHEAD_OF_THREAD * max(1, self._threads)

    def close(self) -> None:
        """Disconnect from the scheduler."""
        self._client.close()


def workers(jobs: int, cluster: str | None, losses: int = LOSSES) -> Workers:
    """Return the workers that the command line asks for.

    :param losses: number of lost local processes that are replaced (see ``Processes``).
    """
    if cluster is not None:
        return Cluster(cluster)
    return Here() if jobs <= 1 else Processes(jobs, losses)


def check_identity(image: Image, identity: str) -> None:
    """Check that the kernel on this worker is the same as the client's.

    :raises KinstError: if the kernel at that path, or its modules, are different here.
    """
    if image.identity != identity:
        raise KinstError(f"{image.path}: the kernel or its modules on the worker "
                         f"{socket.gethostname()} differ from the local ones; copy them there")
