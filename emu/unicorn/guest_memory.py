"""Guest RAM as a private mapping of the host, so that snapshots in memory are copy-on-write.

RAM is anonymous memory, or a private mapping of a memory file that holds a snapshot: pages the
guest writes are then copied by the host's kernel, and going back drops the copies.  The host
address never changes, so Unicorn's pointers stay good.
"""

import ctypes
import mmap
import os
import re
from collections.abc import Iterator

PAGE = 4096
ENTRY = 8  # bytes of a page's entry in /proc/self/pagemap; the last one has these bits
_PRESENT, _SWAPPED, _FILE = 0x80, 0x40, 0x20
_CHANGED = bytes(bool(top & (_PRESENT | _SWAPPED)) and not top & _FILE for top in range(256))
_RUN = re.compile(b"\x01+")
MAP_FIXED, MADV_DONTNEED = 0x10, 4

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                       ctypes.c_int64]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class MemoryImage:
    """What RAM held at one moment; backed by a memory file."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.file = os.memfd_create("kinst-snapshot", os.MFD_CLOEXEC)
        os.ftruncate(self.file, size)

    def __del__(self) -> None:
        os.close(self.file)


class GuestMemory:
    """RAM of ``size`` bytes (a multiple of the page size).

    :raises OSError: when the host has no memory for it.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._area))
        self.view = memoryview(self._area)
        self.base: MemoryImage | None = None

    def clear(self) -> None:
        """All zeros again, where no snapshot was taken."""
        if self.base is None and _libc.madvise(self.address, self.size, MADV_DONTNEED) != 0:
            raise OSError(ctypes.get_errno(), "madvise")

    def _changed(self) -> bytearray:
        """A byte for each page: 1 where it was written since the last snapshot."""
        with open("/proc/self/pagemap", "rb") as file:
            file.seek(self.address // PAGE * ENTRY)
            entries = file.read(self.size // PAGE * ENTRY)
        return bytearray(entries[ENTRY - 1 :: ENTRY].translate(_CHANGED))

    def used(self) -> list[tuple[int, int]]:
        """Runs of pages that may hold something but zeros: (first page, pages)."""
        flags = self._changed()
        if self.base is not None:
            for first, end in _data_pages(self.base.file, self.size):
                flags[first:end] = b"\1" * (end - first)
        return _runs(flags)

    def written(self) -> list[int]:
        """Offsets of the pages written since the last snapshot."""
        return [PAGE * page for first, count in _runs(self._changed())
                for page in range(first, first + count)]

    def is_written(self, page: int) -> bool:
        """Whether a page was written since the last snapshot.

        :raises IndexError: when there is none of that number.
        """
        if not 0 <= page < self.size // PAGE:
            raise IndexError(page)
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            file.seek((self.address // PAGE + page) * ENTRY)
            return bool(_CHANGED[file.read(ENTRY)[-1]])

    def page(self, number: int) -> bytes:
        """A page's content."""
        return self._area[PAGE * number : PAGE * (number + 1)]

    def snapshot(self) -> MemoryImage:
        """Keep the present contents; RAM goes on as a copy-on-write view of them."""
        image = MemoryImage(self.size)
        for page, count in self.used():
            at = page * PAGE
            os.pwrite(image.file, self.view[at : at + count * PAGE], at)
        self.restore(image)
        return image

    def restore(self, image: MemoryImage) -> None:
        """Make RAM what it was when ``image`` was taken."""
        if self.base is image:
            if _libc.madvise(self.address, self.size, MADV_DONTNEED) != 0:
                raise OSError(ctypes.get_errno(), "madvise")
            return
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        got = _libc.mmap(self.address, self.size, protection, mmap.MAP_PRIVATE | MAP_FIXED,
                         image.file, 0)
        if got != self.address:
            raise OSError(ctypes.get_errno(), "mmap")
        self.base = image


def _data_pages(file: int, size: int) -> Iterator[tuple[int, int]]:
    """[first, end) of the pages that a file holds."""
    at = 0
    while at < size:
        try:
            start = os.lseek(file, at, os.SEEK_DATA)
        except OSError:  # ENXIO: only a hole is left
            return
        at = os.lseek(file, start, os.SEEK_HOLE)
        yield start // PAGE, (at + PAGE - 1) // PAGE


def _runs(flags: bytearray) -> list[tuple[int, int]]:
    return [(run.start(), run.end() - run.start()) for run in _RUN.finditer(flags)]
