"""The architectures there are."""

from emu.amd64.arch import Amd64
from emu.arch import Arch
from emu.arm64.arch import Arm64
from emu.elf import Image
from emu.errors import ImageError
from emu.riscv64.arch import Riscv64

ARCHITECTURES: dict[str, Arch] = {arch.name: arch for arch in (Amd64(), Arm64(), Riscv64())}


def arch_of(image: Image) -> Arch:
    """The architecture of an image.

    :raises ImageError: when it is none of ours.
    """
    for arch in ARCHITECTURES.values():
        if arch.elf_machine == image.machine:
            return arch
    raise ImageError(
        f"{image.path}: made for {image.machine}; kernels of {', '.join(ARCHITECTURES)} run here"
    )
