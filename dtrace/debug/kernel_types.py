"""Types of a kernel and its modules, from DWARF or CTF."""

from dtrace.debug.debug_index import index_of
from dwarf.debug_file import DebugDataError, debug_file
from dwarf.dwarf_types import DwarfTypes
from dwarf.linked_types import LinkedTypes
from dwarf.types import Types
from emu.elf.image import Image

FORMATS = ("dwarf", "ctf")


def kernel_types(image: Image, source: str | None = None) -> Types:
    """Return the types of a kernel and its modules, from DWARF or, without DWARF, from CTF.

    :param source: an element of FORMATS, to use only that format.
    :raises DebugDataError: if the kernel has no types in that format.
    """
    kernel = _kernel_types(image, source)
    modules = [
        (number, module.address, module.end,
         DwarfTypes(found, index_of(module.file.elf, module.file.digest), module.address))
        for number, module in enumerate(image.modules, 1)
        if (found := debug_file(module.file.elf)) is not None] if source != "ctf" else []
    return LinkedTypes(kernel, modules) if modules else kernel


def _kernel_types(image: Image, source: str | None) -> Types:
    found = debug_file(image.file) if source != "ctf" else None
    if found is not None:
        return DwarfTypes(found, index_of(image.file, image.kernel_identity))
    types = _ctf_types(image) if source != "dwarf" else None
    if types is None:
        wanted = {"dwarf": "DWARF", "ctf": "CTF"}.get(source or "", "DWARF or CTF")
        raise DebugDataError(f"{image.path}: has no {wanted} types; put the matching "
                             f"{image.path.name}.debug with types in its directory")
    return types


def _ctf_types(image: Image) -> Types | None:
    from dwarf.ctf import ctf_types  # imported late: kernels with DWARF do not need it

    return ctf_types(image.file)
