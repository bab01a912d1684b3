"""The entries that say where an inline copy is, as readelf shows them, and the sums that give its
addresses (DWARF 4, 2.17 and 3.3.8; DWARF 5, 2.17 and 3.3.8)."""

import io
from collections.abc import Iterator
from dataclasses import dataclass

from elftools.dwarf.die import DIE
from elftools.dwarf.ranges import BaseAddressEntry, RangeEntry, RangeLists

from dwarf.debug_file import sections
from dwarf.entries import Entries
from emu.elf.reader import ElfFile
from emu.host.printable import name as printable_name

RANGES = (".debug_ranges", ".debug_rnglists")
MAX_LIST = 1 << 16  # bytes of a range list
REFERENCES = ("DW_AT_abstract_origin", "DW_AT_specification", "DW_AT_type", "DW_AT_sibling")
OFFSETS = ("DW_AT_ranges", "DW_AT_stmt_list", "DW_AT_low_pc", "DW_AT_high_pc", "DW_AT_entry_pc",
           "DW_AT_str_offsets_base", "DW_AT_addr_base", "DW_AT_rnglists_base",
           "DW_AT_loclists_base")


@dataclass(frozen=True)
class Attribute:
    """An attribute, as readelf shows it.

    :param value: as text: addresses and offsets in hexadecimal, a reference as ``<0x...>``.
    """

    name: str
    value: str


@dataclass(frozen=True)
class DebugEntry:
    """An entry of .debug_info.

    :param offset: in the section.
    """

    offset: int
    tag: str
    attributes: tuple[Attribute, ...]


@dataclass(frozen=True)
class Sum:
    """How one piece of code follows: low = base + begin, high = base + end.

    :param base: what is added to; 0: ``begin`` and ``end`` are addresses.
    """

    base: int
    begin: int
    end: int

    @property
    def low(self) -> int:
        return self.base + self.begin

    @property
    def high(self) -> int:
        return self.base + self.end


@dataclass(frozen=True)
class CopyEntries:
    """What leads to an inline copy's code.

    :param function: the abstract function's entry, that the copy refers to.
    :param unit: the entry of the copy's unit: its DW_AT_low_pc is where offsets of ranges begin.
    :param sums: of its pieces of code, in the order of the debug data.
    """

    function: DebugEntry
    copy: DebugEntry
    unit: DebugEntry
    sums: tuple[Sum, ...]


class InlineEntries:
    """Reads them from a file.

    :raises DebugDataError: from every question, when the data is damaged.
    """

    def __init__(self, file: ElfFile) -> None:
        self._entries = Entries(file)
        self._lists = sections(file, RANGES)

    def entry(self, place: tuple[int, int]) -> DebugEntry:
        """The entry at (offset, offset of its unit)."""
        with self._entries.reading():
            return _shown(self._entries.entry(*place))

    def line_table(self, place: tuple[int, int]) -> int | None:
        """Where in .debug_line the files of an entry's unit are: what its DW_AT_decl_file means."""
        with self._entries.reading():
            unit = self._entries.entry(*place).cu.get_top_DIE()
            found = unit.attributes.get("DW_AT_stmt_list")
            return int(found.value) if found is not None else None

    def copy(self, place: tuple[int, int], function: tuple[int, int]) -> CopyEntries:
        """Of an inline copy: its entry is at ``place``, its function's at ``function``."""
        with self._entries.reading():
            die = self._entries.entry(*place)
            return CopyEntries(self.entry(function), _shown(die), _shown(die.cu.get_top_DIE()),
                               tuple(self._sums(die)))

    def _sums(self, die: DIE) -> Iterator[Sum]:
        if "DW_AT_ranges" in die.attributes:
            yield from self._list(die)
        elif "DW_AT_low_pc" in die.attributes and "DW_AT_high_pc" in die.attributes:
            low, high = die.attributes["DW_AT_low_pc"], die.attributes["DW_AT_high_pc"]
            absolute = high.form == "DW_FORM_addr" or high.form.startswith("DW_FORM_addrx")
            yield (Sum(0, int(low.value), int(high.value)) if absolute
                   else Sum(int(low.value), 0, int(high.value)))

    def _list(self, die: DIE) -> Iterator[Sum]:
        version = die.cu["version"]
        content = self._lists.get(RANGES[version >= 5], b"")
        offset = int(die.attributes["DW_AT_ranges"].value)
        part = io.BytesIO(content[offset : offset + MAX_LIST])
        lists = RangeLists(part, die.cu.structs, version, die.dwarfinfo)
        low = die.cu.get_top_DIE().attributes.get("DW_AT_low_pc")
        base = int(low.value) if low is not None else 0
        for one in lists.get_range_list_at_offset(0, die.cu):
            if isinstance(one, BaseAddressEntry):
                base = one.base_address
            elif isinstance(one, RangeEntry) and one.begin_offset < one.end_offset:
                yield Sum(0 if one.is_absolute else base, one.begin_offset, one.end_offset)


def _shown(die: DIE) -> DebugEntry:
    return DebugEntry(die.offset, die.tag, tuple(
        Attribute(name, _value(die, name)) for name in die.attributes))


def _value(die: DIE, name: str) -> str:
    attribute = die.attributes[name]
    value = attribute.value
    if name in REFERENCES and isinstance(value, int):
        return f"<{die.get_DIE_from_attribute(name).offset:#x}>"
    if isinstance(value, bytes):
        return printable_name(value)
    if not isinstance(value, int):
        return "..."
    return f"{value:#x}" if name in OFFSETS else str(int(value))
