"""Address ranges of debugging information entries (DWARF 5, 2.17; DWARF 4, 2.17)."""

import io
from collections.abc import Iterator
from dataclasses import dataclass

from elftools.dwarf.die import DIE
from elftools.dwarf.ranges import BaseAddressEntry, RangeEntry, RangeLists

from dwarf.debug_file import sections
from emu.elf.reader import ElfFile

RANGES = (".debug_ranges", ".debug_rnglists")
MAX_LIST = 1 << 16  # maximum size in bytes of a range list


@dataclass(frozen=True)
class Sum:
    """Computation of an address range: low = base + begin, high = base + end.

    :param base: base address, or 0 if ``begin`` and ``end`` are addresses.
    """

    base: int
    begin: int
    end: int

    @property
    def low(self) -> int:
        """First address of the range."""
        return self.base + self.begin

    @property
    def high(self) -> int:
        """Address after the range."""
        return self.base + self.end


class Ranges:
    """Reader for the address ranges of a file's entries."""

    def __init__(self, file: ElfFile) -> None:
        self._file = file
        self._lists: dict[str, bytes] | None = None

    def of(self, die: DIE) -> Iterator[Sum]:
        """Yield the address ranges of an entry, in the order of the debug data.

        The caller converts the exceptions of pyelftools (``Entries.reading``).
        """
        if "DW_AT_ranges" in die.attributes:
            yield from self._list(die)
        elif "DW_AT_low_pc" in die.attributes and "DW_AT_high_pc" in die.attributes:
            low, high = die.attributes["DW_AT_low_pc"], die.attributes["DW_AT_high_pc"]
            absolute = high.form == "DW_FORM_addr" or high.form.startswith("DW_FORM_addrx")
            yield (Sum(0, int(low.value), int(high.value)) if absolute
                   else Sum(int(low.value), 0, int(high.value)))

    def _list(self, die: DIE) -> Iterator[Sum]:
        if self._lists is None:
            self._lists = sections(self._file, RANGES)
        version = die.cu["version"]
        content = self._lists.get(RANGES[version >= 5], b"")
        offset = int(die.attributes["DW_AT_ranges"].value)
        part = io.BytesIO(content[offset : offset + MAX_LIST])
        lists = RangeLists(part, die.cu.structs, version, die.dwarfinfo)
        low = die.cu.get_top_DIE().attributes.get("DW_AT_low_pc")
        base = int(low.value) if low is not None else 0
        for item in lists.get_range_list_at_offset(0, die.cu):
            if isinstance(item, BaseAddressEntry):
                base = item.base_address
            elif isinstance(item, RangeEntry) and item.begin_offset < item.end_offset:
                yield Sum(0 if item.is_absolute else base, item.begin_offset, item.end_offset)
