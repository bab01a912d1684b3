"""What the workers of a sweep do.

A task says what becomes of items: of encodings, calls, pairs of calls, schedules.  It is sent to
the workers, and depends on nothing but what is in it, so that a part that was lost can be done
again by another worker.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Prepared = TypeVar("Prepared")
_one_at_a_time = threading.Lock()  # a worker of a cluster may have several threads
_held: tuple[Hashable, Any] | None = None  # what this process has prepared last, and for what
_inherited: object = None  # what another process uses, and must not be ended by this one


class Task(ABC, Generic[Item, Result, Prepared]):
    """A frozen dataclass, so that tasks can be sent and compared.

    :cvar copied: whether copies of a process can go on with what it has prepared.
    """

    copied: ClassVar[bool] = False

    @property
    def prepared_for(self) -> Hashable:
        """What is prepared once in a process for all parts; tasks that need the same are equal in
        this.  None: nothing is kept, and parts may be done at once by several threads."""
        return self

    @abstractmethod
    def prepare(self) -> Prepared:
        """Make what all parts need: a booted machine, for example.

        :raises KinstError: when a worker cannot have it.
        """

    @abstractmethod
    def results(self, prepared: Prepared, items: Sequence[Item]) -> list[Result]:
        """The result of each item, in their order."""


def hold(key: Hashable, prepared: object) -> None:
    """Have this process, and copies of it, take what is prepared already."""
    global _held
    _held = None if key is None else (key, prepared)


def prepared(task: Task[Any, Any, Prepared]) -> Prepared:
    """What this process has prepared for a task; it is made when it is not there.

    :raises KinstError: when it cannot be made.
    """
    if _held is None or _held[0] != task.prepared_for:
        hold(None, None)  # what it kept is given back before anything else is made
        hold(task.prepared_for, task.prepare())
    assert _held is not None
    found: Prepared = _held[1]
    return found


def begin_copy(copied: bool) -> None:
    """What a copy of a process does first.

    :param copied: of the task that it will carry out.
    """
    global _held, _inherited
    if not copied:
        _held, _inherited = None, _held


def carry_out(task: Task[Item, Result, Any], items: Sequence[Item]) -> list[Result]:
    """Do a part of a task, in this process.

    :raises KinstError: when it cannot be done here.
    """
    key = task.prepared_for
    if key is None:
        return task.results(task.prepare(), items)
    with _one_at_a_time:
        return task.results(prepared(task), items)
