"""ELF relocations with explicit addends, as a static linker or the kernel's linker applies them.

Layout of an entry: System V gABI, "Relocation" (Elf64_Rela).
"""

import enum
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from emu.arch.parts import Parts

RELA = struct.Struct("<QQq")  # r_offset, r_info, r_addend


class Base(enum.Enum):
    """Value to which a relocation adds its addend."""

    SYMBOL = "symbol"
    DISTANCE = "symbol, relative to the place"
    IMAGE = "the image's first address"


@dataclass(frozen=True)
class RelocationType:
    """A relocation type: the base and the size of the value that the relocation writes.

    :param size: number of bytes that are written, little-endian.
    """

    base: Base
    size: int


RelocationTypes = Mapping[int, RelocationType]
# Relocation types of modules and their debug data, keyed by architecture; other types are skipped.
RELOCATIONS: Parts[RelocationTypes] = Parts("emu.{}.arch", "RELOCATIONS")


def relocations(
    table: bytes, types: RelocationTypes, value: Callable[[int], int | None], address: int,
) -> Iterator[tuple[int, bytes]]:
    """Yield (r_offset, bytes) for each resolvable relocation in a table.

    Relocations of unknown types or symbols are skipped.

    :param table: entries (Elf64_Rela); an incomplete last entry is ignored.
    :param value: returns the value of a symbol by its number, or None if it is unknown.
    :param address: address of the image, which r_offset is relative to.
    """
    for offset, info, addend in RELA.iter_unpack(table[: len(table) - len(table) % RELA.size]):
        relocation = types.get(info & 0xFFFFFFFF)
        if relocation is None:
            continue
        if relocation.base is Base.IMAGE:
            result: int | None = address
        else:
            result = value(info >> 32)
        if result is None:
            continue
        result += addend
        if relocation.base is Base.DISTANCE:
            result -= address + offset
        yield offset, (result & (1 << 8 * relocation.size) - 1).to_bytes(relocation.size, "little")
