"""The index of the debug data of a kernel and its modules, from the user's cache."""

import hashlib

from dwarf.debug_file import DebugDataError, debug_file
from dwarf.index import DebugIndex, load
from dwarf.linked_index import IndexPart, LinkedIndex
from emu.elf.image import Image
from emu.elf.reader import ElfFile
from emu.host.fingerprint import fingerprint
from emu.host.progress import PROGRESS
from images.cache import cached_file

MADE_BY = ("dwarf.index", "dwarf._scan", "dwarf._join", "dwarf.joined",
           "dwarf.debug_file")  # what an index is


def debug_index(image: Image) -> DebugIndex:
    """The index of the debug data of a kernel and its modules, from the user's cache.

    :raises DebugDataError: when there is none.
    """
    parts = [(number, IndexPart(index_of(module.file.elf, module.file.digest), module.address,
                                module.end))
             for number, module in enumerate(image.modules, 1)
             if debug_file(module.file.elf) is not None]
    kernel = debug_file(image.file)
    if kernel is None and not parts:
        raise DebugDataError(f"{image.path}: has no debug data, and no {image.path.name}.debug is "
                             "beside it")
    index = None if kernel is None else index_of(image.file, image.kernel_identity)
    return LinkedIndex(index, parts) if parts or index is None else index


def index_of(file: ElfFile, identity: str) -> DebugIndex:
    """The index of one file that has debug data."""
    found = debug_file(file)
    assert found is not None
    # Offsets in the file: another file, or the same one changed, needs another index.
    key = f"{identity} {found.file.state} {fingerprint(MADE_BY)}"
    cache = cached_file("dwarf", f"{hashlib.sha256(key.encode()).hexdigest()}.index")
    with PROGRESS.working(f"indexing the debug data of {file.path}"):
        return load(file, cache)
