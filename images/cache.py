"""Where the commands keep what is made again when it is lost."""

import os
from pathlib import Path

import platformdirs


def cache_directory() -> Path:
    """``$KINST_CACHE``, or the user's cache directory."""
    named = os.environ.get("KINST_CACHE")
    return Path(named) if named else Path(platformdirs.user_cache_dir("kinst-emu"))
