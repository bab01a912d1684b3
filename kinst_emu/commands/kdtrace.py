"""The ``kdtrace`` command: dtrace(1)'s face on the emulated kernel."""

import sys

from kinst_emu.script import trace
from kinst_emu.terminal import run_command


def main() -> None:
    run_command("dtrace", lambda: trace(sys.argv[1:]))


if __name__ == "__main__":
    main()
