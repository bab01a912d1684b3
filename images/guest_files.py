"""Files of a guest, read from its disks as they were when it was booted."""

from collections.abc import Callable
from pathlib import Path

from emu.elf.boot_options import DiskImage
from emu.elf.image import Image
from emu.elf.program import same_code
from emu.elf.reader import ELF_MAGIC, MAX_FILE
from emu.guests.registry import root_offset
from emu.host.input_file import InputFile, taken
from images.ufs_files import DiskFileError, DiskFiles

SHARED = "/files/"  # where the guest mounts the disk with the files of a host directory


def guest_files(image: Image, sysroot: Path | None = None) -> Callable[[str], bytes]:
    """Return a function that reads a file of the guest, given its absolute path.

    It raises ``KinstError`` if the file cannot be read.  Writes of the guest are not seen.

    :param sysroot: host directory with files that are read instead.  Their code must be that of the
        guest's files.
    """
    options = image.options
    known: dict[bool, DiskFiles] = {}

    def of_disk(path: str) -> bytes:
        shared = path.startswith(SHARED) and options.files is not None
        disk = options.files if shared else (
            options.memory_disk or (options.disks[0] if options.disks else None))
        if disk is None:
            raise DiskFileError(f"{path}: the guest has no disk")
        if shared not in known:
            known[shared] = _opened(disk)
        return known[shared].read(path.removeprefix(SHARED[:-1]) if shared else path)

    def read(path: str) -> bytes:
        parts = [part for part in path.split("/") if part]
        beside = None if sysroot is None or ".." in parts else sysroot.joinpath(*parts)
        if beside is None or not beside.is_file():
            return of_disk(path)
        chosen = taken(beside, MAX_FILE, ELF_MAGIC)
        try:
            own = of_disk(path)
        except DiskFileError:
            return bytes(chosen.content)
        if not same_code(chosen, InputFile(Path(path), memoryview(own), chosen.state)):
            raise DiskFileError(f"{beside}: its code is not that of the guest's {path}")
        return bytes(chosen.content)

    return read


def _opened(disk: DiskImage) -> DiskFiles:
    start = root_offset(disk.content)

    def read(at: int, size: int) -> bytes:
        return bytes(disk.content[start + at : start + at + size])

    return DiskFiles(read, str(disk.path))
