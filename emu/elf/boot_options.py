"""Options for a kernel's boot loader: environment, boot flags, disks and the number of CPUs."""

import functools
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from emu.host.errors import ImageError, KinstError
from emu.host.input_file import Content, HeldFile, pieces, taken

ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_.%-]{0,127}=[ -~]{0,511}")
MAX_ENVIRONMENT = 256  # maximum number of environment variables
MAX_DISK = 8 << 30  # maximum size of a disk image in bytes
# Maximum size in bytes of an image that is copied.  A larger file is read in place, and must not
# change during the run.
COPIED = 64 << 20
MAX_DISKS = 4
TURN = 100_000
MAX_TURN = 1 << 40
SECTOR = 512
# Beginnings of files that contain a disk image in another form -> the form, what to do
PACKED = {
    b"\xfd7zXZ\0": ("file compressed by xz", "decompress it with unxz"),
    b"\x1f\x8b": ("file compressed by gzip", "decompress it with gunzip"),
    b"\x28\xb5\x2f\xfd": ("file compressed by zstd", "decompress it with unzstd"),
    b"QFI\xfb": ("qcow2 file", "convert it with qemu-img convert -O raw"),
    b"KDMV": ("VMDK file", "convert it with qemu-img convert -O raw"),
    b"conect": ("VHD file", "convert it with qemu-img convert -O raw"),
}
WIRE, PEER = "wire", "peer"  # kinds of networks
NETWORKS = WIRE, PEER
MAX_SHARED = 10_000  # maximum number of files that the network's peer offers
MAX_NAME = 512  # maximum length in characters of such a file's path
MAX_SEED = 64  # maximum length in characters of the entropy device's seed
MAX_DATE = (1 << 32) - 1  # last second that every board's clock can show: a PL031 has 32 bits


@dataclass(frozen=True)
class DiskImage:
    """A disk image: its file and its content.

    :param known: SHA-256 digest of the content, or an empty string if it must be computed.
    """

    path: Path
    content: Content
    known: str = ""

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 digest of the content, in hexadecimal."""
        if self.known:
            return self.known
        result = hashlib.sha256()
        for piece in pieces(self.content):
            result.update(piece)
        return result.hexdigest()


@dataclass(frozen=True)
class SharedFile:
    """A file that the network's peer offers.

    :param name: path below the folder, with ``/`` between its parts.
    """

    name: str
    content: Content


@dataclass(frozen=True)
class Network:
    """What the computer's network device is connected to.

    :param kind: ``wire``: nothing sends frames, except those given from outside; ``peer``: the
        built-in peer (``emu.network.peer``).
    :param files: files that the peer offers.
    """

    kind: str
    files: tuple[SharedFile, ...] = ()

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 digest of the kind and the files, in hexadecimal."""
        result = hashlib.sha256(self.kind.encode())
        for file in self.files:
            result.update(f"{len(file.name)} {file.name} {len(file.content)}".encode())
            for piece in pieces(file.content):
                result.update(piece)
        return result.hexdigest()


