"""Child processes that end when this process ends, for any reason."""

import contextlib
import multiprocessing
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from types import FrameType
from typing import Any

WAKE = 0.5  # maximum number of seconds after Ctrl-C until a wait ends
JOIN = 5  # seconds to wait for a killed process or a pool's thread


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Block SIGINT in the processes that are started inside the ``with`` block.

    An interrupt from the terminal is for the process that starts them, which then ends them.  If it
    arrives inside the block, it is handled at the end.  Blocking SIGINT in this thread is not
    enough: the system delivers it to another thread, and Python then runs the handler in the main
    thread.  There, an exception while a thread is being started would leave a pool that cannot end.
    """
    came: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    held = threading.current_thread() is threading.main_thread() and callable(handler)
    if held:
        signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if held:
            signal.signal(signal.SIGINT, handler)
            if came and callable(handler):
                handler(signal.SIGINT, None)


def first_done(futures: Sequence[Future[Any]]) -> int:
    """Wait until one of several futures is done, and return its index.

    Ctrl-C raises KeyboardInterrupt here, even if Python has raised it first in the finalizer of an
    object, where Python ignores exceptions.
    """
    came: list[int] = []
    handler = signal.getsignal(signal.SIGINT)

    def interrupted(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if callable(handler):
            handler(number, frame)

    held = threading.current_thread() is threading.main_thread() and callable(handler)
    if held:
        signal.signal(signal.SIGINT, interrupted)
    try:
        while not wait(futures, WAKE, FIRST_COMPLETED).done and not came:
            pass
        if came:
            raise KeyboardInterrupt
    finally:
        if held:
            signal.signal(signal.SIGINT, handler)
    return next(n for n, one in enumerate(futures) if one.done())


@contextlib.contextmanager
def ended_pool(pool: ProcessPoolExecutor) -> Iterator[None]:
    """Kill the processes of a pool at the end of the ``with`` block, even if they are busy."""
    others = multiprocessing.active_children()
    try:
        yield
    finally:
        # Wait below for the pool's manager thread, which must not close shared objects while
        # Python exits.
        thread = getattr(pool, "_executor_manager_thread", None)
        pool.shutdown(wait=False, cancel_futures=True)
        own = [child for child in multiprocessing.active_children() if child not in others]
        for process in own:
            process.kill()
        for process in own:
            process.join(JOIN)
        if thread is not None:
            thread.join(JOIN)
