"""The subcommands of ``kinst``, the ``kdtrace`` command, and their entry points."""

import sys

from kinst_emu import check_rooms

try:
    check_rooms()
except ImportError as error:
    sys.exit(f"kinst-emu: {error}")
