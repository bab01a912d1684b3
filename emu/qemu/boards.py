"""QEMU boards, keyed by architecture, and the command that boots a kernel on a board."""

import shutil
from pathlib import Path

from emu.arch.parts import Parts
from emu.elf.image import Image
from emu.host.errors import MachineError
from emu.qemu.board import QemuBoard

BOARDS: Parts[QemuBoard] = Parts("emu.qemu.{}.board", "BOARD")


def installed(program: str) -> str:
    """Return the name of a program after checking that it is installed.

    :raises MachineError: if it is not installed.
    """
    if shutil.which(program) is None:
        raise MachineError(
            f"{program} is not installed; on Debian: apt-get install qemu-system-x86 "
            "qemu-system-arm qemu-system-misc util-linux"
        )
    return program


def command(arch: str, image: Image, memory: int, directory: Path) -> list[str]:
    """Return the command that boots an image with its console on standard output.

    :raises MachineError: if QEMU is not installed.
    """
    board = BOARDS[arch]
    return [installed(board.program), "-M", board.machine, "-cpu", board.cpu, "-nodefaults",
            "-display", "none", "-no-reboot", "-m", f"{memory >> 20}M", "-serial", "stdio",
            *board.boot(image, memory, directory)]
