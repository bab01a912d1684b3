"""Lock that lets one thread at a time use a machine, and forked children not at all."""

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Concatenate, ParamSpec, Protocol, Self, TypeVar

from emu.host.errors import MachineError

P = ParamSpec("P")
R = TypeVar("R")


class Turn:
    """Reentrant lock that a thread holds while it uses a machine; a context manager.

    A second thread gets an error instead of waiting: a program that uses one machine in two threads
    at once has a bug.

    :raises MachineError: in ``with``, when another thread holds the lock, or in a forked process.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()

    @property
    def is_ours(self) -> bool:
        """Whether the current process created the machine, as opposed to a forked child."""
        return os.getpid() == self._process

    def _check(self) -> None:
        if not self.is_ours:
            raise MachineError(f"this machine belongs to process {self._process} and cannot be "
                               "used in a forked child: boot or restore another machine in this "
                               "process")

    @contextlib.contextmanager
    def waited(self) -> Iterator[None]:
        """Hold the lock in a ``with`` block, after waiting for another thread to release it.

        For operations that must always happen, like the end of a ``with`` block.

        :raises MachineError: in a forked process.
        """
        self._check()
        with self._lock:
            yield

    def __enter__(self) -> Self:
        self._check()
        if not self._lock.acquire(blocking=False):
            raise MachineError("another thread is using this machine: only one thread can use it "
                               "at a time")
        return self

    def __exit__(self, *_error: object) -> None:
        self._lock.release()


class HasTurn(Protocol):
    """Object whose ``turn`` is the lock of a machine."""

    @property
    def turn(self) -> Turn:
        """Lock of the machine."""
        ...


T = TypeVar("T", bound=HasTurn)


def in_turn(method: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
    """Decorate a method so that it holds the machine's lock while it runs."""
    @functools.wraps(method)
    def wrapped(self: T, /, *arguments: P.args, **options: P.kwargs) -> R:
        with self.turn:
            return method(self, *arguments, **options)

    return wrapped
