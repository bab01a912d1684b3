"""The ``kdtrace`` command: dtrace(1) for the emulated kernel."""

import signal
import sys

from kinst_emu.cli.script import trace
from kinst_emu.terminal.terminal import run_command


def main() -> None:
    """Run the ``kdtrace`` command."""
    # As in dtrace(1), SIGTERM acts like SIGINT, even if another SIGINT handler is installed later.
    signal.signal(signal.SIGTERM, lambda _number, _frame: signal.raise_signal(signal.SIGINT))
    run_command("dtrace", lambda: trace(sys.argv[1:]))


if __name__ == "__main__":
    main()
