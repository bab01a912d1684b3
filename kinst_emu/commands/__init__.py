"""The commands, one file each."""

import sys

from kinst_emu import check_rooms

try:
    check_rooms()
except ImportError as error:
    sys.exit(f"kinst-emu: {error}")
