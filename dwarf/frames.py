"""Call frame information: how to restore the registers of a function's caller (DWARF 5, 6.4).

The section is searched here, because a kernel's has 60,000 entries; pyelftools decodes only the
entry that covers an address.  It copies the rules of all registers for each row, so the product of
both is limited.
"""

import bisect
import io
import struct
from dataclasses import dataclass

from elftools.dwarf.callframe import FDE, CallFrameInfo
from elftools.dwarf.structs import DWARFStructs

from dwarf.debug_file import DAMAGE, DebugDataError

CIE = 0xFFFFFFFF  # CIE_id: marks an entry as a CIE instead of an FDE
MOST_RULES = 1 << 18  # maximum number of instructions of an entry, times that of the registers
# Instructions whose first operand is no register (DWARF 5, table 7.29): DW_CFA_advance_loc, whose
# operand is in its opcode; set_loc, advance_loc1, 2 and 4, def_cfa_offset, def_cfa_expression,
# def_cfa_offset_sf and GNU_args_size
PRIMARY, ADVANCE = 0xC0, 0x40
NO_REGISTER = frozenset({1, 2, 3, 4, 0x0E, 0x0F, 0x13, 0x2E})
MOST_ROWS = 1 << 12  # maximum number of cached entries
MAX_ENTRY = 1 << 12  # maximum size of an entry in bytes (in kernels: up to 1,000)


@dataclass(frozen=True)
class Rule:
    """Unwind rule at an instruction, with DWARF register numbers.

    :param base: register from which the canonical frame address (CFA) is computed.
    :param offset: amount to add to that register.
    :param saved: register -> offset from the CFA at which it is saved.
    :param returns: register (or column) that has the return address.
    :param ends: whether there is no caller (the return address is undefined).
    :param interrupted: whether the caller is code that a signal has interrupted, and not a call.
    """

    base: int
    offset: int
    saved: dict[int, int]
    returns: int
    ends: bool = False
    interrupted: bool = False


