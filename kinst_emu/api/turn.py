"""Who uses a machine: one thread at a time, of the process that has made it."""

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
    """A lock that a thread holds while it uses the machine; a context manager, which may be entered
    again by the same thread.

    A second thread does not wait for it, but gets an error: a program that uses one machine in two
    threads at once has a mistake.

    :raises MachineError: in ``with``, when another thread holds it, or in a forked process.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()

    @property
    def is_ours(self) -> bool:
        """Whether this is the process that has made the machine, and no child that it forked."""
        return os.getpid() == self._process

    def _check(self) -> None:
        if not self.is_ours:
            raise MachineError(f"this machine is of process {self._process}, which has forked: "
                               "boot or restore another one here")

    @contextlib.contextmanager
    def waited(self) -> Iterator[None]:
        """Hold it, after another thread has let go of it: for what has to be done in any case, like
        the end of a ``with``.

        :raises MachineError: in a forked process.
        """
        self._check()
        with self._lock:
            yield

    def __enter__(self) -> Self:
        self._check()
        if not self._lock.acquire(blocking=False):
            raise MachineError("another thread is using this machine: one uses it at a time")
        return self

    def __exit__(self, *_error: object) -> None:
        self._lock.release()


class HasTurn(Protocol):
    """A machine, or what is used like one."""

    @property
    def turn(self) -> Turn: ...


T = TypeVar("T", bound=HasTurn)


def in_turn(method: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
    """Make a method hold the machine's turn while it runs."""
    @functools.wraps(method)
    def wrapped(self: T, /, *arguments: P.args, **options: P.kwargs) -> R:
        with self.turn:
            return method(self, *arguments, **options)

    return wrapped
