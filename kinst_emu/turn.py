"""Who uses a machine: one thread at a time, of the process that has made it."""

import functools
import os
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, Self, TypeVar

from emu.errors import MachineError

P = ParamSpec("P")
R = TypeVar("R")


class Turn:
    """Held while a machine is used, by its thread as often as it likes; a context manager.

    Nobody waits for it: a program that uses one machine in two threads at once is mistaken, and is
    told so.

    :raises MachineError: in ``with``, when another thread holds it, or in a forked process.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        if os.getpid() != self._process:
            raise MachineError(f"this machine is of process {self._process}, which has forked: "
                               "boot or restore another one here")
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
    """A method that uses the machine."""
    @functools.wraps(method)
    def held(self: T, /, *arguments: P.args, **options: P.kwargs) -> R:
        with self.turn:
            return method(self, *arguments, **options)

    return held
