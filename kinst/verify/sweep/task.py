"""Tasks that the workers of a sweep carry out.

A task computes results for items such as encodings, calls, pairs of calls or schedules.  It is sent
to the workers and depends only on its own fields, so that another worker can repeat a part that was
lost.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Prepared = TypeVar("Prepared")
_one_at_a_time = threading.Lock()  # a worker of a cluster may have several threads
_held: tuple[Hashable, Any] | None = None  # key and object that this process prepared most recently
_inherited: object = None  # the parent's object; this reference prevents its finalization


class Task(ABC, Generic[Item, Result, Prepared]):
    """Description of work on items: a frozen dataclass that can be compared and sent to workers.

    :cvar copied: whether forked copies of a process can use what the process has prepared.
    """

    copied: ClassVar[bool] = False

    @property
    def prepared_for(self) -> Hashable:
        """Key of the object that a process prepares once; tasks with equal keys share the object.

        None: a process keeps nothing, and several of its threads may run parts at the same time.
        """
        return self

    @abstractmethod
    def prepare(self) -> Prepared:
        """Prepare the object that all parts need, such as a booted machine.

        :raises KinstError: if that is not possible on this worker.
        """

    @abstractmethod
    def results(self, prepared: Prepared, items: Sequence[Item]) -> list[Result]:
        """Return the result of each item, in the order of the items."""


def hold(key: Hashable, prepared: object) -> None:
    """Set the prepared object for this process and future forks; key None discards the object."""
    global _held
    _held = None if key is None else (key, prepared)


def prepared(task: Task[Any, Any, Prepared]) -> Prepared:
    """Return the prepared object for a task, after preparing the object if necessary.

    :raises KinstError: if it cannot be prepared.
    """
    if _held is None or _held[0] != task.prepared_for:
        hold(None, None)  # release the previous object before preparing the new object
        hold(task.prepared_for, task.prepare())
    assert _held is not None
    found: Prepared = _held[1]
    return found


def begin_copy(copied: bool) -> None:
    """Initialize a forked process; unless ``copied``, drop the prepared object that it inherited.

    :param copied: ``Task.copied`` of the task that the copy will carry out.
    """
    global _held, _inherited
    if not copied:
        _held, _inherited = None, _held


def carry_out(task: Task[Item, Result, Any], items: Sequence[Item]) -> list[Result]:
    """Run a part of a task in this process.

    :raises KinstError: if this process cannot run it.
    """
    key = task.prepared_for
    if key is None:
        return task.results(task.prepare(), items)
    with _one_at_a_time:
        return task.results(prepared(task), items)
