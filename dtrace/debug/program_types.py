"""Types of programs and shared objects of the guest, from their DWARF or CTF."""

import functools
import hashlib

from dtrace.debug.debug_index import index_of
from dwarf.ctf import ctf_types
from dwarf.debug_file import DebugDataError, debug_file
from dwarf.dwarf_types import DwarfTypes
from dwarf.index import DebugIndex
from dwarf.types import Types
from emu.elf.program import ProgramFile
from emu.elf.reader import ElfFile

MOST_FILES = 64  # maximum number of files whose types are remembered
SECTIONS = (".debug_info", ".SUNW_ctf")
SUPPLEMENTS = (".gnu_debugaltlink", ".debug_sup")  # sections that name one more file


@functools.lru_cache(maxsize=MOST_FILES)
def program_types(file: ProgramFile) -> Types | None:
    """Return the types of a program or shared object, or None if it has neither DWARF nor CTF.

    :raises DebugDataError: if its debug data is damaged.
    """
    moved = types_when_moved(file, 0)
    if moved is not None:
        return moved
    for elf in file.elf_files:
        types = ctf_types(elf)
        if types is not None:
            return types
    return None


@functools.lru_cache(maxsize=MOST_FILES)
def types_when_moved(file: ProgramFile, moved: int) -> DwarfTypes | None:
    """Return the types from a file's DWARF, or None if it has none.

    :param moved: how many bytes the file was moved from the addresses in it; locations in the types
        have the addresses in memory.
    :raises DebugDataError: if the debug data is damaged.
    """
    found, index = dwarf_of(file), program_index(file)
    return None if found is None or index is None else DwarfTypes(found, index, moved)


@functools.lru_cache(maxsize=MOST_FILES)
def program_index(file: ProgramFile) -> DebugIndex | None:
    """Return the index of a file's DWARF, or None if it has none.

    :raises DebugDataError: if the debug data is damaged.
    """
    found = dwarf_of(file)
    return None if found is None else index_of(found, hashlib.sha256(found.data).hexdigest())


def dwarf_of(file: ProgramFile) -> ElfFile | None:
    """Return the file with the DWARF of a program or shared object, or None if there is none."""
    for elf in file.elf_files:
        _without_companions(elf)
        if debug_file(elf) is not None:
            return elf
    return None


def _without_companions(elf: ElfFile) -> None:
    """Let no file of the host belong to a file of the guest that has the same path.

    :raises DebugDataError: if the file says that another one belongs to it.
    """
    if any(elf.section(name) is not None for name in SUPPLEMENTS):
        raise DebugDataError(f"{elf.path}: parts of its debug data are in another file (dwz), "
                             "which is not read for programs")
    for name in SECTIONS:
        elf.companions.setdefault(name, None)