@dataclass(frozen=True)
class BootOptions:
    """Options for a kernel's boot loader and for the computer on which the kernel runs.

    :param environment: ``NAME=VALUE`` variables, which override the boot loader's own.
    :param flags: letters of boot flags, as after ``boot -`` at a loader's prompt.
    :param memory_disk: image that the loader puts into memory; it has the root file system.
    :param disks: images of the computer's disks; without a memory disk, the first one has the root
        file system.
    :param cpus: number of CPUs.
    :param turn: with several CPUs, instructions that a CPU executes before the next CPU's turn.
    :param date: time of day at the start of the boot, in seconds since 1970 (UTC); None: the guest
        finds no real-time clock.
    :param files: a disk that is empty until its content is inserted after the boot
        (``emu.devices.late_disk``); None: there is no such disk.
    :param network: what the network device is connected to; None: there is no such device.
    :param entropy: seed of the entropy device (``emu.devices.virtio_entropy``); None: there is no
        such device.
    :param serial: whether there is a second serial port.
    """

    environment: tuple[str, ...] = ()
    flags: str = ""
    memory_disk: DiskImage | None = None
    disks: tuple[DiskImage, ...] = ()
    cpus: int = 1
    turn: int = TURN
    date: int | None = None
    files: DiskImage | None = None
    network: Network | None = None
    entropy: str | None = None
    serial: bool = False

    @property
    def programs(self) -> bool:
        """Whether the kernel has a disk from which it can run programs."""
        return self.memory_disk is not None or bool(self.disks)

    @property
    def every_disk(self) -> tuple[DiskImage, ...]:
        """All disks, beginning with the memory disk if there is one."""
        return (*(() if self.memory_disk is None else (self.memory_disk,)), *self.disks)

    @property
    def late_digest(self) -> str:
        """Text that identifies the contents that ``digest`` leaves out."""
        return " ".join(([self.files.digest] if self.files is not None else [])
                        + ([self.network.digest] if self.network is not None else []))

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 digest of the options in hexadecimal; an empty string for default options.

        The contents of ``files`` and of the network's files are left out: a boot does not depend on
        the former, and a state that depends on the latter knows them (``Peer.used``).
        """
        if self == NOTHING:
            return ""
        disk = "" if self.memory_disk is None else self.memory_disk.digest
        text = "\n".join((*self.environment, f"-{self.flags}", disk,
                          *(image.digest for image in self.disks),
                          *([f"{self.cpus} CPUs, {self.turn}"] if self.cpus > 1 else []),
                          *([f"date {self.date}"] if self.date is not None else []),
                          *(["files"] if self.files is not None else []),
                          *([f"network {self.network.kind}"] if self.network else []),
                          *([f"entropy {self.entropy}"] if self.entropy is not None else []),
                          *(["serial"] if self.serial else [])))
        return hashlib.sha256(text.encode()).hexdigest()


NOTHING = BootOptions()


def is_disk(size: int) -> bool:
    """Return whether a number of bytes is a valid disk size."""
    return 0 < size <= MAX_DISK and size % SECTOR == 0


def disk_image(path: Path, in_memory: bool = False) -> DiskImage:
    """Read a disk image.

    An image of more than 64 MiB stays in its file, which is kept open (``HeldFile``); other images
    and memory disks are copied.

    :param in_memory: whether the image is for a memory disk.
    :raises ImageError: if the file cannot be read or is not a disk image.
    """
    held = HeldFile(path, MAX_DISK)
    content: Content = held
    if in_memory or len(held) <= COPIED:
        content = taken(path, MAX_DISK).content
        held.close()
    start = bytes(content[:6])
    for magic, (name, remedy) in PACKED.items():
        if start.startswith(magic):
            raise ImageError(f"{path}: is a {name}, not a disk image; {remedy}")
    if not is_disk(len(content)):
        raise ImageError(f"{path}: has {len(content)} bytes; the size of a disk image must be a "
                         f"multiple of {SECTOR} bytes and at most {MAX_DISK >> 20} MiB")
    return DiskImage(path, content)


def boot_options(environment: Sequence[str], flags: str, disk: Path | None,
                 disks: Sequence[Path] = ()) -> BootOptions:
    """Create boot options from command line arguments.

    :param environment: ``NAME=VALUE`` arguments; the last value of each name counts.
    :param flags: letters of boot flags, with or without ``-`` before them.
    :param disk: file of the memory disk.
    :param disks: files of the computer's disks.
    :raises KinstError: if an argument is malformed, or there are too many.
    :raises ImageError: if a disk image cannot be used; see ``disk_image``.
    """
    if len(disks) > MAX_DISKS:
        raise KinstError(f"--disk: {len(disks)} disks given, including that of --base; at most "
                         f"{MAX_DISKS} are allowed")
    for text in environment:
        if not ASSIGNMENT.fullmatch(text):
            raise KinstError(f"--env {text!r}: must be NAME=VALUE in printable ASCII characters")
    if len(environment) > MAX_ENVIRONMENT:
        raise KinstError(f"--env: {len(environment)} variables given; at most {MAX_ENVIRONMENT} "
                         "are allowed")
    last = dict(text.split("=", 1) for text in environment)
    return BootOptions(tuple(f"{name}={value}" for name, value in last.items()),
                       "".join(sorted(set(flags.removeprefix("-")))),
                       None if disk is None else disk_image(disk, in_memory=True),
                       tuple(disk_image(text) for text in disks))
