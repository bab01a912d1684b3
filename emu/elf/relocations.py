"""ELF relocations with explicit addends, as a linker or the kernel's own linker applies them.

Layout of an entry: System V gABI, "Relocation" (Elf64_Rela).
"""

import enum
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from emu.arch.parts import Parts

RELA = struct.Struct("<QQq")  # r_offset, r_info, r_addend


class Base(enum.Enum):
    """What the addend is added to."""

    SYMBOL = "symbol"
    DISTANCE = "symbol, from the place"
    IMAGE = "the image's first address"


@dataclass(frozen=True)
class RelocationType:
    """:param size: bytes that are written, little-endian."""

    base: Base
    size: int


RelocationTypes = Mapping[int, RelocationType]
# By architecture: the types that modules and their debug data have; others are left to the kernel.
RELOCATIONS: Parts[RelocationTypes] = Parts("emu.{}.arch", "RELOCATIONS")


def relocations(
    table: bytes, types: RelocationTypes, value: Callable[[int], int | None], address: int,
) -> Iterator[tuple[int, bytes]]:
    """What a relocation table writes: (r_offset, bytes).  What is not known is left out.

    :param table: of Elf64_Rela; what is behind its last whole entry is left out.
    :param value: of a symbol, by its number; None where it is not known.
    :param address: of the image that r_offset is counted from.
    """
    for offset, info, addend in RELA.iter_unpack(table[: len(table) - len(table) % RELA.size]):
        kind = types.get(info & 0xFFFFFFFF)
        if kind is None:
            continue
        if kind.base is Base.IMAGE:
            found: int | None = address
        else:
            found = value(info >> 32)
        if found is None:
            continue
        found += addend
        if kind.base is Base.DISTANCE:
            found -= address + offset
        yield offset, (found & (1 << 8 * kind.size) - 1).to_bytes(kind.size, "little")
