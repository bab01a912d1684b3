"""Atomic replacement of files: write under a temporary name, then rename."""

import contextlib
import glob
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

PART = ".part"
UMASK = threading.Lock()  # held while the process has another umask
ABANDONED = 3600  # seconds without a write after which a temporary file counts as abandoned


def _drop_abandoned(path: Path, present: Path) -> None:
    """Remove the temporary files that killed writers of ``path`` left behind."""
    drop_abandoned(path.parent, f".{glob.escape(path.name)}.*{PART}", present.stat().st_mtime)


def drop_abandoned(folder: Path, pattern: str, now: float) -> None:
    """Remove the temporary files that match a pattern and have not been written for an hour."""
    for other in folder.glob(pattern):
        # Ignore a file that was already removed or belongs to another user.
        with contextlib.suppress(OSError):
            if now - other.stat().st_mtime > ABANDONED:
                other.unlink()


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Set the file name of an ``OSError`` to ``path`` if it has none or names a temporary file."""
    try:
        yield
    except OSError as error:
        known = error.filename
        if known is None or (isinstance(known, str) and known.endswith(PART)):
            error.filename, error.filename2 = str(path), None
        raise


@contextlib.contextmanager
def replacing(path: Path, mode: int | None = None, durable: bool = True) -> Iterator[BinaryIO]:
    """Yield a writable temporary file, which replaces ``path`` on success.

    Anything but a regular file, such as ``/dev/stdout`` or a pipe, is written directly.

    :param mode: permission bits; None: as for any new file.
    :param durable: whether the content must survive a crash of the host.
    :raises OSError: if the file cannot be written, with the name of ``path``.
    """
    with naming(path):
        if path.exists() and not path.is_file() and not path.is_dir():
            with path.open("wb") as file:
                yield file
            return
        with _renamed(path, mode, durable) as file:
            yield file


@contextlib.contextmanager
def _renamed(path: Path, mode: int | None, durable: bool) -> Iterator[BinaryIO]:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PART)
    owner = os.getpid()
    try:
        with os.fdopen(handle, "wb") as file:
            _drop_abandoned(path, Path(temporary))
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())  # otherwise a crash may leave zeros instead of the content
        with UMASK:
            umask = os.umask(0)
            os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask if mode is None else mode)
        os.replace(temporary, path)
    except BaseException:
        if os.getpid() == owner:  # a forked process must not remove its parent's file
            # Another process may have removed the file.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        raise
