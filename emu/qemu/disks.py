"""QEMU options for the disks of an image."""

from pathlib import Path

from emu.elf.image import Image
from emu.host.input_file import pieces


def disk_words(image: Image, directory: Path, device: str) -> list[str]:
    """Write the disks to files in a directory and return the QEMU options that attach them.

    :param device: the name of the device model in QEMU.
    """
    words: list[str] = []
    for number, disk in enumerate(image.options.disks):
        path = directory / f"disk{number}"
        with path.open("wb") as file:
            file.writelines(pieces(disk.content))
        words += ["-drive", f"if=none,id=disk{number},format=raw,cache=unsafe,file={path}",
                  "-device", f"{device},drive=disk{number}"]
    return words
