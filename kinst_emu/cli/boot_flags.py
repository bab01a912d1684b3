"""Join ``--append`` with a value such as ``-s``, which argparse mistakes for an option."""

from collections.abc import Sequence

APPEND = "--append"


def with_flags(words: Sequence[str]) -> list[str]:
    """Return the words of a command line, with ``--append -s`` replaced by ``--append=-s``."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] == APPEND and word.startswith("-") and not word.startswith("--"):
            joined[-1] = f"{APPEND}={word}"
        else:
            joined.append(word)
    return joined
