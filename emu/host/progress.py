"""Who is told of work that may take longer than a moment: the command line, when there is one."""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager

Working = Callable[[str], AbstractContextManager[None]]


class Progress:
    """:ivar working: is entered with what is done, and left when it is."""

    working: Working = staticmethod(lambda text: contextlib.nullcontext())


PROGRESS = Progress()
