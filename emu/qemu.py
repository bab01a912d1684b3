"""QEMU as the independent machine: how each architecture's kernels are booted there."""

import shutil
from collections.abc import Callable
from pathlib import Path

from emu.amd64 import qemu as amd64
from emu.arm64 import qemu as arm64
from emu.elf import Image
from emu.errors import KinstError
from emu.riscv64 import qemu as riscv64

COMMANDS: dict[str, Callable[[Image, int, Path], list[str]]] = {
    "amd64": amd64.command, "arm64": arm64.command, "riscv64": riscv64.command,
}


def command(arch: str, image: Image, memory: int, directory: Path) -> list[str]:
    """The command that boots an image.

    :raises KinstError: when that QEMU is not installed.
    """
    words = COMMANDS[arch](image, memory, directory)
    if shutil.which(words[0]) is None:
        raise KinstError(
            f"{words[0]} is not installed; on Debian: apt-get install qemu-system-x86 "
            "qemu-system-arm qemu-system-misc"
        )
    return words
