"""Where the commands begin: an interrupt while Python still loads ends them without a word."""

import signal
import sys

signal.signal(signal.SIGINT, signal.SIG_DFL)


def kinst() -> None:
    if sys.argv[1:2] in (["inline"], ["line"], ["type"]):
        from dtrace.debug_command import main
    else:
        from dtrace.kinst_command import main
    main()


def kdtrace() -> None:
    from dtrace.kdtrace_command import main

    main()
