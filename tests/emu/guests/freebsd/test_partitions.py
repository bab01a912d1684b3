"""Tests of finding the UFS partition of a disk image."""

import random
import struct
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emu.elf.boot_options import PACKED, disk_image
from emu.guests.freebsd.partitions import ENTRY, FREEBSD_UFS, GPT, root_at, root_partition
from emu.host.errors import ImageError

OTHER = uuid.UUID("c12a7328-f81f-11d2-ba4b-00a0c93ec93b").bytes_le  # EFI system partition
SIZE = 1 << 20


def gpt(types, size=128, count=128, table=2):
    """Return a disk with a GPT whose partitions have the given types."""
    disk = bytearray(SIZE)
    disk[512 : 512 + GPT.size] = GPT.pack(b"EFI PART", 0x10000, 92, 0, 0, 1, 0, 34, 2014,
                                          bytes(16), table, count, size)
    for number, kind in enumerate(types):
        ENTRY.pack_into(disk, table * 512 + number * size, kind, bytes(16), 40, 99)
    return memoryview(disk)


def mbr(kinds, label=None, first=63):
    """Return a disk with an MBR, and optionally a BSD label in each slice."""
    disk = bytearray(SIZE)
    disk[510:512] = b"\x55\xaa"
    for number, kind in enumerate(kinds):
        struct.pack_into("<B3sB3sII", disk, 446 + 16 * number, 0x80, b"", kind, b"",
                         first + 100 * number, 100)
        if label is not None:
            at = (first + 100 * number + 1) * 512
            struct.pack_into("<I", disk, at, 0x82564557)
            struct.pack_into("<H", disk, at + 138, len(label))
            for n, (sectors, kind_of) in enumerate(label):
                struct.pack_into("<IIIBBH", disk, at + 148 + 16 * n, sectors, 0, 0, kind_of, 0, 0)
    return memoryview(disk)


@pytest.mark.parametrize("disk, suffix", [
    (gpt([FREEBSD_UFS]), "p1"), (gpt([OTHER, OTHER, OTHER, FREEBSD_UFS]), "p4"),
    (gpt([OTHER, FREEBSD_UFS], size=256), "p2"), (gpt([OTHER]), ""), (gpt([], size=8), ""),
    (gpt([OTHER, FREEBSD_UFS], count=1), ""), (gpt([FREEBSD_UFS], table=2)[:1050], ""),
    (mbr([0x0C, 0xA5]), "s2"), (mbr([0x83]), ""),
    (mbr([0xA5], [(100, 7)]), "s1a"), (mbr([0xA5], [(0, 7), (9, 1), (9, 0), (50, 7)]), "s1d"),
    (mbr([0xA5], [(9, 1)]), "s1"), (mbr([0xA5], first=1 << 30), "s1"),
    (memoryview(bytes(SIZE)), ""), (memoryview(b"x"), ""), (memoryview(b""), ""),
])
def test_the_first_ufs_partition_is_found(disk, suffix):
    assert root_partition(disk) == suffix


@pytest.mark.parametrize("starts, at", [((0, 0, 0), 63), ((16, 0, 0), 79), ((79, 0, 63), 79)])
def test_a_partition_begins_relative_to_the_disk_or_to_the_slice(starts, at):
    disk = mbr([0xA5], [(100, 7), (0, 0), (200, 0)])
    for number, start in enumerate(starts):
        struct.pack_into("<I", disk, 64 * 512 + 148 + 16 * number + 4, start)
    assert root_at(disk) == ("s1a", at * 512)


def test_the_offset_of_a_partition_is_known():
    assert root_at(gpt([OTHER, FREEBSD_UFS])) == ("p2", 40 * 512)
    assert root_at(mbr([0x0C, 0xA5])) == ("s2", 163 * 512)
    assert root_at(memoryview(bytes(SIZE))) == ("", 0)


@given(st.randoms(use_true_random=False))
def test_a_damaged_table_is_no_table(r):
    disk = bytearray(r.choice((gpt([OTHER, FREEBSD_UFS]), mbr([0xA5], [(9, 1), (50, 7)]))))
    for _ in range(r.randrange(1, 30)):
        disk[r.randrange(2048)] = r.choice((0, 1, 0x80, 0xFF))
    assert len(root_partition(memoryview(disk))) <= 4
    assert root_partition(memoryview(random.Random(r.random()).randbytes(4096))) in ("", *(
        f"s{n}" for n in range(1, 5)))


@pytest.mark.parametrize("magic", PACKED)
def test_a_compressed_or_converted_image_says_what_to_do(tmp_path, magic):
    path = tmp_path / "disk.img"
    path.write_bytes(magic.ljust(512, b"\0"))
    with pytest.raises(ImageError, match=r"not a disk image; (decompress|convert) it with"):
        disk_image(path)
