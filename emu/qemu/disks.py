"""The disks of an image as QEMU's, and what its loader is told as a command line for the kernel."""

from pathlib import Path

from emu.elf import Image
from emu.errors import MachineError
from emu.freebsd.records import environment


def disk_words(image: Image, directory: Path, device: str) -> list[str]:
    """Options of QEMU's that attach the disks; their files go to the directory.

    :param device: QEMU's name of the kind of device.
    """
    words: list[str] = []
    for number, disk in enumerate(image.options.disks):
        path = directory / f"disk{number}"
        path.write_bytes(disk.content)
        words += ["-drive", f"if=none,id=disk{number},format=raw,cache=unsafe,file={path}",
                  "-device", f"{device},drive=disk{number}"]
    return words


def command_line(image: Image, guard: str = "") -> list[str]:
    """For a kernel that reads one (FreeBSD's boot_parse_cmdline).

    :param guard: what it must begin with to be read.
    :raises MachineError: for a memory disk, which QEMU's own loader does not take.
    """
    if image.options.memory_disk is not None:
        raise MachineError("QEMU's own boot takes no memory disk on this architecture: give --disk")
    told = [word.decode() for word in environment(image.options).split(b"\0") if word]
    if any(" " in word for word in told):
        raise MachineError("QEMU's own boot takes no variable with a space in it")
    if image.options.flags:
        told.append(f"-{image.options.flags}")
    return ["-append", " ".join([*([guard] if guard else []), *told])] if told else []
