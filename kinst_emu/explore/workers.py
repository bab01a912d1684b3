"""Processes that try orders.  Each is a copy of this one, with the machine at the state from which
all orders begin; it is told an order and says what is wrong with it, both as text."""

import contextlib
import multiprocessing
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from kinst_emu.explore.order import LETTERS, Order, order_text, read_order

CHUNK = 8  # orders that a process is told at once
AHEAD = 4  # times as many are made before they are wanted


class OrderJudge(Protocol):
    def judged(self, order: Order) -> tuple[Order, str, str]: ...


_JUDGE: OrderJudge | None = None  # of this process, when it is made


def _in_worker(text: str) -> tuple[str, str, str]:
    assert _JUDGE is not None
    _order, kind, said = _JUDGE.judged(read_order(text, len(LETTERS)))
    return text, kind, said


@contextlib.contextmanager
def workers(judge: OrderJudge, count: int) -> Iterator[
        Callable[[Iterable[Order]], Iterator[tuple[Order, str, str]]]]:
    """Have so many processes judge orders; what they say comes in the orders' order."""
    global _JUDGE
    _JUDGE = judge
    context = multiprocessing.get_context("fork")  # the machine is not made again
    with context.Pool(count) as pool:
        def judged(orders: Iterable[Order]) -> Iterator[tuple[Order, str, str]]:
            ahead = threading.Semaphore(AHEAD * CHUNK * count)  # else all are made at once

            def told() -> Iterator[str]:
                for order in orders:
                    ahead.acquire()
                    yield order_text(order)

            for text, kind, said in pool.imap(_in_worker, told(), CHUNK):
                ahead.release()
                yield read_order(text, len(LETTERS)), kind, said
        try:
            yield judged
        finally:
            _JUDGE = None
