"""How QEMU boots a riscv64 kernel: the ELF file as it is, behind QEMU's own firmware."""

from pathlib import Path

from emu.elf import Image


def command(image: Image, memory: int, directory: Path) -> list[str]:
    """The command that boots the kernel with its console on standard output."""
    return ["qemu-system-riscv64", "-M", "virt", "-nodefaults", "-display", "none", "-no-reboot",
            "-m", f"{memory >> 20}M", "-serial", "stdio", "-kernel", str(image.path)]
