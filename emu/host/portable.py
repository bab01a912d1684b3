"""Services of linux.py for hosts that are not Linux: slower, by calls that POSIX systems share.

``KINST_HOST=portable`` selects it on Linux, too, which is how the tests run it.
"""

import contextlib
import ctypes
import functools
import mmap
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import count

from emu.host.mappings import extents, map_private

PAGE = 4096
BLOCK = 1 << 20  # bytes that are compared at once
CHECK = 0.5  # seconds between two looks at the parent process
DESCRIPTORS = "/dev/fd"  # directory in which a process finds its open files
KILLED_WITH_PARENT: tuple[str, ...] = ()  # no such program: what was started outlives a kill -9


discard = map_private  # at the same place as before, so that all writes are undone


def memory_file(name: str) -> int:
    """Create a file that has no name any more, and return its descriptor.

    :raises OSError: if the host cannot create one.
    """
    file, path = tempfile.mkstemp(prefix=name)
    os.unlink(path)
    return file


def release(file: int, at: int, size: int) -> bool:
    """Fill a part of a file with zeros, so that it can be used again; return True.

    Its space on the host is not freed.
    """
    for start, length in extents(file, at, size):
        while length:
            written = os.pwrite(file, bytes(min(length, BLOCK)), at + start)
            start, length = start + written, length - written
    return True


def populate(_address: int, _size: int) -> None:
    """Do nothing: the host allocates pages when they are written."""


def changed(address: int, size: int, file: int, at: int) -> bytearray:
    """Return one byte per page of a private mapping: 1 if it differs from the file, 0 if not.

    :param file: descriptor of the mapped file, or -1 if zeros are mapped.
    :param at: offset in the file.
    """
    flags = bytearray(size // PAGE)
    compare = _memcmp()
    with _unchanged(size, file, at) as (before, step):
        for start in range(0, size, BLOCK):
            part = min(BLOCK, size - start)
            if compare(address + start, before + step * start, part):
                for page in range(start, start + part, PAGE):
                    flags[page // PAGE] = compare(
                        address + page, before + step * page, PAGE) != 0
    return flags


@functools.cache
def _memcmp() -> "ctypes._NamedFuncPointer":
    function = ctypes.CDLL(None)["memcmp"]
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return function


@contextlib.contextmanager
def _unchanged(size: int, file: int, at: int) -> Iterator[tuple[int, int]]:
    """Map what a private mapping would contain without changes, for a ``with`` block.

    Yield its address, and 1; or, for zeros, the address of a block of zeros, and 0.
    """
    if file < 0:
        zeros = ctypes.create_string_buffer(min(size, BLOCK))
        yield ctypes.addressof(zeros), 0
        return
    skipped = at % mmap.ALLOCATIONGRANULARITY
    with mmap.mmap(file, size + skipped, flags=mmap.MAP_PRIVATE, offset=at - skipped) as area:
        held = ctypes.c_char.from_buffer(area)
        try:
            yield ctypes.addressof(held) + skipped, 1
        finally:
            del held  # so that the mapping can be closed


def use_huge_pages(_memory: mmap.mmap) -> None:
    """Do nothing."""


def try_address_space(size: int) -> None:
    """Check whether so much address space is left.

    :raises OSError: if it is not.
    """
    mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()


def processors() -> int:
    """Return the number of the host's processors."""
    return os.cpu_count() or 1


def end_with(parent: int) -> None:
    """Let a thread end this process soon after its parent has ended.

    :param parent: process ID of the parent.
    """

    def watch() -> None:
        for _look in count():
            if os.getppid() != parent:
                os._exit(1)
            time.sleep(CHECK)

    threading.Thread(target=watch, daemon=True).start()


def parent_of(pid: int) -> int:
    """Return the parent ID of a process, or 0 if the ID is unknown (ps(1))."""
    with contextlib.suppress(OSError, ValueError):
        return int(subprocess.run(["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True,
                                  check=False, text=True).stdout)
    return 0


def boot_id() -> str:
    """Return "": the host's current boot is not known, and no memory is shared between commands."""
    return ""
