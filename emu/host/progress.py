"""Progress hook for long operations; does nothing until the command line installs one."""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager

Working = Callable[[str], AbstractContextManager[None]]


class Progress:
    """Container for the progress hook.

    :ivar working: returns a context manager for an operation; its argument describes the operation.
    """

    working: Working = staticmethod(lambda text: contextlib.nullcontext())


PROGRESS = Progress()
