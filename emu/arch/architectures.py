"""The supported architectures."""

from pathlib import Path
from typing import Protocol

from emu.arch.arch import Arch
from emu.arch.parts import Parts
from emu.host.errors import ImageError

ARCHITECTURES: Parts[Arch] = Parts("emu.{}.arch", "ARCH")


class Made(Protocol):
    """A file and the machine it was built for (``e_machine`` without the EM_ prefix)."""

    @property
    def path(self) -> Path: ...

    @property
    def machine(self) -> str: ...


def arch_of(image: Made) -> Arch:
    """Return the architecture of an image.

    :raises ImageError: if the architecture is not supported.
    """
    for arch in ARCHITECTURES.values():
        if arch.elf_machine == image.machine:
            return arch
    raise ImageError(
        f"{image.path}: made for {image.machine}, which is not supported; supported "
        f"architectures: {', '.join(ARCHITECTURES)}"
    )
