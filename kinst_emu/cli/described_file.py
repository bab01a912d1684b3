"""The file whose debug data a command shows: a kernel, or another file that has some."""

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
    """What a user named: a kernel by file or name; or a module (``.ko``), an object file, or a file
    of debug data (``kernel.debug``), for which the file beside it is read that has its code.

    :param modules: of a kernel, as ``catalog.find`` takes them.
    :raises ImageError: when there is no such file, or it is none of these.
    """
    path = Path(text)
    try:
        return catalog.find(text, modules)
    except ImageError:
        if modules or not path.is_file():
            raise
    found = file_image(path)
    arch_of(found)
    if found.segments or path.suffix != DEBUG:
        return found
    code = path.with_suffix("")
    if not code.is_file():
        return found  # its symbols and debug data, without code
    other = described_file(str(code))
    debug = debug_file(other.file)
    return other if debug is not None and debug.path == path else found
