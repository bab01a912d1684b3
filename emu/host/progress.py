"""Progress hook for long operations; does nothing until the command line installs one."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

Working = Callable[[str], AbstractContextManager[None]]


class Progress:
    """Container for the progress hook.

    :ivar working: returns a context manager for an operation; its argument describes the operation.
    """

    working: Working = staticmethod(lambda text: contextlib.nullcontext())


PROGRESS = Progress()


@contextlib.contextmanager
def no_progress() -> Iterator[None]:
    """Show no progress in a ``with`` block, in which something else draws on the terminal."""
    before, PROGRESS.working = PROGRESS.working, Progress.working
    try:
        yield
    finally:
        PROGRESS.working = before
