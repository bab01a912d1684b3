"""Files from which the RAM of a snapshot is mapped, so that restoring the snapshot copies nothing.

Such a file is a cache: it is made from a snapshot file and is never changed.  Layout: RAM (sparse),
the header of the snapshot as in the snapshot file, and the magic, the header's length (u64) and its
SHA-256 digest.  RAM itself has no digest, so the file must not be used after a crash of the host.
"""

import contextlib
import hashlib
import os
import struct
import weakref
from collections.abc import Iterable
from pathlib import Path

from emu.host.atomic_file import replacing
from emu.unicorn.guest_memory import PAGE, GuestMemory

TAIL = struct.Struct("<8sQ32s")
MAGIC = b"KINSTRAM"
LEAST_FREE = 4 << 30  # bytes that must be left on the file system


class RamFile:
    """An open file whose first ``size`` bytes are the contents of RAM; see ``StateFile``.

    :ivar header: the header of the snapshot, as in the snapshot file.
    """

    def __init__(self, descriptor: int, size: int, header: bytes) -> None:
        self.descriptor, self.size, self.header = descriptor, size, header
        weakref.finalize(self, os.close, descriptor)

    def take(self) -> int:
        """Return the offset of RAM."""
        return 0

    def give_back(self, at: int, forks: int) -> None:
        """Do nothing, because the file has only one part."""


def opened(path: Path, most: int) -> RamFile | None:
    """Open a file that ``write`` has made; return None if there is none, or it is damaged.

    :param most: maximum length of the header.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    with contextlib.suppress(OSError, struct.error):
        end = os.fstat(descriptor).st_size - TAIL.size
        magic, length, digest = TAIL.unpack(os.pread(descriptor, TAIL.size, max(end, 0)))
        if magic == MAGIC and length <= min(most, end) and not (end - length) % PAGE:
            header = os.pread(descriptor, length, end - length)
            if hashlib.sha256(header).digest() == digest:
                return RamFile(descriptor, end - length, header)
    os.close(descriptor)
    return None


def write(path: Path, memory: GuestMemory, pages: Iterable[tuple[int, int]], header: bytes) -> None:
    """Write RAM to a file, unless the file system is almost full.

    :param pages: the first page and the number of pages of each range that is not zero.
    :param header: the header of the snapshot, as in the snapshot file.
    :raises OSError: if the file cannot be written.
    """
    status = os.statvfs(path.parent)
    if status.f_bavail * status.f_frsize < LEAST_FREE + memory.size:
        return
    with replacing(path, durable=False) as file:
        for first, count in pages:
            at, end = first * PAGE, (first + count) * PAGE
            while at < end:
                at += os.pwrite(file.fileno(), memory.view[at:end], at)
        file.seek(memory.size)
        file.write(header + TAIL.pack(MAGIC, len(header), hashlib.sha256(header).digest()))
