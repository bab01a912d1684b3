"""A kernel's types, from whichever debug data it has."""

from dtrace.debug_data import debug_index
from dwarf.ctf import ctf_types
from dwarf.debug_file import DebugDataError, debug_file
from dwarf.dwarf_types import DwarfTypes
from dwarf.types import Types
from emu.elf import Image

FORMATS = ("dwarf", "ctf")


def kernel_types(image: Image, source: str | None = None) -> Types:
    """A kernel's types: from DWARF, or from CTF where there is no DWARF.

    :param source: one of FORMATS: only from there.
    :raises DebugDataError: when it has none.
    """
    path = debug_file(image.path) if source != "ctf" else None
    if path is not None:
        return DwarfTypes(path, debug_index(image))
    types = ctf_types(image.path) if source != "dwarf" else None
    if types is None:
        wanted = {"dwarf": "DWARF", "ctf": "CTF"}.get(source or "", "DWARF or CTF")
        raise DebugDataError(f"{image.path}: has no types: no {wanted} in it, nor in a "
                             f"{image.path.name}.debug beside it")
    return types
