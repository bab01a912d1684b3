"""SHA-256 digests of large disk images, kept in the cache as long as the files do not change."""

import contextlib
import hashlib
import re
from dataclasses import replace

from emu.elf.boot_options import BootOptions, DiskImage
from emu.host.atomic_file import replacing
from emu.host.input_file import HeldFile
from images.cache import cached_file

DIGEST = re.compile(r"[0-9a-f]{64}")


def with_known_digests(options: BootOptions) -> BootOptions:
    """Return boot options whose large disks have their digests."""
    return replace(options, disks=tuple(map(_known, options.disks)))


def _known(disk: DiskImage) -> DiskImage:
    if not isinstance(disk.content, HeldFile):
        return disk
    name = hashlib.sha256(repr(disk.content.state).encode()).hexdigest()
    path = cached_file("digests", f"{name}.sha256")
    with contextlib.suppress(OSError, UnicodeDecodeError):
        digest = path.read_text("ascii").strip()
        if DIGEST.fullmatch(digest):
            return replace(disk, known=digest)
    with contextlib.suppress(OSError), replacing(path) as file:  # the cache may be read-only
        file.write(disk.digest.encode() + b"\n")
    return disk
