"""Private mappings of sparse files at a given address (mmap(2) with MAP_FIXED)."""

import ctypes
import errno
import functools
import mmap
import os
from collections.abc import Iterator

MAP_FIXED = 0x10  # the same on Linux, macOS and the BSDs


@functools.cache
def _mmap() -> "ctypes._NamedFuncPointer":
    function = ctypes.CDLL(None, use_errno=True)["mmap"]
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                         ctypes.c_int, ctypes.c_int64]
    return function


def map_private(address: int, size: int, file: int, at: int) -> None:
    """Replace a mapping by a private one of a part of a file, or of zeros.

    :param address: of the mapping, of ``size`` bytes.
    :param file: descriptor of the file, or -1 for zeros.
    :param at: offset in the file in bytes.
    :raises OSError: if the host has no memory for it.
    """
    kind = mmap.MAP_PRIVATE | MAP_FIXED | (mmap.MAP_ANONYMOUS if file < 0 else 0)
    if _mmap()(address, size, mmap.PROT_READ | mmap.PROT_WRITE, kind, file, at) != address:
        number = ctypes.get_errno()
        raise OSError(number, f"mmap: {os.strerror(number)}")


def extents(file: int, begin: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield (offset from ``begin``, size) of each data range in a part of a sparse file."""
    at, end = begin, begin + size
    while at < end:
        try:
            start = os.lseek(file, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # the file system does not tell where data is
                yield at - begin, end - at
            return  # no data from here to the end of the file
        if start >= end:
            return
        at = min(os.lseek(file, start, os.SEEK_HOLE), end)
        yield start - begin, at - start
