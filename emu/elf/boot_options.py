"""What somebody tells a kernel's boot loader: environment, flags, a disk that it puts in memory."""

import functools
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from emu.host.errors import ImageError, KinstError
from emu.host.input_file import Content, HeldFile, pieces, taken

ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_.%-]{0,127}=[ -~]{0,511}")
MAX_ENVIRONMENT = 256  # variables
MAX_DISK = 8 << 30  # bytes
COPIED = 64 << 20  # bytes: a larger disk is held, and must stay as it is
MAX_DISKS = 4
TURN = 100_000
MAX_TURN = 1 << 40
SECTOR = 512


@dataclass(frozen=True)
class DiskImage:
    """The image of a disk."""

    path: Path
    content: Content

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256, in hexadecimal."""
        found = hashlib.sha256()
        for piece in pieces(self.content):
            found.update(piece)
        return found.hexdigest()


@dataclass(frozen=True)
class BootOptions:
    """:param environment: ``NAME=VALUE``, in the kernel's environment behind the loader's own.
    :param flags: letters, as behind ``boot -`` at a loader's prompt.
    :param memory_disk: what the loader puts in memory: the root file system.
    :param disks: what is attached to the computer; without a memory disk, the first is the root.
    :param cpus: how many the computer has; with several, ``turn`` is how many instructions one of
        them executes before it is another's turn.
    """

    environment: tuple[str, ...] = ()
    flags: str = ""
    memory_disk: DiskImage | None = None
    disks: tuple[DiskImage, ...] = ()
    cpus: int = 1
    turn: int = TURN

    @property
    def programs(self) -> bool:
        """Whether there is a file system to run programs from."""
        return self.memory_disk is not None or bool(self.disks)

    @property
    def every_disk(self) -> tuple[DiskImage, ...]:
        """The memory disk, if there is one, and the others."""
        return (*(() if self.memory_disk is None else (self.memory_disk,)), *self.disks)

    @functools.cached_property
    def digest(self) -> str:
        """What tells them from others; nothing when nothing was said."""
        if self == NOTHING:
            return ""
        disk = "" if self.memory_disk is None else self.memory_disk.digest
        said = "\n".join((*self.environment, f"-{self.flags}", disk,
                          *(one.digest for one in self.disks),
                          *([f"{self.cpus} CPUs, {self.turn}"] if self.cpus > 1 else [])))
        return hashlib.sha256(said.encode()).hexdigest()


NOTHING = BootOptions()


def is_disk(size: int) -> bool:
    """Whether a disk can have so many bytes."""
    return 0 < size <= MAX_DISK and size % SECTOR == 0


def disk_image(path: Path, in_memory: bool = False) -> DiskImage:
    """The image in a file.  It is copied; one of more than 64 MiB is held (``HeldFile``), unless it
    goes to memory anyway.

    :raises ImageError: when it cannot be read, or is no image of a disk.
    """
    held = HeldFile(path, MAX_DISK)
    content: Content = held
    if in_memory or len(held) <= COPIED:
        content = taken(path, MAX_DISK).content
        held.close()
    if not is_disk(len(content)):
        raise ImageError(f"{path}: has {len(content)} bytes: the image of a disk has a multiple of "
                         f"{SECTOR}, and at most {MAX_DISK >> 20} MiB here")
    return DiskImage(path, content)


def boot_options(environment: Sequence[str], flags: str, disk: Path | None,
                 disks: Sequence[Path] = ()) -> BootOptions:
    """From a command line.

    :param disk: the memory disk.

    :raises KinstError: when one is malformed.
    :raises ImageError: see ``disk_image``.
    """
    if len(disks) > MAX_DISKS:
        raise KinstError(f"--disk: {len(disks)} are given; {MAX_DISKS} are possible")
    for one in environment:
        if not ASSIGNMENT.fullmatch(one):
            raise KinstError(f"--env {one!r}: is not NAME=VALUE, of printable ASCII characters")
    if len(environment) > MAX_ENVIRONMENT:
        raise KinstError(f"--env: {len(environment)} variables are given; {MAX_ENVIRONMENT} are "
                         "possible")
    last = dict(one.split("=", 1) for one in environment)
    return BootOptions(tuple(f"{name}={value}" for name, value in last.items()),
                       "".join(sorted(set(flags.removeprefix("-")))),
                       None if disk is None else disk_image(disk, in_memory=True),
                       tuple(disk_image(one) for one in disks))
