"""Files that a run is made from.  Their bytes are taken once; what becomes of the file afterwards
changes nothing, or is an error."""

import contextlib
import mmap
import os
import stat
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from emu.host.errors import ImageError

PART = 1 << 20
LARGE = 1 << 22  # bytes
State = tuple[int, int, int, int, int]


def state_of(descriptor: int) -> State:
    """What changes when somebody changes a file: its device and inode, size, and the times (ns) of
    the last change of its content and of what is known about it."""
    found = os.fstat(descriptor)
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@contextlib.contextmanager
def opened(path: Path, most: int) -> Iterator[int]:
    """The descriptor of a file.

    :param most: bytes that it may have.
    :raises ImageError: when it cannot be read, is no file, is empty, or has more.
    """
    try:
        # Opening a FIFO would wait for somebody who writes to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ImageError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError:  # from Python: a zero byte, half a surrogate pair
        raise ImageError(f"{str(path)!r}: no file can have this name") from None
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise ImageError(f"{path}: is a directory, not a file")
        if not stat.S_ISREG(found.st_mode):
            raise ImageError(f"{path}: is not a regular file")
        if not found.st_size:
            raise ImageError(f"{path}: is empty")
        if found.st_size > most:
            raise ImageError(f"{path}: has {found.st_size} bytes: at most {most} are possible here")
        yield descriptor
    finally:
        os.close(descriptor)


@dataclass(frozen=True, eq=False)
class InputFile:
    """A copy of a file's bytes.

    :param state: tells the file from another one, and from itself when it has been changed.
    """

    path: Path
    content: memoryview
    state: State


def taken(path: Path, most: int, magic: bytes = b"") -> InputFile:
    """Copy a file.

    :param most: bytes that it may have.
    :param magic: what it must begin with: of one that begins otherwise, only as many bytes are
        returned.
    :raises ImageError: when it cannot be read, is no file, is empty, has more, or is changed
        meanwhile.
    """
    with opened(path, most) as descriptor:
        before = state_of(descriptor)
        content = _read(path, descriptor, 0, len(magic))
        if content == magic:
            content = _read(path, descriptor, 0, before[2])
            if len(content) < before[2] or state_of(descriptor) != before:
                raise ImageError(f"{path}: was changed while it was read; try again")
        return InputFile(path, content, before)


def _read(path: Path, descriptor: int, at: int, size: int) -> memoryview:
    """As many bytes as there are, in memory of nobody else's."""
    if not size:
        return memoryview(b"")
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if size >= LARGE:
            with contextlib.suppress(OSError):  # a kernel without large pages
                memory.madvise(mmap.MADV_HUGEPAGE)  # its pages come at once, not one by one
        view, done = memoryview(memory), 0
        while done < size and (count := os.preadv(descriptor, [view[done:]], at + done)):
            done += count
    except OSError as error:
        raise ImageError(f"{path}: cannot be read: {error.strerror}") from None
    return view[:done].toreadonly()


class HeldFile:
    """A file that is too large to be copied: it is kept open.  Reading it after somebody has
    changed it is an error.

    :raises ImageError: here, as ``taken``.
    """

    def __init__(self, path: Path, most: int) -> None:
        self.path = path
        with opened(path, most) as descriptor:
            self._descriptor = os.dup(descriptor)
        self._state = state_of(self._descriptor)
        self.close = weakref.finalize(self, os.close, self._descriptor)

    def __len__(self) -> int:
        return self._state[2]

    def __getitem__(self, part: slice) -> bytes:
        """Bytes of the file.

        :raises ImageError: when it is not what it was.
        """
        begin, end, _step = part.indices(len(self))
        content = bytes(_read(self.path, self._descriptor, begin, max(end - begin, 0)))
        if state_of(self._descriptor) != self._state:
            raise ImageError(f"{self.path}: was changed while it was used: what has run with it is "
                             "not to be trusted; run it again")
        return content

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self.path}: an open file cannot be copied")


Content = memoryview | HeldFile  # what a disk's bytes are in


def pieces(content: Content) -> Iterator[bytes | memoryview]:
    """All of it, in the order of the file, without having it twice."""
    for at in range(0, len(content), PART):
        yield content[at : at + PART]
