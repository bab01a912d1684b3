"""Print the messages of kdtrace."""

import sys

from kinst_emu.terminal.terminal import end_line


def say(text: str) -> None:
    """Print a message on standard error with the prefix ``dtrace:``, as dtrace(1) does."""
    end_line()
    print(f"dtrace: {text}", file=sys.stderr)
