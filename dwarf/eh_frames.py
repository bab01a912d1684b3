"""Call frame information of programs, in .eh_frame (LSB 5.0, core, 10.6).

The entries are converted to the format of .debug_frame, so that one decoder handles both.
"""

import bisect
import struct
from dataclasses import dataclass

from dwarf.debug_file import DAMAGE, DebugDataError
from dwarf.frames import CIE, MAX_ENTRY, Frames, Rule, decoded

# DW_EH_PE_*: formats of an address, and what it is relative to (LSB 5.0, core, 10.5.1)
FORMATS = {0: "<Q", 2: "<H", 3: "<I", 4: "<Q", 10: "<h", 11: "<i", 12: "<q"}
ABSOLUTE, RELATIVE = 0, 0x10  # relative to the place of the address itself
MOST_ENTRIES, MOST_CIES = 1 << 20, 1 << 12
MASK = (1 << 64) - 1
MOST_BYTES = 1 << 16  # maximum size of an entry in bytes (in programs: up to 10,000)
MOST_DIGITS = 10  # maximum length of a LEB128 number in bytes


@dataclass(frozen=True)
class Cie:
    """The part of a CIE that its FDEs need.

    :param head: the CIE in the format of .debug_frame.
    :param pointers: encoding of addresses.
    :param augmented: whether FDEs contain augmentation data.
    :param interrupted: see ``Rule``.
    """

    head: bytes
    pointers: int
    augmented: bool
    interrupted: bool


class EhFrames(Frames):
    """Call frame information in .eh_frame.

    :param section: its contents.
    :param address: address of the section before the file is moved; so are those of the rules.
    :raises DebugDataError: if the section is damaged.
    """

    def __init__(self, section: bytes, address: int) -> None:
        super().__init__(b"")
        self.name = ".eh_frame"
        self._section, self._address = section, address
        self._cies: dict[int, Cie] = {}
        at = 0
        try:
            while at + 4 <= len(section) and len(self._entries) < MOST_ENTRIES:
                length = struct.unpack_from("<I", section, at)[0]
                end = at + 4 + length
                if length == 0:
                    break
                if length >= 0xFFFFFFF0 or end > len(section) or length < 4:
                    raise ValueError("the length of an entry is wrong")
                back = struct.unpack_from("<I", section, at + 4)[0]
                if back:
                    cie = at + 4 - back
                    low, size, data = self._range(at + 8, self._cie(cie))
                    if data > end:
                        raise ValueError("the length of an entry is wrong")
                    self._entries.append((low, low + size, at, end, cie))
                at = end
        except DAMAGE as error:
            raise DebugDataError(f"damaged .eh_frame at {at:#x}: {error}") from None
        self._entries.sort()

    def ranges(self) -> list[tuple[int, int]]:
        """Return the first address of each function and that after its last one, sorted."""
        return [(low, high) for low, high, *_places in self._entries]

    def range_at(self, address: int) -> tuple[int, int] | None:
        """Return the first address of the function at an address and that after its last one."""
        at = bisect.bisect_right(self._entries, (address, 1 << 64)) - 1
        if at < 0 or not self._entries[at][0] <= address < self._entries[at][1]:
            return None
        return self._entries[at][:2]

    def _range(self, at: int, cie: Cie) -> tuple[int, int, int]:
        """Return the first address and the size of an FDE's code, and where its data begins."""
        layout = FORMATS.get(cie.pointers & 0xF)
        if layout is None or cie.pointers & 0xF0 not in (ABSOLUTE, RELATIVE):
            raise ValueError(f"encoding {cie.pointers:#x} of addresses is not supported")
        width = struct.calcsize(layout)
        low = struct.unpack_from(layout, self._section, at)[0]
        if cie.pointers & 0xF0 == RELATIVE:
            low += self._address + at
        size = struct.unpack_from(layout.upper(), self._section, at + width)[0]
        return low & MASK, size, at + 2 * width

    def _cie(self, at: int) -> Cie:
        if at not in self._cies:
            if len(self._cies) >= MOST_CIES:
                raise ValueError(f"there are more than {MOST_CIES} CIEs")
            self._cies[at] = self._read_cie(at)
        return self._cies[at]

    def _read_cie(self, at: int) -> Cie:
        if at < 0:
            raise ValueError("an FDE refers to a CIE before the section")
        length, kind, version = struct.unpack_from("<IIB", self._section, at)
        end = at + 4 + length
        if kind or version not in (1, 3) or length > MAX_ENTRY or end > len(self._section):
            raise ValueError("an FDE does not refer to a CIE")
        cie = self._section[at:end]
        stop = cie.index(b"\0", 9)
        letters = cie[9:stop]
        numbers = stop + 1
        _code, after = _leb(cie, numbers)
        _data, after = _leb(cie, after)
        returns, body = (cie[after], after + 1) if version == 1 else _leb(cie, after)
        pointers = 0
        if letters.startswith(b"z"):
            size, place = _leb(cie, body)
            body = place + size
            for letter in letters[1:]:
                if letter == ord("R"):
                    pointers, place = cie[place], place + 1
                elif letter == ord("L"):
                    place += 1
                elif letter == ord("P"):
                    place += 1 + struct.calcsize(FORMATS.get(cie[place] & 0xF, "<Q"))
                elif letter not in b"SBG":
                    break  # what follows is unknown, but its size is not
        elif letters:
            raise ValueError(f"augmentation {letters!r} is not supported")
        content = struct.pack("<IBB", CIE, 1, 0) + cie[numbers:after] + bytes((returns,)) + (
            cie[body:])
        return Cie(struct.pack("<I", len(content)) + content, pointers, letters.startswith(b"z"),
                   b"S" in letters)

    def _decode(self, at: int, end: int, cie: int) -> list[tuple[int, Rule | None]]:
        if end - at > MOST_BYTES:
            raise ValueError(f"the entry is larger than {MOST_BYTES} bytes")
        head = self._cie(cie)
        low, size, data = self._range(at + 8, head)
        if head.augmented:
            length, data = _leb(self._section[:end], data)
            data += length
        entry = struct.pack("<IQQ", 0, low, size) + self._section[data:end]
        return decoded(head.head + struct.pack("<I", len(entry)) + entry, head.interrupted)


def _leb(content: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned LEB128 number, and the offset of the byte after it."""
    value = 0
    for n in range(MOST_DIGITS):
        value |= (content[at + n] & 0x7F) << 7 * n
        if content[at + n] < 0x80:
            return value, at + n + 1
    raise ValueError("a LEB128 number is too long")
