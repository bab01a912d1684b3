"""Tests that compare-and-swap operations are found, and that their results are known afterwards."""

import struct

import pytest
import unicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from unicorn import arm64_const, x86_const

from kinst.code.swaps import SWAPS
from kinst.verify.laboratory.architecture import LABORATORIES
from tests.kinst.code.test_operands import assembled

CODE, DATA, SIZE = 0x10000, 0x20000, 0x1000
MASK = (1 << 64) - 1


def riscv64(*words):
    return b"".join(struct.pack("<I" if word & 3 == 3 else "<H", word) for word in words)


# lr.d a3, (a0); bne a3, a1, +N; sc.d a5, a2, (a0), where N leads to the instruction after SC.D
RISCV64 = riscv64(0x4785, 0x100536AF, 0x00B69463, 0x18C537AF, 0x0001)
# Architecture, code of the swap and one more instruction, register with the address, expected
# value, new value, displacement of the word
SWAPPED = [
    ("amd64", assembled("amd64", "lock cmpxchg qword ptr [rdi + 0x18], rsi; nop"),
     "rdi", "rax", "rsi", 0x18),
    ("amd64", assembled("amd64", "lock cmpxchg qword ptr [r12 + 0x100], r9; nop"),
     "r12", "rax", "r9", 0x100),
    ("amd64", assembled("amd64", "cmpxchg qword ptr [rbx], r15; nop"), "rbx", "rax", "r15", 0),
    *(("arm64", assembled("arm64", f"mov w11, #1; {load} x10, [x8]; cmp x10, x1; b.ne #0x1014; "
                          f"{store} w11, x9, [x8]; nop"), "x8", "x1", "x9", 0)
      for load, store in (("ldxr", "stlxr"), ("ldaxr", "stxr"))),
    # mov x10, x1; casa x10, x9, [x8]; cmp x10, x1
    ("arm64", struct.pack("<3I", 0xAA0103EA, 0xC8EA7D09, 0xEB01015F), "x8", "x1", "x9", 0),
    ("riscv64", RISCV64, "a0", "a1", "a2", 0),
]


@pytest.mark.parametrize("arch, code, address, expected, new, offset", SWAPPED)
@settings(max_examples=40)
@given(values=st.tuples(*[st.integers(0, MASK)] * 3), equal=st.booleans())
def test_the_registers_tell_whether_the_word_was_swapped(arch, code, address, expected, new, offset,
                                                         values, equal):
    facts = LABORATORIES[arch]()
    engine = unicorn.Uc(facts.uc_arch, facts.uc_mode)
    # The laboratory's CPU of arm64 does not have CASA.
    engine.ctl_set_cpu_model(arm64_const.UC_CPU_ARM64_MAX if arch == "arm64" else facts.cpu_model)
    facts.prepare(engine)
    found = list(SWAPS[arch](code, CODE))
    assert len(found) == 1
    swap = found[0]
    for base in (CODE, DATA):
        engine.mem_map(base, SIZE)
    engine.mem_write(CODE, code)
    before, wanted, value = values
    wanted = before if equal else wanted
    engine.mem_write(DATA + 0x200, struct.pack("<Q", before))
    for name, content in ((address, DATA + 0x200 - offset), (expected, wanted), (new, value)):
        engine.reg_write(facts.general[name], content)
    engine.emu_start(CODE, swap.after)

    numbers = {"rflags": x86_const.UC_X86_REG_RFLAGS, **facts.general}

    def register(name):
        return engine.reg_read(numbers[name]) if name else 0

    result = register(swap.equal) if swap.equal else swap.value
    swapped = (register(swap.result) ^ result) & swap.mask == 0
    after, = struct.unpack("<Q", engine.mem_read(DATA + 0x200, 8))
    assert swapped == (before == wanted)
    assert after == (value if swapped else before)
    place = swap.word
    assert register(place.base) + register(place.index) * place.scale + place.offset == (
        DATA + 0x200)
    if swapped:
        assert (register(swap.old), register(swap.new)) == (before, value)


@pytest.mark.parametrize("arch, code", [
    ("amd64", assembled("amd64", "lock cmpxchg dword ptr [rdi], esi; nop")),  # 32 bits
    ("amd64", assembled("amd64", "cmpxchg rdi, rsi; nop")),  # a register
    ("amd64", assembled("amd64", "lock xadd qword ptr [rdi], rsi; nop")),
    ("amd64", b"\xf0\x48\x0f\xb1"),  # cut off
    # An addition, without a comparison
    ("arm64", assembled("arm64", "ldxr x10, [x8]; add x10, x10, #1; stxr w11, x10, [x8]; nop")),
    # Another word is loaded
    ("arm64", assembled("arm64", "ldxr x10, [x7]; cmp x10, x1; b.ne #0x1010; stxr w11, x9, [x8]; "
                        "nop")),
    ("arm64", struct.pack("<2I", 0xC8EA7D09, 0xD503201F)),  # CASA, and no comparison
    ("arm64", struct.pack("<I", 0xC8EA7D09)),
    ("riscv64", riscv64(0x18C537AF, 0x0001)),  # SC.D alone
    ("riscv64", riscv64(0x100526AF, 0x00B69463, 0x18C537AF, 0x0001)),  # LR.W
])
def test_what_only_resembles_a_swap_is_not_found(arch, code):
    assert list(SWAPS[arch](code, CODE)) == []


@given(pieces=st.lists(st.one_of(
    st.binary(max_size=8), st.sampled_from([code for _arch, code, *_others in SWAPPED])),
    max_size=6), cut=st.integers(0, 40))
@pytest.mark.parametrize("arch", ["amd64", "arm64", "riscv64"])
def test_any_bytes_can_be_searched(arch, pieces, cut):
    code = b"".join(pieces)
    code = code[: max(0, len(code) - cut)]
    whole = [piece for piece in pieces[:1] if (arch, piece) in {row[:2] for row in SWAPPED}]
    found = list(SWAPS[arch](code, CODE))
    assert all(CODE < swap.after <= CODE + len(code) for swap in found)
    assert found or not whole or cut
