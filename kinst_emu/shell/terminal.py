"""IPython shell in a terminal, with a session."""

import sys
from typing import Any

from emu.host.extras import need
from kinst_emu.shell.session import Session


def started() -> tuple[Any, Session]:
    """Create an IPython shell with a session.

    :return: the shell, whose ``mainloop`` has not started, and the session.
    :raises KinstError: when IPython is not installed.
    """
    need("shell", "kinst shell")
    from IPython.terminal.interactiveshell import TerminalInteractiveShell as Terminal

    from kinst_emu.shell.extension import load

    shell: Any = Terminal.instance(
        simple_prompt=not (sys.stdin.isatty() and sys.stdout.isatty()))
    shell.confirm_exit = shell.enable_tip = False
    if not sys.stdout.isatty():
        shell.colors = "nocolor"
    return shell, load(shell)
