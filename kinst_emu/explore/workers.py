"""Processes that try orders, or pairs.  Each is a copy of this one, with the machine at the state
from which all begin; it is told what to try and says what is wrong with it, both as text."""

import contextlib
import multiprocessing
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

AHEAD = 4  # times as many as a process is told at once are made before they are wanted


class Answerer(Protocol):
    def answer(self, asked: str) -> str: ...


_ANSWERER: Answerer | None = None  # of this process, when it is made


def _in_worker(asked: str) -> tuple[str, str]:
    assert _ANSWERER is not None
    return asked, _ANSWERER.answer(asked)


@contextlib.contextmanager
def workers(answerer: Answerer, count: int, chunk: int = 32) -> Iterator[
        Callable[[Iterable[str]], Iterator[tuple[str, str]]]]:
    """Have so many processes answer; answers come in the order of what is asked, each behind it.

    :param chunk: what a process is asked at once.
    """
    global _ANSWERER
    _ANSWERER = answerer
    context = multiprocessing.get_context("fork")  # the machine is not made again
    with context.Pool(count) as pool:
        def answers(all_asked: Iterable[str]) -> Iterator[tuple[str, str]]:
            ahead = threading.Semaphore(AHEAD * chunk * count)  # else all are made at once

            def told() -> Iterator[str]:
                for asked in all_asked:
                    ahead.acquire()
                    yield asked

            for asked, answer in pool.imap(_in_worker, told(), chunk):
                ahead.release()
                yield asked, answer
        try:
            yield answers
        finally:
            _ANSWERER = None
