"""Find the UFS partition of a disk image (UEFI 2.10, chapter 5; FreeBSD's sys/disklabel.h).

The image may contain anything: an invalid table counts as none.
"""

import struct
import uuid

from emu.host.input_file import Content

SECTOR = 512
GPT = struct.Struct("<8sIIIIQQQQ16sQII")  # up to the size of an entry
GPT_MAGIC = b"EFI PART"
ENTRY = struct.Struct("<16s16sQQ")  # type, identity, first and last sector
FREEBSD_UFS = uuid.UUID("516e7cb6-6ecf-11d6-8ff8-00022d09712b").bytes_le
MOST_ENTRIES = 128
TABLE, SLICE = 446, struct.Struct("<B3sB3sII")  # MBR: state, CHS, type, CHS, first sector, sectors
MBR_MAGIC, FREEBSD_SLICE = b"\x55\xaa", 0xA5
LABEL_MAGIC, LABEL_COUNT, LABEL_TABLE = 0x82564557, 138, 148  # BSD label, and offsets in it
RAW = 2  # index of partition c, the whole slice
LABEL_ENTRY, FFS = struct.Struct("<IIIBBH"), 7  # sectors, first sector, fragment, type, ...


def root_partition(disk: Content) -> str:
    """Return the suffix that a device name gets for the first UFS partition of a disk.

    It is ``p2`` for a GPT partition, ``s1a`` or ``s1`` for an MBR slice with or without a BSD
    label, and empty for a disk without such partitions.
    """
    return root_at(disk)[0]


def root_at(disk: Content) -> tuple[str, int]:
    """Return the suffix of ``root_partition``, and the offset in bytes of the partition."""
    return _gpt(disk) or _mbr(disk) or ("", 0)


def _gpt(disk: Content) -> tuple[str, int] | None:
    head = bytes(disk[SECTOR : SECTOR + GPT.size])
    if len(head) < GPT.size:
        return None
    magic, *_more, table, count, size = GPT.unpack(head)
    if magic != GPT_MAGIC or not ENTRY.size <= size <= 4096:
        return None
    for number in range(min(count, MOST_ENTRIES)):
        at = table * SECTOR + number * size
        entry = bytes(disk[at : at + ENTRY.size])
        if len(entry) == ENTRY.size and entry[:16] == FREEBSD_UFS:
            return f"p{number + 1}", ENTRY.unpack(entry)[2] * SECTOR
    return None


def _mbr(disk: Content) -> tuple[str, int] | None:
    sector = bytes(disk[:SECTOR])
    if sector[SECTOR - 2 :] != MBR_MAGIC:
        return None
    for number in range(4):
        _state, _chs, kind, _end, first, _sectors = SLICE.unpack_from(
            sector, TABLE + number * SLICE.size)
        if kind == FREEBSD_SLICE:
            letter, start = _label(disk, first)
            return f"s{number + 1}{letter}", start * SECTOR
    return None


def _label(disk: Content, first: int) -> tuple[str, int]:
    """Return the letter of the first UFS partition in the BSD label of a slice, and its sector.

    Without a label, the slice itself is the partition.
    """
    label = bytes(disk[(first + 1) * SECTOR : (first + 2) * SECTOR])
    if len(label) < SECTOR or int.from_bytes(label[:4], "little") != LABEL_MAGIC:
        return "", first
    count = int.from_bytes(label[LABEL_COUNT : LABEL_COUNT + 2], "little")
    entries = [LABEL_ENTRY.unpack_from(label, LABEL_TABLE + number * LABEL_ENTRY.size)
               for number in range(min(count, 8))]
    # Sectors are counted from the start of the disk or of the slice, where partition c begins.
    whole = entries[RAW][1] if len(entries) > RAW else 0
    for number, (sectors, start, _fragment, kind, *_more) in enumerate(entries):
        if kind == FFS and sectors:
            return "abcdefgh"[number], first + start - whole
    return "", first
