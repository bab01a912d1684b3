"""Debugging information entries of an inline copy, and how they determine its addresses.

Entries are formatted as in readelf output.  See DWARF 4, 2.17 and 3.3.8; DWARF 5, 2.17 and 3.3.8.
"""

from dataclasses import dataclass

from elftools.dwarf.die import DIE

from dwarf.entries import Entries
from dwarf.ranges import Ranges, Sum
from emu.elf.reader import ElfFile
from emu.host.printable import name as printable_name

REFERENCES = ("DW_AT_abstract_origin", "DW_AT_specification", "DW_AT_type", "DW_AT_sibling")
OFFSETS = ("DW_AT_ranges", "DW_AT_stmt_list", "DW_AT_low_pc", "DW_AT_high_pc", "DW_AT_entry_pc",
           "DW_AT_str_offsets_base", "DW_AT_addr_base", "DW_AT_rnglists_base",
           "DW_AT_loclists_base")


@dataclass(frozen=True)
class Attribute:
    """An attribute of a debugging information entry, formatted as in readelf output.

    :param value: text with addresses and offsets in hexadecimal, and a reference as ``<0x...>``.
    """

    name: str
    value: str


@dataclass(frozen=True)
class DebugEntry:
    """A debugging information entry, formatted as in readelf output.

    :param offset: offset in .debug_info.
    """

    offset: int
    tag: str
    attributes: tuple[Attribute, ...]


@dataclass(frozen=True)
class CopyEntries:
    """Debugging information entries that determine the address ranges of an inline copy.

    :param function: entry of the abstract function that the copy refers to.
    :param copy: entry of the copy.
    :param unit: entry of the copy's unit; its DW_AT_low_pc is the base of range lists.
    :param sums: address ranges of the copy, in the order of the debug data.
    """

    function: DebugEntry
    copy: DebugEntry
    unit: DebugEntry
    sums: tuple[Sum, ...]


class InlineEntries:
    """Reader for the entries that describe inline copies.

    :raises DebugDataError: from every method, if the data is damaged.
    """

    def __init__(self, file: ElfFile) -> None:
        self._entries = Entries(file)
        self._ranges = Ranges(file)

    def entry(self, place: tuple[int, int]) -> DebugEntry:
        """Return the entry at ``place``, which is (offset, offset of its unit) in .debug_info."""
        with self._entries.reading():
            return _shown(self._entries.entry(*place))

    def line_table(self, place: tuple[int, int]) -> int | None:
        """Return the offset in .debug_line of the file table for DW_AT_decl_file, or None."""
        with self._entries.reading():
            unit = self._entries.entry(*place).cu.get_top_DIE()
            attribute = unit.attributes.get("DW_AT_stmt_list")
            return int(attribute.value) if attribute is not None else None

    def copy(self, place: tuple[int, int], function: tuple[int, int]) -> CopyEntries:
        """Return the entries that describe an inline copy.

        :param place: (offset, offset of its unit) of the copy's entry.
        :param function: (offset, offset of its unit) of the abstract function's entry.
        """
        with self._entries.reading():
            die = self._entries.entry(*place)
            return CopyEntries(self.entry(function), _shown(die), _shown(die.cu.get_top_DIE()),
                               tuple(self._ranges.of(die)))


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
