"""The ``kdtrace`` command: dtrace(1)'s face on the emulated kernel."""

import signal
import sys

from kinst_emu.cli.script import trace
from kinst_emu.terminal.terminal import run_command


def main() -> None:
    # As dtrace(1), it ends in the same way by either, whatever an interrupt does meanwhile.
    signal.signal(signal.SIGTERM, lambda _number, _frame: signal.raise_signal(signal.SIGINT))
    run_command("dtrace", lambda: trace(sys.argv[1:]))


if __name__ == "__main__":
    main()
