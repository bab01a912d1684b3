"""The disks of an image as QEMU's."""

from pathlib import Path

from emu.elf.image import Image
from emu.host.input_file import pieces


def disk_words(image: Image, directory: Path, device: str) -> list[str]:
    """Options of QEMU's that attach the disks; their files go to the directory.

    :param device: QEMU's name of the kind of device.
    """
    words: list[str] = []
    for number, disk in enumerate(image.options.disks):
        path = directory / f"disk{number}"
        with path.open("wb") as file:
            file.writelines(pieces(disk.content))
        words += ["-drive", f"if=none,id=disk{number},format=raw,cache=unsafe,file={path}",
                  "-device", f"{device},drive=disk{number}"]
    return words
