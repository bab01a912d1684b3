"""Boot flags on a command line: ``--append -s``, which argparse would take for two options."""

from collections.abc import Sequence

APPEND = "--append"


def with_flags(words: Sequence[str]) -> list[str]:
    """The words of a command line, each ``--append`` in one with its flags."""
    found: list[str] = []
    for word in words:
        if found and found[-1] == APPEND and word.startswith("-") and not word.startswith("--"):
            found[-1] = f"{APPEND}={word}"
        else:
            found.append(word)
    return found
