"""Processes that are made by this one, and end with it, whatever ends it."""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

JOIN = 5  # seconds
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG: linux/prctl.h
_libc = ctypes.CDLL(None)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Processes that are made inside the ``with`` never get a SIGINT: an interrupt from the
    terminal is for the process that makes them, which then ends them.

    An interrupt that comes meanwhile is taken at the end.  Blocking it in this thread is not
    enough: the system gives it to another thread, and Python then runs the handler in the main
    thread.  An exception in the middle of starting a thread would leave a pool that cannot end.
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
            if came:
                signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def ended_pool(pool: ProcessPoolExecutor) -> Iterator[None]:
    """Kill the processes of a pool at the end of the ``with``, whatever they do then."""
    others = multiprocessing.active_children()
    try:
        yield
    finally:
        # Python's own exit would meet this thread while it closes what they share.
        thread = getattr(pool, "_executor_manager_thread", None)
        pool.shutdown(wait=False, cancel_futures=True)
        own = [one for one in multiprocessing.active_children() if one not in others]
        for process in own:
            process.kill()
        for process in own:
            process.join(JOIN)
        if thread is not None:
            thread.join(JOIN)


def end_with(parent: int) -> None:
    """Have this process killed when its parent ends, or end it when that has happened already.

    To the kernel the parent is the thread that has made this process: it must not end before.

    :param parent: its process ID.
    """
    _libc.prctl(DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
