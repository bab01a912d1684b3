"""Processes that try orders, or pairs.  Each is a copy of this one, with the machine at the state
from which all begin; it is told what to try and says what is wrong with it, both as text."""

import contextlib
import itertools
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol

from emu.host.child_processes import end_with, ended_pool, uninterrupted
from emu.host.errors import KinstError

AHEAD = 4  # chunks for each process are made before their answers are wanted


class Answerer(Protocol):
    def answer(self, asked: str) -> str: ...


Answers = list[tuple[str, str]]
_ANSWERER: Answerer | None = None  # of this process, when it is made


def _in_worker(some: Sequence[str]) -> Answers:
    assert _ANSWERER is not None
    return [(asked, _ANSWERER.answer(asked)) for asked in some]


@contextlib.contextmanager
def workers(answerer: Answerer, count: int, chunk: int = 32) -> Iterator[
        Callable[[Iterable[str]], Iterator[tuple[str, str]]]]:
    """Have so many processes answer; answers come in the order of what is asked, each behind it.
    They are ended with the block, whatever they do then.

    :param chunk: what a process is asked at once.
    :raises KinstError: of the answers, when a process is lost.
    """
    global _ANSWERER
    _ANSWERER = answerer
    # By fork: the machine is not made again.
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("fork"), end_with, (os.getpid(),))

    def answers(all_asked: Iterable[str]) -> Iterator[tuple[str, str]]:
        waiting, left = deque[Future[Answers]](), iter(all_asked)
        while True:
            try:
                while (len(waiting) < AHEAD * count
                       and (some := list(itertools.islice(left, chunk)))):
                    with uninterrupted():
                        waiting.append(pool.submit(_in_worker, some))
                if not waiting:
                    return
                found = waiting.popleft().result()
            except BrokenProcessPool:
                raise KinstError("--jobs: a worker process was lost: is there too little memory? "
                                 "Give fewer jobs, or less --memory") from None
            yield from found
    try:
        with ended_pool(pool):
            yield answers
    finally:
        _ANSWERER = None
