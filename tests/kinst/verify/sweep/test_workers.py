"""Tests of worker processes that carry out parts of a task and may die."""

import os
import signal
import time
from dataclasses import dataclass

import pytest

from emu.host.errors import KinstError
from kinst.verify.sweep.task import Task, hold
from kinst.verify.sweep.workers import Here, Processes


@dataclass(frozen=True)
class Fragile(Task):
    """Task that doubles numbers, and kills its process if one of the numbers is ``fatal``.

    Each kill removes a byte from ``file``.  An empty file prevents further kills.
    """

    file: str
    fatal: int

    @property
    def prepared_for(self):
        return None

    def prepare(self):
        return None

    def results(self, prepared, items):
        if self.fatal in items and os.path.getsize(self.file):
            os.truncate(self.file, os.path.getsize(self.file) - 1)
            os.kill(os.getpid(), signal.SIGKILL)
        return [2 * item for item in items]


@pytest.fixture
def fragile(tmp_path):
    def made(fatal, times):
        (tmp_path / "left").write_bytes(b"x" * times)
        return Fragile(str(tmp_path / "left"), fatal)
    return made


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("fatal", [0, 3, 39])
def test_a_lost_process_loses_no_parts(fragile, fatal, ordered):
    """The parent produces parts and consumes results while a worker process dies."""
    def parts():
        for number in range(40):
            time.sleep(0.002)
            yield [number]

    found = []
    for done in Processes(2).done(fragile(fatal, 2), parts(), ordered):
        time.sleep(0.002)
        found += zip(done.items, done.results, strict=True)
    assert sorted(found) == [(number, 2 * number) for number in range(40)]
    assert not ordered or found == sorted(found)


def test_a_part_that_kills_every_process_ends_the_sweep(fragile):
    with pytest.raises(KinstError, match="worker processes were lost 3 times"):
        list(Processes(2, losses=2).done(fragile(1, 100), [[0], [1]]))


def test_no_more_processes_than_parts_are_started(monkeypatch, fragile):
    counts = []
    monkeypatch.setattr("kinst.verify.sweep.workers.ProcessPoolExecutor",
                        lambda count, *_rest: counts.append(count) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(Processes(64).done(fragile(9, 0), [[0], [1]]))
    assert counts == [2]


@dataclass(frozen=True)
class Held(Task):
    """Task whose result for each item is the ID of the process that prepared the task."""

    copied = True

    def prepare(self):
        return os.getpid()

    def results(self, prepared, items):
        return [prepared] * len(items)


@dataclass(frozen=True)
class Alone(Held):
    """Task whose prepared value cannot be used by forked worker processes."""

    copied = False


def test_worker_processes_inherit_prepared_values_if_the_task_allows_it():
    for task in (Held(), Alone()):
        (here,) = Here().done(task, [[1]])
        assert here.results == [os.getpid()]
        (there,) = Processes(2).done(task, [[1]])
        assert (there.results == here.results) == task.copied
    hold(None, None)
