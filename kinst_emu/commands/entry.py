"""Where the commands begin: an interrupt while Python still loads ends them without a word."""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)


def kinst() -> None:
    from kinst_emu.commands.kinst import main

    main()


def kdtrace() -> None:
    from kinst_emu.commands.kdtrace import main

    main()
