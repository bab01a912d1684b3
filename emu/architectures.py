"""The architectures there are."""

from emu.arch import Arch
from emu.elf import Image
from emu.errors import ImageError
from emu.parts import Parts

ARCHITECTURES: Parts[Arch] = Parts("emu.{}.arch", "ARCH")


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
