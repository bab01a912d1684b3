"""Who carries out the parts of a sweep: this process, several on this machine, or a Dask cluster.

A part is a function of a module and its argument; parts depend on nothing but that, so that one
that was lost is done again by another worker.
"""

import ctypes
import functools
import importlib
import itertools
import os
import platform
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, TypeVar

from emu.elf.image import Image
from emu.host.child_processes import end_with, ended_pool, uninterrupted
from emu.host.errors import KinstError
from emu.host.fingerprint import our_code

Part = TypeVar("Part")
Result = TypeVar("Result")
MAX_JOBS = 64
AHEAD = 2  # parts that wait for each thread of a cluster
EVERY = 5.0  # seconds after which a cluster's workers are counted again
LOSSES = 20  # workers that may be lost with one part before it is taken to be what ends them
# malloc.h: mallopt's parameters, and what glibc itself comes to when nobody sets one (malloc.c)
MALLOPT = {-1: 64 << 20, -3: 32 << 20}  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD: bytes
WAIT = 30  # seconds for a scheduler to answer


class Workers(ABC):
    """:raises KinstError: when they cannot be used."""

    @abstractmethod
    def results(self, function: Callable[[Part], Result], parts: Sequence[Part]
                ) -> Iterator[tuple[int, Result]]:
        """The number and the result of each part, as they come."""

    def close(self) -> None:
        """They are not needed any more."""
        return None


class Here(Workers):
    """This process alone."""

    def results(self, function: Callable[[Part], Result], parts: Sequence[Part]
                ) -> Iterator[tuple[int, Result]]:
        yield from enumerate(map(function, parts))


class Processes(Workers):
    """Processes on this machine; one that is lost is replaced."""

    def __init__(self, jobs: int) -> None:
        self._jobs = min(jobs, MAX_JOBS)

    def results(self, function: Callable[[Part], Result], parts: Sequence[Part]
                ) -> Iterator[tuple[int, Result]]:
        rest, losses = set(range(len(parts))), 0
        while rest:
            # By fork: what is killed here leaves no process that waits for what it should do.
            pool = ProcessPoolExecutor(min(self._jobs, len(rest)), get_context("fork"),
                                       end_with, (os.getpid(),))
            try:
                with ended_pool(pool):
                    with uninterrupted():
                        futures = {pool.submit(function, parts[number]): number
                                   for number in sorted(rest)}
                    for future in as_completed(futures):
                        result = future.result()
                        rest.discard(futures[future])
                        yield futures[future], result
            except BrokenProcessPool:
                losses += 1
                if losses > LOSSES:
                    raise KinstError(f"--jobs: {losses} times a process was lost with its part of "
                                     "the sweep: is there too little memory?") from None


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
    """A part and what is to be done with it, as one thing: Dask looks through lists for futures,
    element by element."""

    function: Callable[[Any], Any]
    part: Any
    code: str  # ``our_code()`` of whoever asks


def carry_out(work: Work) -> bytes:
    """A part, on a worker of a cluster; as Dask sends it, which else looks at each object of the
    result, and does it in the thread that keeps up the worker's connections.

    :raises KinstError: on a worker that has another version of us.
    """
    if work.code != our_code():
        raise KinstError(f"--cluster: the worker on {platform.node()} has another version of "
                         "kinst-emu, whose answers would not be these: install the same there")
    _keep_memory()
    return bytes(_protocol().serialize_bytes(work.function(work.part)))


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

    def results(self, function: Callable[[Part], Result], parts: Sequence[Part]
                ) -> Iterator[tuple[int, Result]]:
        client, losses = self._client, [0] * len(parts)
        lost = (self._dask.KilledWorker, self._dask.client.FutureCancelledError)
        numbers: dict[Any, int] = {}
        waiting = iter(range(len(parts)))
        running = self._dask.as_completed(loop=client.loop)

        def submit(number: int) -> None:
            future = client.submit(carry_out, Work(function, parts[number], our_code()), pure=False)
            numbers[future] = number
            running.add(future)

        def fill() -> None:
            """Give everybody enough to do: workers may have come."""
            for number in itertools.islice(waiting, max(0, self._room() - len(numbers))):
                submit(number)

        fill()
        for future in running:
            number = numbers.pop(future)
            try:
                result = _protocol().deserialize_bytes(future.result())
            except lost:
                losses[number] += 1
                if losses[number] > LOSSES:
                    raise KinstError(f"--cluster {self._address}: a part of the sweep ends every "
                                     f"worker that it is given to ({LOSSES} are lost)") from None
                submit(number)
                continue
            fill()
            yield number, result

    def _room(self) -> int:
        """How many parts are given away at once."""
        if time.monotonic() >= self._ask_at:
            self._threads = sum(self._client.nthreads().values())
            self._ask_at = time.monotonic() + EVERY
        return AHEAD * max(1, self._threads)

    def close(self) -> None:
        self._client.close()


def workers(jobs: int, cluster: str | None) -> Workers:
    """Those that a user has asked for."""
    if cluster is not None:
        return Cluster(cluster)
    return Here() if jobs <= 1 else Processes(jobs)


def check_identity(image: Image, identity: str) -> None:
    """Refuse a kernel that is not the one that whoever sends the work has.

    :raises KinstError: on a worker that finds another kernel at that path.
    """
    if image.identity != identity:
        raise KinstError(f"{image.path}: a worker on {socket.gethostname()} finds another kernel, "
                         "or other modules, there than this machine")
