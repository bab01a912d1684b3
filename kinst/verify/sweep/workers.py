"""Who carries out the parts of a task: this process, copies of it, or a Dask cluster."""

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
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, Generic, Self

from emu.elf.image import Image
from emu.host.child_processes import end_with, ended_pool, uninterrupted
from emu.host.errors import KinstError
from emu.host.fingerprint import our_code
from kinst.verify.sweep.task import Item, Result, Task, begin_copy, carry_out

MAX_JOBS = 64
AHEAD = 4  # parts that wait for each process
AHEAD_OF_THREAD = 2  # for each thread of a cluster
EVERY = 5.0  # seconds after which a cluster's workers are counted again
LOSSES = 20  # workers that may be lost with one part before it is taken to be what ends them
# malloc.h: mallopt's parameters, and what glibc itself comes to when nobody sets one (malloc.c)
MALLOPT = {-1: 64 << 20, -3: 32 << 20}  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD: bytes
WAIT = 30  # seconds for a scheduler to answer


@dataclass(frozen=True)
class Done(Generic[Item, Result]):
    """A part that was done: its items, and the result of each."""

    items: Sequence[Item]
    results: list[Result]


class Workers(ABC):
    """What does the parts of a sweep: this process, copies of it, or a cluster.

    :raises KinstError: when they cannot be used.
    """

    @abstractmethod
    def done(self, task: Task[Item, Result, Any], parts: Iterable[Sequence[Item]],
             ordered: bool = False) -> Iterator[Done[Item, Result]]:
        """Do the parts of a task; they are asked for while others are done.

        :param ordered: they come in their order, otherwise as they are done.
        """

    def close(self) -> None:
        """End them."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class Here(Workers):
    """This process alone."""

    def done(self, task: Task[Item, Result, Any], parts: Iterable[Sequence[Item]],
             ordered: bool = False) -> Iterator[Done[Item, Result]]:
        for items in parts:
            yield Done(items, carry_out(task, items))


class Processes(Workers):
    """Copies of this process, which have what it holds for a task.

    :param losses: how often a lost one is replaced.
    """

    def __init__(self, jobs: int, losses: int = LOSSES) -> None:
        self._jobs, self._losses = min(jobs, MAX_JOBS), losses

    def done(self, task: Task[Item, Result, Any], parts: Iterable[Sequence[Item]],
             ordered: bool = False) -> Iterator[Done[Item, Result]]:
        left, losses = iter(parts), 0
        asked: deque[Sequence[Item]] = deque()  # parts of which there are no results yet
        while True:
            asked.extend(itertools.islice(left, AHEAD * self._jobs - len(asked)))
            if not asked:
                return
            # A forked worker ends at once when this process is killed: it has nothing to finish.
            pool = ProcessPoolExecutor(min(self._jobs, len(asked)), get_context("fork"), _begin,
                                       (os.getpid(), task.copied))
            futures: deque[Future[list[Result]]] = deque()  # of the first of them
            try:
                with ended_pool(pool):
                    while asked:
                        for items in itertools.islice(asked, len(futures), None):
                            with uninterrupted():
                                futures.append(pool.submit(carry_out, task, items))
                        if not ordered:
                            wait(futures, return_when=FIRST_COMPLETED)
                            ready = next(n for n, one in enumerate(futures) if one.done())
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
                        f"{losses} times a worker process was lost with its part")
                    raise KinstError(f"--jobs: {lost}: is there too little memory? Give fewer "
                                     "jobs, or less --memory") from None


def _begin(parent: int, copied: bool) -> None:
    """What a process of a pool does first.  It must not touch a store that its parent has open."""
    end_with(parent)
    begin_copy(copied)


@functools.cache
def _keep_memory() -> None:
    """Dask starts its workers with MALLOC_TRIM_THRESHOLD_=65536: glibc gives memory back to the
    system again and again then, and a part takes a third longer (mallopt(3))."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc
        for parameter, value in MALLOPT.items():
            mallopt(parameter, value)


@dataclass(frozen=True)
class Work:
    """A part and its task, as one thing: Dask looks through lists for futures, element by element.
    """

    task: Task[Any, Any, Any]
    items: Sequence[Any]
    code: str  # ``our_code()`` of whoever asks


def carry_out_remotely(work: Work) -> bytes:
    """Do a part on a worker of a cluster; the results as Dask sends them, which otherwise looks at
    each object, in the thread that keeps up the worker's connections.

    :raises KinstError: on a worker that has another version of us.
    """
    if work.code != our_code():
        raise KinstError(f"--cluster: the worker on {platform.node()} has another version of "
                         "kinst-emu, whose answers would not be these: install the same there")
    _keep_memory()
    return bytes(_protocol().serialize_bytes(carry_out(work.task, work.items)))


def _protocol() -> Any:
    return importlib.import_module("distributed.protocol")


class Cluster(Workers):
    """The workers of a Dask scheduler; they come and go.

    :param address: of the scheduler: ``tcp://HOST:PORT`` or ``HOST:PORT``.
    """

    def __init__(self, address: str) -> None:
        try:
            self._dask: Any = importlib.import_module("distributed")
        except ImportError:
            raise KinstError("--cluster needs the package distributed: pip install "
                             "'kinst-emu[cluster]'") from None
        try:
            self._client = self._dask.Client(address, timeout=WAIT, set_as_default=False)
        except (OSError, ValueError) as error:
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise KinstError(f"--cluster {address}: no scheduler answers there: {text}") from None
        self._address = address
        self._threads, self._ask_at = 0, 0.0

    def done(self, task: Task[Item, Result, Any], parts: Iterable[Sequence[Item]],
             ordered: bool = False) -> Iterator[Done[Item, Result]]:
        client, code = self._client, our_code()
        lost = (self._dask.KilledWorker, self._dask.client.FutureCancelledError)
        left = enumerate(parts)
        waiting: dict[Any, tuple[int, Sequence[Item], int]] = {}  # number, items, losses
        early: dict[int, Done[Item, Result]] = {}
        running, wanted = self._dask.as_completed(loop=client.loop), 0

        def submit(number: int, items: Sequence[Item], losses: int) -> None:
            future = client.submit(carry_out_remotely, Work(task, items, code), pure=False)
            waiting[future] = number, items, losses
            running.add(future)

        def fill() -> None:
            """Give everybody enough to do: workers may have come."""
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
                    raise KinstError(f"--cluster {self._address}: a part of the sweep ends every "
                                     f"worker that it is given to ({LOSSES} are lost)") from None
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
        """How many parts are given away at once."""
        if time.monotonic() >= self._ask_at:
            self._threads = sum(self._client.nthreads().values())
            self._ask_at = time.monotonic() + EVERY
        return AHEAD_OF_THREAD * max(1, self._threads)

    def close(self) -> None:
        self._client.close()


def workers(jobs: int, cluster: str | None, losses: int = LOSSES) -> Workers:
    """Those that a user has asked for.

    :param losses: of processes on this machine: see ``Processes``.
    """
    if cluster is not None:
        return Cluster(cluster)
    return Here() if jobs <= 1 else Processes(jobs, losses)


def check_identity(image: Image, identity: str) -> None:
    """Refuse a kernel that is not the one that whoever sends the work has.

    :raises KinstError: on a worker that finds another kernel at that path.
    """
    if image.identity != identity:
        raise KinstError(f"{image.path}: a worker on {socket.gethostname()} finds another kernel, "
                         "or other modules, there than this machine")
