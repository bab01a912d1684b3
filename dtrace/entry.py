"""Where the commands begin: an interrupt while Python still loads ends them without a word."""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)


def kinst() -> None:
    from dtrace.kinst_command import main

    main()


def kdtrace() -> None:
    from dtrace.kdtrace_command import main

    main()
