"""The native splitters: one template for a branch, wherever it leads."""

import random

import pytest

from kinst.laboratory.bench import BENCHES
from kinst.laboratory.laboratory import Laboratory
from kinst.trap import TRAPS

# What the instruction is, the bits that are its displacement, bytes.
BRANCHES = [
    ("arm64", 0x14000000, 0x03FFFFFF, 4), ("arm64", 0x94000000, 0x03FFFFFF, 4),
    ("arm64", 0x54000000, 0x00FFFFE0, 4), ("arm64", 0x5400000B, 0x00FFFFE0, 4),
    ("arm64", 0xB4000003, 0x00FFFFE0, 4), ("arm64", 0x35000005, 0x00FFFFE0, 4),
    ("arm64", 0x36380004, 0x0007FFE0, 4), ("arm64", 0xB7000004, 0x0007FFE0, 4),
    ("riscv64", 0x0000006F, 0xFFFFF000, 4), ("riscv64", 0x000000EF, 0xFFFFF000, 4),
    *(("riscv64", 0x00B50063 | funct << 12, 0xFE000F80, 4) for funct in (0, 1, 4, 5, 6, 7)),
    ("riscv64", 0xA001, 0x1FFC, 2), ("riscv64", 0xC001, 0x1C7C, 2), ("riscv64", 0xE001, 0x1C7C, 2),
]


@pytest.mark.parametrize("arch, word, field, size", BRANCHES)
def test_a_branch_is_one_template_and_leads_where_it_does_in_place(arch, word, field, size):
    """In place by the CPU model, displaced by the native core, emulated by the verdict."""
    generator = random.Random(word)
    laboratory = Laboratory(BENCHES[arch](), TRAPS[arch], 1)
    extremes = [0, field, field & -field, field ^ 1 << field.bit_length() - 1]
    words = [word | n & field for n in (*extremes, *(generator.getrandbits(32) for _ in range(20)))]
    for chosen in words:
        _verdict, mismatch = laboratory.test(chosen.to_bytes(size, "little"), 3)
        assert mismatch is None, (hex(chosen), mismatch and mismatch.differences())
    assert laboratory.templates.known and len(laboratory.templates.known) == 1


