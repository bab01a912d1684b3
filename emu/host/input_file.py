"""Input files of a run: a later change to a file either has no effect or raises an error."""

import contextlib
import mmap
import os
import stat
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from emu.host.errors import ImageError
from emu.host.system import use_huge_pages

PART = 1 << 20
LARGE = 1 << 22  # minimum size in bytes of a file that is read into huge pages
State = tuple[int, int, int, int, int]
Ranges = list[tuple[int, int]]  # parts of a file: offsets [begin, end)
ReadAt = Callable[[int, int], bytes]  # reads up to a number of bytes at an offset


def state_of(descriptor: int) -> State:
    """Return a file's identity, size and times, which reveal a later change of the file.

    These are its device, inode and size, and the times (ns) of the last change of its content and
    of its metadata.
    """
    status = os.fstat(descriptor)
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@contextlib.contextmanager
def opened(path: Path, most: int) -> Iterator[int]:
    """Open a regular file, and yield its descriptor.

    :param most: maximum size in bytes.
    :raises ImageError: if the file cannot be read, is not a regular file, is empty or too large.
    """
    try:
        # Without O_NONBLOCK, opening a FIFO would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ImageError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError:  # the path contains a zero byte or half of a surrogate pair
        raise ImageError(f"{str(path)!r}: not a valid file name") from None
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise ImageError(f"{path}: is a directory, not a file")
        if not stat.S_ISREG(status.st_mode):
            raise ImageError(f"{path}: is not a regular file")
        if not status.st_size:
            raise ImageError(f"{path}: is empty")
        if status.st_size > most:
            raise ImageError(f"{path}: has {status.st_size} bytes; the limit is {most}")
        yield descriptor
    finally:
        os.close(descriptor)


@dataclass(frozen=True, eq=False)
class InputFile:
    """Copy of a file's content.

    :param content: the whole file; parts that were not asked for are zeros (``taken``).
    :param state: identifies the file and its version (``state_of``).
    """

    path: Path
    content: memoryview
    state: State


def taken(path: Path, most: int, magic: bytes = b"",
          parts: Callable[[ReadAt, int], Ranges] | None = None) -> InputFile:
    """Copy a file into memory.

    :param most: maximum size in bytes.
    :param magic: expected first bytes; of a file that begins otherwise, only as many bytes as the
        magic has are returned.
    :param parts: called with a function that reads the file, and the file's size; returns the
        parts to copy, for files with large gaps.  The others are zeros (default: copy all).
    :raises ImageError: if the file cannot be read, is not a regular file, is empty or too large, or
        changes while it is read.
    """
    with opened(path, most) as descriptor:
        before = state_of(descriptor)
        content = _read(path, descriptor, len(magic), [(0, len(magic))])
        if content == magic:
            size = before[2]
            ranges = [(0, size)]
            if parts is not None:
                with _readable(path):
                    ranges = parts(lambda at, count: os.pread(descriptor, count, at), size)
            content = _read(path, descriptor, size, ranges)
            if len(content) < size or state_of(descriptor) != before:
                raise ImageError(f"{path}: changed while it was read; try again")
        return InputFile(path, content, before)


def _read(path: Path, descriptor: int, size: int, ranges: Ranges) -> memoryview:
    """Copy parts of a file to private memory.

    :param size: number of bytes to return, fewer if a part ends beyond the end of the file.
    :param ranges: the parts, within ``size``.
    """
    if not size:
        return memoryview(b"")
    with _readable(path):
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if size >= LARGE:
            use_huge_pages(memory)
        view = memoryview(memory)
        for at, end in ranges:
            while at < end and (count := os.preadv(descriptor, [view[at:end]], at)):
                at += count
            if at < end:
                return view[:at].toreadonly()
        return view.toreadonly()


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ImageError(f"{path}: cannot be read: {error.strerror}") from None


class HeldFile:
    """Open file that is too large to be copied; reading it after a change raises an error.

    :raises ImageError: if the file cannot be used, as for ``taken``.
    """

    def __init__(self, path: Path, most: int) -> None:
        self.path = path
        with opened(path, most) as descriptor:
            self._descriptor = os.dup(descriptor)
        self._state = state_of(self._descriptor)
        self.close = weakref.finalize(self, os.close, self._descriptor)

    @property
    def state(self) -> State:
        """Identity of the file and of its version (``state_of``)."""
        return self._state

    def __len__(self) -> int:
        """Size of the file in bytes."""
        return self._state[2]

    def __getitem__(self, part: slice) -> bytes:
        """Read a slice of the file.

        :raises ImageError: if the file has changed since it was opened.
        """
        begin, end, _step = part.indices(len(self))
        content = b""
        try:
            while begin + len(content) < end and (more := os.pread(
                    self._descriptor, end - begin - len(content), begin + len(content))):
                content = content + more if content else more
        except OSError as error:
            raise ImageError(f"{self.path}: cannot be read: {error.strerror}") from None
        if state_of(self._descriptor) != self._state:
            raise ImageError(f"{self.path}: changed while it was in use, so the results of this "
                             "run cannot be trusted; run it again")
        return content

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self.path}: an open file cannot be copied")


Content = memoryview | HeldFile  # content of a disk


def pieces(content: Content) -> Iterator[bytes | memoryview]:
    """Yield the content in order, in pieces of 1 MiB, to avoid copying all of it at once."""
    for at in range(0, len(content), PART):
        yield content[at : at + PART]
