"""Files of a guest, read from its disks as they were when it was booted."""

from collections.abc import Callable

from emu.elf.boot_options import DiskImage
from emu.elf.image import Image
from emu.guests.registry import root_offset
from images.ufs_files import DiskFileError, DiskFiles

SHARED = "/files/"  # where the guest mounts the disk with the files of a host directory


def guest_files(image: Image) -> Callable[[str], bytes]:
    """Return a function that reads a file of the guest, given its absolute path.

    It raises ``DiskFileError`` if the file cannot be read.  Writes of the guest are not seen.
    """
    options = image.options
    known: dict[bool, DiskFiles] = {}

    def read(path: str) -> bytes:
        shared = path.startswith(SHARED) and options.files is not None
        disk = options.files if shared else (
            options.memory_disk or (options.disks[0] if options.disks else None))
        if disk is None:
            raise DiskFileError(f"{path}: the guest has no disk")
        if shared not in known:
            known[shared] = _opened(disk)
        return known[shared].read(path.removeprefix(SHARED[:-1]) if shared else path)

    return read


def _opened(disk: DiskImage) -> DiskFiles:
    start = root_offset(disk.content)

    def read(at: int, size: int) -> bytes:
        return bytes(disk.content[start + at : start + at + size])

    return DiskFiles(read, str(disk.path))
