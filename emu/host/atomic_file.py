"""Files that are there whole or not at all: written under a temporary name, then renamed."""

import contextlib
import glob
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

PART = ".part"
ABANDONED = 3600  # seconds since a writer that is gone has written last


def _drop_abandoned(path: Path, present: Path) -> None:
    """Remove what writers of ``path`` have left that were killed."""
    now = present.stat().st_mtime
    for other in path.parent.glob(f".{glob.escape(path.name)}.*{PART}"):
        with contextlib.suppress(OSError):  # another writer was faster, or it is another user's
            if now - other.stat().st_mtime > ABANDONED:
                other.unlink()


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """An error of writing names the file that the user knows, not none or a temporary one."""
    try:
        yield
    except OSError as error:
        known = error.filename
        if known is None or (isinstance(known, str) and known.endswith(PART)):
            error.filename, error.filename2 = str(path), None
        raise


@contextlib.contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """A file to write, which becomes ``path`` when all went well.  What is no file, as
    ``/dev/stdout`` or a pipe, is written to.

    :param mode: who may do what with it; None: as with any new file.
    :raises OSError: when it cannot be written, with the name of ``path``.
    """
    with naming(path):
        if path.exists() and not path.is_file() and not path.is_dir():
            with path.open("wb") as file:
                yield file
            return
        with _renamed(path, mode) as file:
            yield file


@contextlib.contextmanager
def _renamed(path: Path, mode: int | None) -> Iterator[BinaryIO]:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PART)
    owner = os.getpid()
    try:
        with os.fdopen(handle, "wb") as file:
            _drop_abandoned(path, Path(temporary))
            yield file
            file.flush()
            os.fsync(file.fileno())  # or a crash may leave a file of the right length and zeros
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask if mode is None else mode)
        os.replace(temporary, path)
    except BaseException:
        if os.getpid() == owner:  # in a forked process it is still written by the other one
            with contextlib.suppress(FileNotFoundError):  # the cache was emptied meanwhile
                os.unlink(temporary)
        raise
