"""Tests that native splitters use one template for branches that differ only in their targets."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emu.arch.architectures import ARCHITECTURES
from emu.guests.registry import FREEBSD
from kinst.arm64.classify import ROWS as ARM64
from kinst.probes.dispatcher import new_dispatcher
from kinst.relocation.lowering import HERE, lowered, template
from kinst.relocation.trap import TRAPS
from kinst.relocation.verdict import Op, Relative
from kinst.riscv64.classify import COMPRESSED, WIDE
from kinst.verify.laboratory.architecture import LABORATORIES
from kinst.verify.laboratory.laboratory import Laboratory

ROWS = {"arm64": ARM64, "riscv64": (*WIDE, *COMPRESSED)}
DISPATCHERS = {arch: new_dispatcher(
        ARCHITECTURES[arch], TRAPS[arch], FREEBSD[arch].traps.trap_frame, None)[0]
               for arch in ("amd64", "arm64", "riscv64")}
# (Architecture, encoding, mask of the displacement bits, length in bytes).
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
def test_branches_share_one_template_and_keep_their_target(arch, word, field, size):
    """Execute each branch in place, displaced by the native core, and emulated."""
    generator = random.Random(word)
    laboratory = Laboratory(LABORATORIES[arch](), TRAPS[arch], 1)
    extremes = [0, field, field & -field, field ^ 1 << field.bit_length() - 1]
    words = [word | n & field for n in (*extremes, *(generator.getrandbits(32) for _ in range(20)))]
    for chosen in words:
        _verdict, mismatch = laboratory.test(chosen.to_bytes(size, "little"), 3)
        assert mismatch is None, (hex(chosen), mismatch and mismatch.differences())
    assert laboratory.templates.known and len(laboratory.templates.known) == 1


def _template(arch, code):
    """Return an instruction's template key, and (template, length) from the instruction table."""
    length, key, relative = DISPATCHERS[arch].key(code)
    true, verdict = TRAPS[arch].instructions.classify(code, HERE)
    made = template(TRAPS[arch], code[:true], relative, verdict) if length and true else None
    return key, (made, true)


def _hold(arch, codes):
    """Assert that equal keys imply equal templates; return a dict from key to (code, template)."""
    seen = {}
    for code in codes:
        key, made = _template(arch, code)
        if key:
            first, before = seen.setdefault(key, (code, made))
            assert made == before, (arch, key.hex(), first.hex(), code.hex())
    return seen


def _seen_relative(arch, code):
    """Return the native operation of an instruction, and how its target depends on the address.

    The dependency is measured by classifying the code at two addresses.
    """
    low = []
    for address in (HERE, HERE + 0x5804):
        _length, verdict = TRAPS[arch].instructions.classify(code, address)
        low.append(lowered(verdict, TRAPS[arch])[0])
    moved = low[1].target - low[0].target & 2**64 - 1
    if moved == 0:
        through_memory = low[0].op is Op.INDIRECT and not low[0].extra
        return low[0], Relative.DISPLACEMENT if through_memory else Relative.ABSOLUTE
    return low[0], {0x5804: Relative.RELATIVE, 0x5000: Relative.PAGE_RELATIVE}[moved]


BEGINS = {"amd64": ["", "e9", "e8", "eb", "e3", "ff25", "ff15", "ff20", "ff9510", "0f84", "488b05",
                    "66e9", "67ff", "41ff"],
          "arm64": [""], "riscv64": [""]}


@pytest.mark.parametrize("arch", ["amd64", "arm64", "riscv64"])
@given(data=st.data(), rest=st.binary(min_size=15, max_size=15))
def test_a_verdict_records_how_its_target_depends_on_the_address(arch, data, rest):
    code = bytes.fromhex(data.draw(st.sampled_from(BEGINS[arch]))) + rest
    low, seen = _seen_relative(arch, code)
    assert low.relative is seen, (code.hex(), low)


@pytest.mark.parametrize("arch, text, relative", [
    ("amd64", "e900000000", Relative.RELATIVE), ("amd64", "ff2500000000", Relative.RELATIVE),
    ("amd64", "ff6310", Relative.DISPLACEMENT), ("amd64", "ffe0", Relative.ABSOLUTE),
    ("amd64", "488b0500000000", Relative.RELATIVE), ("amd64", "c3", Relative.ABSOLUTE),
    ("arm64", "00000090", Relative.PAGE_RELATIVE), ("arm64", "00000010", Relative.RELATIVE),
    ("arm64", "00000058", Relative.RELATIVE), ("riscv64", "17050000", Relative.RELATIVE),
    ("riscv64", "67000500", Relative.ABSOLUTE), ("riscv64", "01a0", Relative.RELATIVE),
])
def test_targets_of_each_kind_are_recognized(arch, text, relative):
    low, seen = _seen_relative(arch, bytes.fromhex(text).ljust(16, b"\0"))
    assert low.relative is seen is relative


PREFIXES = (b"", b"\x66", b"\xf2", b"\xf3", b"\x48", b"\x66\x48", b"\xf3\x45", b"\xf0", b"\x67")


@pytest.mark.parametrize("prefix", PREFIXES, ids=lambda p: p.hex() or "none")
def test_amd64_keys_omit_only_registers_that_the_verdict_ignores(prefix):
    generator = random.Random(int.from_bytes(prefix, "little"))
    codes = [prefix + escape + bytes([opcode, generator.getrandbits(8)]) + generator.randbytes(10)
             for escape in (b"", b"\x0f") for opcode in range(256) for _ in range(16)]
    assert len(_hold("amd64", codes)) < len(codes)


@pytest.mark.parametrize("arch", ["arm64", "riscv64"])
@given(word=st.integers(0, 2**32 - 1), other=st.integers(0, 2**32 - 1), data=st.data())
def test_instructions_of_a_row_with_one_key_share_one_template(arch, word, other, data):
    mask, value, _verdict = data.draw(st.sampled_from(ROWS[arch]))
    codes = [w & ~mask & 0xFFFFFFFF | value for w in (word, other)]
    _hold(arch, [code.to_bytes(4, "little") for code in codes])


@pytest.mark.parametrize("arch, code, leads", [
    ("arm64", 0x90000000, [(0x1000, 0x1000), (0x7FFFF000, 0x7FFFF000), (-0x80000000, -0x80000000)]),
    ("arm64", 0x10000000, [(4, 4), (0xFFFFF, 0xFFFFF), (-0x100000, -0x100000)]),
])
def test_pc_relative_addresses_share_one_template(arch, code, leads):
    """All displacements of ADR share one template; so do those of ADRP within 2 GB."""
    generator = random.Random(code)
    laboratory = Laboratory(LABORATORIES[arch](), TRAPS[arch], 1)
    for lead, expected in leads:
        field = lead >> 12 if code >> 31 else lead
        word = code | (field & 3) << 29 | (field >> 2 & 0x7FFFF) << 5 | generator.randrange(1, 2)
        assert DISPATCHERS[arch].key(word.to_bytes(4, "little"))[2] == expected
        _verdict, mismatch = laboratory.test(word.to_bytes(4, "little"), 3)
        assert mismatch is None, (hex(word), mismatch and mismatch.differences())
    assert len(laboratory.templates.known) == 1
    far = 0x90000000 | (0x80000 & 3) << 29 | (0x80000 >> 2) << 5
    assert DISPATCHERS[arch].key(far.to_bytes(4, "little"))[2] == 0
