"""Source lines of code addresses, from a kernel's line tables (DWARF 2 to 5)."""

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elftools.common.exceptions import DWARFError, ELFError
from elftools.dwarf.dwarfinfo import DWARFInfo
from elftools.elf.elffile import ELFFile

from emu.errors import KinstError

# What the library raises on damaged tables, beside its own errors.
DAMAGE = (DWARFError, ELFError, ValueError, KeyError, IndexError, AttributeError, TypeError,
          OverflowError, AssertionError, struct.error)


class DebugDataError(KinstError):
    """The debug data cannot be read."""


@dataclass(frozen=True)
class Line:
    """From ``address`` on, up to the next one's, code is of this line; 0: of none, the compiler
    has made it up."""

    address: int
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def source_lines(kernel: Path, begin: int, end: int) -> list[Line]:
    """The lines of the code at [begin, end), by address; empty where nothing is known.

    :param kernel: its debug data is in it, or beside it in ``<name>.debug``.
    :raises DebugDataError: when the tables are damaged.
    """
    for path in (kernel, kernel.with_name(kernel.name + ".debug")):
        try:
            with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
                elf = ELFFile(data)
                if elf.has_dwarf_info() and elf.get_section_by_name(".debug_line"):
                    return _lines(elf.get_dwarf_info(relocate_dwarf_sections=False), begin, end)
        except FileNotFoundError:
            continue
        except DAMAGE as error:
            raise DebugDataError(f"{path}: damaged debug data: {error}") from None
    return []


def _lines(dwarf: DWARFInfo, begin: int, end: int) -> list[Line]:
    for unit in dwarf.iter_CUs():
        if any(low < end and begin < high for low, high in _ranges(dwarf, unit)):
            found = _of_unit(dwarf, unit, begin, end)
            if found:
                return found
    return []


def _ranges(dwarf: DWARFInfo, unit: Any) -> Iterator[tuple[int, int]]:
    """The code of a compilation unit, as [low, high) pieces."""
    attributes = unit.get_top_DIE().attributes
    low = attributes["DW_AT_low_pc"].value if "DW_AT_low_pc" in attributes else 0
    if "DW_AT_high_pc" in attributes:
        high = attributes["DW_AT_high_pc"]
        yield low, high.value if high.form == "DW_FORM_addr" else low + high.value
    elif "DW_AT_ranges" in attributes:
        lists = dwarf.range_lists()
        if lists is None:
            return
        for entry in lists.get_range_list_at_offset(attributes["DW_AT_ranges"].value, unit):
            if hasattr(entry, "base_address"):
                low = entry.base_address
            elif getattr(entry, "is_absolute", False):
                yield entry.begin_offset, entry.end_offset
            else:
                yield low + entry.begin_offset, low + entry.end_offset


def _of_unit(dwarf: DWARFInfo, unit: Any, begin: int, end: int) -> list[Line]:
    program = dwarf.line_program_for_CU(unit)
    if program is None:
        return []
    found, before = [], None
    for entry in program.get_entries():
        state = entry.state
        if state is None:
            continue
        if before is not None and before.address < end and begin < state.address:
            found.append(Line(max(before.address, begin), _file(program, before.file),
                              before.line))
        before = None if state.end_sequence else state
    # A later row for the same address is the one that counts.
    return sorted({line.address: line for line in found}.values(), key=lambda one: one.address)


def _file(program: Any, number: int) -> str:
    """A file of a line table, with its directory when that says more."""
    header = program.header
    five = header.version >= 5
    entry = header.file_entry[number if five else number - 1]
    name, directory = entry.name, entry.dir_index
    directories = header.include_directory
    at = directory if five else directory - 1
    if name.startswith(b"/") or not 0 <= at < len(directories):
        return str(name.decode("utf-8", "replace"))
    return f"{directories[at].decode('utf-8', 'replace')}/{name.decode('utf-8', 'replace')}"
