"""Guest RAM as a private mapping in the host, with copy-on-write snapshots.

RAM is anonymous memory, or a private mapping of the part of a file that holds a snapshot.
The host's kernel copies each page that the guest then writes, and restoring the snapshot drops the
copies.  The host address never changes, so Unicorn's pointers stay valid.  All snapshots of a
machine share one file, so they need only one file descriptor.
"""

import ctypes
import mmap
import os
import re
import weakref
from collections.abc import Iterator
from operator import index
from typing import NoReturn, Protocol, Self

from emu.host import system
from emu.host.mappings import extents, map_private

PAGE = 4096
NOTHING = -1, 0  # instead of a file and an offset: memory that was never saved
_RUN = re.compile(b"\x01+")


class _Forks:
    """Counter of the forks of this process."""

    count = 0

    @classmethod
    def add(cls) -> None:
        """Count a fork of this process."""
        cls.count += 1


os.register_at_fork(after_in_parent=_Forks.add)


class StateFile:
    """Memory file that holds the RAM snapshots of one machine, one after another.

    A forked process shares the file with its parent.  Only the process that created the file adds
    snapshots, and a part that existed at a fork is never emptied, because the child may use it as
    its RAM.

    :param size: size of a snapshot in bytes.
    :raises OSError: if the host cannot create another memory file.
    """

    def __init__(self, size: int) -> None:
        self.size, self.process = size, os.getpid()
        self.descriptor = system.memory_file("kinst-snapshots")
        weakref.finalize(self, os.close, self.descriptor)
        self._free: list[int] = []
        self._end = 0

    def take(self) -> int:
        """Reserve a zero-filled part of the file.

        :return: its offset.
        :raises OSError: if the file cannot grow.
        """
        if self._free:
            return self._free.pop()
        os.ftruncate(self.descriptor, self._end + self.size)
        at, self._end = self._end, self._end + self.size
        return at

    def give_back(self, at: int, forks: int) -> None:
        """Empty a part of the file in order to free its memory on the host.

        :param at: offset of the part.
        :param forks: how often this process had forked when the part was reserved.
        """
        if os.getpid() == self.process and forks == _Forks.count and system.release(
                self.descriptor, at, self.size):
            self._free.append(at)


class SourceFile(Protocol):
    """A file that contains one or more copies of RAM; see ``StateFile``."""

    descriptor: int
    size: int

    def take(self) -> int:
        """Return the offset of a part that belongs to the caller."""
        ...

    def give_back(self, at: int, forks: int) -> None:
        """Release the part at an offset."""
        ...


class MemoryImage:
    """Immutable copy of the contents of RAM, stored in a part of a file.

    The part is released when the last reference to the image is gone.  A copy is the same object.

    :raises OSError: if the host has no memory for it.
    """

    def __init__(self, file: SourceFile) -> None:
        self.file, self.at = file, file.take()
        weakref.finalize(self, file.give_back, self.at, _Forks.count)

    @property
    def size(self) -> int:
        """Size of the image in bytes."""
        return self.file.size

    def read(self, at: int, size: int) -> bytes:
        """Read bytes at an offset; the result is shorter at the end of the image."""
        return os.pread(self.file.descriptor, min(size, self.size - at), self.at + at)

    def extents(self) -> Iterator[tuple[int, int]]:
        """Yield (offset, size) of each part that may contain nonzero bytes."""
        return extents(self.file.descriptor, self.at, self.size)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _known: object) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a snapshot in memory belongs to its process and cannot be pickled; use "
                        "save() to write one to a file")


class GuestMemory:
    """Guest RAM of ``size`` bytes, a multiple of the page size.

    :raises OSError: if the host has no memory for it.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._area))
        self.view = memoryview(self._area)
        self.base: MemoryImage | None = None
        self._states: StateFile | None = None  # created for the first snapshot

    def clear(self) -> None:
        """Set all bytes to zero by releasing their host memory; do nothing after a snapshot.

        Released pages would then have the contents of the snapshot.
        """
        if self.base is None:
            system.discard(self.address, self.size, *NOTHING)

    def prepare(self, first: int, count: int) -> None:
        """Let the host allocate pages that are about to be written, all at once.

        This is faster than a page fault for each of them.

        :raises TypeError: if a number is not an integer.
        """
        system.populate(self.address + index(first) * PAGE, index(count) * PAGE)

    def _changed(self, first: int, count: int) -> bytearray:
        """Return one byte per page: 1 if the page was written since the last snapshot."""
        file, at = (self.base.file.descriptor, self.base.at) if self.base else NOTHING
        return system.changed(self.address + first * PAGE, count * PAGE, file, at + first * PAGE)

    def used(self) -> list[tuple[int, int]]:
        """Return (first page, page count) for each range of pages that may have nonzero bytes."""
        flags = self._changed(0, self.size // PAGE)
        if self.base is not None:
            for at, size in self.base.extents():
                first, end = at // PAGE, (at + size + PAGE - 1) // PAGE
                flags[first:end] = b"\1" * (end - first)
        return _runs(flags)

    def written(self) -> list[int]:
        """Return the offsets of the pages written since the last snapshot."""
        return [PAGE * page for first, count in _runs(self._changed(0, self.size // PAGE))
                for page in range(first, first + count)]

    def is_written(self, page: int) -> bool:
        """Return whether a page was written since the last snapshot.

        :raises IndexError: if the page number is out of range.
        """
        if not 0 <= page < self.size // PAGE:
            raise IndexError(page)
        return bool(self._changed(page, 1)[0])

    def page(self, number: int) -> bytes:
        """Return the contents of a page."""
        return self._area[PAGE * number : PAGE * (number + 1)]

    def snapshot(self) -> MemoryImage:
        """Save the current contents; RAM becomes a copy-on-write view of them.

        :raises OSError: if the host has no memory for them.
        """
        if self._states is None or self._states.process != os.getpid():
            self._states = StateFile(self.size)
        image = MemoryImage(self._states)
        for page, count in self.used():
            at, end = page * PAGE, (page + count) * PAGE
            while at < end:
                at += os.pwrite(image.file.descriptor, self.view[at:end], image.at + at)
        self.restore(image)
        return image

    def restore(self, image: MemoryImage) -> None:
        """Restore the contents saved in ``image``."""
        if self.base is image:
            system.discard(self.address, self.size, image.file.descriptor, image.at)
            return
        map_private(self.address, self.size, image.file.descriptor, image.at)
        self.base = image


def _runs(flags: bytearray) -> list[tuple[int, int]]:
    return [(run.start(), run.end() - run.start()) for run in _RUN.finditer(flags)]