class Frames:
    """Call frame information in .debug_frame.

    :param section: its contents.
    :raises DebugDataError: if the section is damaged.
    """

    name = ".debug_frame"

    def __init__(self, section: bytes) -> None:
        self._section = section
        self._entries: list[tuple[int, int, int, int, int]] = []  # FDE: low, high, offset, end, CIE
        self._rows: dict[int, list[tuple[int, Rule | None]]] = {}
        at = 0
        try:
            while at + 4 <= len(section):
                length, cie = struct.unpack_from("<II", section, at)
                end = at + 4 + length
                if length >= 0xFFFFFFF0 or end > len(section):
                    raise DebugDataError(f"damaged .debug_frame at {at:#x}")
                if cie != CIE and length:
                    low, size = struct.unpack_from("<QQ", section, at + 8)
                    self._entries.append((low, low + size, at, end, cie))
                at = end
        except struct.error:
            raise DebugDataError(f"damaged .debug_frame at {at:#x}") from None
        self._entries.sort()

    def rule(self, address: int) -> Rule | None:
        """Return the unwind rule at an address, or None if it is unknown.

        :raises DebugDataError: if the entry for the address is damaged.
        """
        rows, _end = self._rows_at(address)
        row = bisect.bisect_right(rows, address, key=lambda r: r[0]) - 1
        return rows[row][1] if row >= 0 else None

    def body(self, address: int, register: int | None) -> Rule | None:
        """Return the unwind rule between a function's prologue and epilogue, or None if unknown.

        :param register: register that holds the frame base, or None for any other expression.
        :raises DebugDataError: if the entry for the address is damaged.
        """
        rows, end = self._rows_at(address)
        covered: dict[tuple[int, int], tuple[int, Rule]] = {}
        if not rows:
            return None
        first = rows[0][1]
        stack_pointer = None if first is None else first.base  # base register at function entry
        for (low, rule), high in zip(rows, [*(low for low, _rule in rows[1:]), end], strict=True):
            if rule is not None:
                known = covered.get((rule.base, rule.offset), (0, rule))[0]
                covered[rule.base, rule.offset] = known + high - low, rule
        framed = [one for one in covered.values() if one[1].base != stack_pointer]
        if register == stack_pointer and not framed:
            return max((rule for _bytes, rule in covered.values()), key=lambda rule: rule.offset,
                       default=None)
        if register not in (None, stack_pointer):
            framed = [one for one in framed if one[1].base == register]
        candidates = framed if register is not None else list(covered.values())
        return max(candidates, key=lambda one: one[0])[1] if candidates else None

    def stack_pointer(self, address: int) -> int | None:
        """Return the register of the frame at the entry of the function around an address.

        It is the stack pointer; None if it is unknown.
        """
        rows, _end = self._rows_at(address)
        return rows[0][1].base if rows and rows[0][1] is not None else None

    def _rows_at(self, address: int) -> tuple[list[tuple[int, Rule | None]], int]:
        """Return the rows of the entry that covers an address, and the entry's end address."""
        at = bisect.bisect_right(self._entries, (address, 1 << 64)) - 1
        if at < 0 or not self._entries[at][0] <= address < self._entries[at][1]:
            return [], 0
        offset = self._entries[at][2]
        if offset not in self._rows:
            if len(self._rows) >= MOST_ROWS:
                self._rows.clear()
            try:
                self._rows[offset] = self._decode(*self._entries[at][2:])
            except DAMAGE as error:
                raise DebugDataError(f"damaged {self.name} at {offset:#x}: {error}") from None
        return self._rows[offset], self._entries[at][1]

    def _decode(self, at: int, end: int, cie: int) -> list[tuple[int, Rule | None]]:
        """Decode an entry into rows of (first address, rule), sorted by address."""
        length, kind = struct.unpack_from("<II", self._section, cie)
        if kind != CIE:
            raise ValueError("an FDE does not refer to a CIE")
        if max(end - at, length) > MAX_ENTRY or cie + 4 + length > len(self._section):
            raise ValueError(f"the entry is truncated or larger than {MAX_ENTRY} bytes")
        # Pass only the CIE and the FDE to pyelftools; the CIE comes first, so that its offset is 0.
        content = bytearray(self._section[cie : cie + 4 + length])
        content += self._section[at : at + 4] + bytes(4) + self._section[at + 8 : end]
        return decoded(bytes(content))


def decoded(content: bytes, interrupted: bool = False) -> list[tuple[int, Rule | None]]:
    """Decode a CIE and one FDE into rows of (first address, rule), sorted by address.

    :param content: both in the format of .debug_frame, the CIE at offset 0.
    :param interrupted: see ``Rule``.
    :raises DAMAGE: if they are damaged.
    """
    info = CallFrameInfo(io.BytesIO(content), len(content), 0, DWARFStructs(
        little_endian=True, dwarf_format=32, address_size=8))
    entry = info.get_entries()[-1]
    if not isinstance(entry, FDE):
        raise ValueError("the entry is not an FDE")
    instructions = [*entry.cie.instructions, *entry.instructions]
    registers = {one.args[0] for one in instructions
                 if one.args and one.opcode & PRIMARY != ADVANCE and one.opcode not in NO_REGISTER}
    if len(instructions) * len(registers) > MOST_RULES:
        raise ValueError(f"it describes more than {MOST_RULES} values of registers")
    returns = int(entry.cie["return_address_register"])
    rows: list[tuple[int, Rule | None]] = []
    for row in entry.get_decoded().table:
        cfa, rule = row["cfa"], None
        if cfa.reg is not None and cfa.offset is not None:
            saved = {number: how.arg for number, how in row.items()
                     if isinstance(number, int) and how.type == "OFFSET"}
            ends = returns in row and row[returns].type == "UNDEFINED"
            rule = Rule(cfa.reg, cfa.offset, saved, returns, ends, interrupted)
        rows.append((row["pc"], rule))
    return rows
