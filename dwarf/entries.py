"""Debugging information entries (DIEs) of a file, read one at a time.

Types are read natively (``EntryFile``), everything else with pyelftools (``Entries``).
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager

from elftools.dwarf.compileunit import CompileUnit
from elftools.dwarf.die import DIE
from elftools.dwarf.dwarfinfo import DebugSectionDescriptor, DwarfConfig, DWARFInfo

from dwarf._entries import Entry, EntryReader
from dwarf.debug_file import DAMAGE, DebugDataError, views
from dwarf.index import DebugIndex
from emu.elf.reader import ElfFile

NAMES = (".debug_info", ".debug_abbrev", ".debug_str", ".debug_str_offsets", ".debug_line_str",
         ".debug_addr", ".debug_loclists", ".debug_rnglists")
NATIVE = (".debug_info", ".debug_abbrev", ".debug_str", ".debug_line_str", ".debug_str_offsets")
MAX_CHILDREN = 1 << 16  # maximum number of descendants of an entry


class _View(io.RawIOBase):
    """Binary stream that reads a section without copying it."""

    def __init__(self, content: memoryview) -> None:
        self._content, self._at = content, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the stream position, and return the new position.

        :raises ValueError: if the position is negative.
        """
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at,
                             io.SEEK_END: len(self._content)}[whence]
        if self._at < 0:
            raise ValueError(f"cannot seek to the negative offset {self._at}")
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        part = self._content[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)


class EntryFile:
    """Entries of a debug file, read natively.

    :param index: index of the file, which has the offsets of its units.
    :raises ValueError: from every method, if the data is damaged.
    """

    def __init__(self, file: ElfFile, index: DebugIndex) -> None:
        contents = views(file, NATIVE)
        self._reader = EntryReader(*(contents.get(name, b"") for name in NATIVE))
        self._index = index

    def entry(self, offset: int, unit: int) -> Entry:
        """Return the entry at an offset in .debug_info; ``unit`` is the offset of its unit."""
        return self._reader.entry(unit, offset)

    def children(self, entry: Entry, *tags: int) -> list[Entry]:
        """Return the children of an entry that have one of the given DW_TAG codes."""
        return self._reader.children(entry, *tags)

    def referred(self, entry: Entry, attribute: int) -> Entry:
        """Return the entry to which an attribute (DW_AT code) of an entry refers.

        :raises ValueError: also if the attribute is missing.
        """
        offset = entry.attributes.get(attribute)
        if not isinstance(offset, int):
            raise ValueError(f"the entry at {entry.offset:#x} has no reference {attribute:#x}")
        unit = (entry.unit if entry.unit <= offset < entry.end
                else self._index.unit_holding(offset))
        return self._reader.entry(unit, offset)


class Entries:
    """Debugging information entries (DIEs) of a debug file.

    :raises DebugDataError: from every method, if the data is damaged.
    """

    def __init__(self, file: ElfFile) -> None:
        self.file, self.path = file, file.path
        contents = views(file, NAMES)
        info, abbrev, string, offsets, line_str, addr, locations, ranges = (
            DebugSectionDescriptor(io.BufferedReader(_View(content)), name, 0, len(content), 0)
            if (content := contents.get(name)) is not None else None for name in NAMES)
        self._dwarf = DWARFInfo(
            config=DwarfConfig(little_endian=True, machine_arch="", default_address_size=8),
            debug_info_sec=info, debug_abbrev_sec=abbrev, debug_str_sec=string,
            debug_str_offsets_sec=offsets, debug_line_str_sec=line_str, debug_addr_sec=addr,
            debug_aranges_sec=None, debug_frame_sec=None, eh_frame_sec=None, debug_loc_sec=None,
            debug_ranges_sec=None, debug_line_sec=None, debug_pubtypes_sec=None,
            debug_pubnames_sec=None, debug_loclists_sec=locations, debug_rnglists_sec=ranges,
            debug_sup_sec=None, gnu_debugaltlink_sec=None, debug_types_sec=None,
        )

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Convert pyelftools exceptions for damaged data to DebugDataError.

        :raises DebugDataError: instead of an exception in ``DAMAGE``.
        """
        try:
            yield
        except DAMAGE as error:
            raise DebugDataError(f"{self.path}: damaged debug data: {error}") from None

    def entry(self, offset: int, unit: int) -> DIE:
        """Return the entry at an offset in .debug_info; ``unit`` is the offset of its unit."""
        with self.reading():
            compile_unit: CompileUnit = self._dwarf.get_CU_at(unit)
            return compile_unit.get_DIE_from_refaddr(offset)

    def children(self, entry: DIE, *tags: str) -> Iterator[DIE]:
        """Yield the children of an entry that have one of the given tags.

        The iterator of pyelftools is not used, because it follows DW_AT_sibling even backward.
        """
        if not entry.has_children:
            return
        offset, depth = entry.offset + entry.size, 1
        for _ in range(MAX_CHILDREN):
            child = entry.cu.get_DIE_from_refaddr(offset)
            offset += child.size
            if child.is_null():
                depth -= 1
                if depth == 0:
                    return
                continue
            if depth == 1 and child.tag in tags:
                yield child
            depth += child.has_children
        raise ValueError(f"the entry at {entry.offset:#x} has more than {MAX_CHILDREN} descendants")
