"""Index of the debug data of a kernel and its modules, kept in the user's cache."""

import hashlib

from dwarf.debug_file import DebugDataError, debug_file
from dwarf.index import DebugIndex, load
from dwarf.linked_index import IndexPart, LinkedIndex
from emu.elf.image import Image
from emu.elf.reader import ElfFile
from emu.host.fingerprint import fingerprint
from emu.host.progress import PROGRESS
from images.cache import cached_file

# Modules whose code determines the contents of an index.
MADE_BY = ("dwarf.index", "dwarf._scan", "dwarf._join", "dwarf.joined", "dwarf.debug_file")


def debug_index(image: Image) -> DebugIndex:
    """Return the index of the debug data of a kernel and its modules, from the user's cache.

    :raises DebugDataError: if there is no debug data.
    """
    parts = [(number, IndexPart(index_of(module.file.elf, module.file.digest), module.address,
                                module.end))
             for number, module in enumerate(image.modules, 1)
             if debug_file(module.file.elf) is not None]
    kernel = debug_file(image.file)
    if kernel is None and not parts:
        raise DebugDataError(f"{image.path}: has no debug data; put the matching "
                             f"{image.path.name}.debug in its directory")
    index = None if kernel is None else index_of(image.file, image.kernel_identity)
    return LinkedIndex(index, parts) if parts or index is None else index


def index_of(file: ElfFile, identity: str) -> DebugIndex:
    """Return the index of one file that has debug data, from the user's cache."""
    found = debug_file(file)
    assert found is not None
    # An index holds offsets in the debug file, so any change of that file requires a new index.
    key = f"{identity} {found.file.state} {fingerprint(MADE_BY)}"
    cache = cached_file("dwarf", f"{hashlib.sha256(key.encode()).hexdigest()}.index")
    with PROGRESS.working(f"indexing the debug data of {file.path}"):
        return load(file, cache)
