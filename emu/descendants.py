"""Processes that are made by this one, and end with it, whatever ends it."""

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator

DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG: linux/prctl.h
_libc = ctypes.CDLL(None)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Processes that are made meanwhile are never interrupted from the terminal: whoever makes
    them is, and ends them.  They have it so from their first instruction on."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with(parent: int) -> None:
    """This process is killed when the one that has made it ends, or has ended already.

    :param parent: its process ID.
    """
    _libc.prctl(DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
