"""Lookup of the file whose debug data a command shows, such as a kernel."""

from collections.abc import Sequence
from pathlib import Path

from dwarf.debug_file import debug_file
from emu.arch.architectures import arch_of
from emu.elf.file_image import file_image
from emu.elf.image import Image
from emu.host.errors import ImageError
from images import catalog

DEBUG = ".debug"


def described_file(text: str, modules: Sequence[str] = ()) -> Image:
    """Load the kernel, module (``.ko``), object file or debug file that a user names.

    For a debug file (``kernel.debug``), the file next to it that contains its code is loaded.

    :param modules: kernel modules to load with it, as ``catalog.find`` takes them.
    :raises ImageError: when the file does not exist or has another format.
    """
    path = Path(text)
    try:
        return catalog.find(text, modules)
    except ImageError:
        if modules or not path.is_file():
            raise
    image = file_image(path)
    arch_of(image)
    if image.segments or path.suffix != DEBUG:
        return image
    code = path.with_suffix("")
    if not code.is_file():
        return image  # the file has symbols and debug data, but no code
    other = described_file(str(code))
    debug = debug_file(other.file)
    return other if debug is not None and debug.path == path else image
