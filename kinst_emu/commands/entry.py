"""Entry points of the console scripts; Ctrl-C during startup ends a script without a traceback."""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)


def kinst() -> None:
    """Run the ``kinst`` command."""
    from kinst_emu.commands.kinst import main

    main()


def kdtrace() -> None:
    """Run the ``kdtrace`` command."""
    from kinst_emu.commands.kdtrace import main

    main()
