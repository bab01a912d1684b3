"""Tests that native readers of symbols, code and sections match plain Python code."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dwarf.entries import _View
from emu.arch.architectures import ARCHITECTURES
from emu.elf._symbol_rows import rows
from emu.elf.symbols import KINDS, STT_FUNC, SYMBOL
from emu.unicorn.riscv64._counters import counter_reads

# Encodings of csrrs rd, cycle, x0 and csrrs rd, instret, x0 in memory
COUNTER_READ = re.compile(rb"(?=[\x73\xf3][\x20-\x2f][\x00\x20]\xc0)", re.DOTALL)


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from([0, 2, 0x12, 0x22, 3, 4, 10, 0xFA]),
                          st.sampled_from([0, 1, 0xFFF1]), st.integers(0, (1 << 64) - 1),
                          st.sampled_from([0, 1, (1 << 64) - 1]))),
       st.binary(max_size=23), st.booleans())
def test_native_symbol_rows_match_struct_unpacking(symbols, tail, sized):
    raw = b"".join(SYMBOL.pack(name, info, 0, section, value, size)
                   for name, info, section, value, size in symbols)
    for kinds in (KINDS, (STT_FUNC,), ()):
        assert rows(raw + tail, 20, kinds, sized) == [
            (value, size, name, info & 15) for name, info, _other, section, value, size
            in SYMBOL.iter_unpack(raw)
            if section and name < 20 and info & 15 in kinds and (size or not sized)]


@given(st.lists(st.sampled_from([b"\x73\x25\x00\xc0", b"\xf3\x22\x20\xc0", b"\x73\x25\x10\xc0",
                                 b"\x73\xa5\x00\xc0", b"\x13\x00", b"\x73", b"\xc0"])))
def test_counter_reads_are_found_at_every_halfword(pieces):
    code = b"".join(pieces)
    assert counter_reads(code) == [
        found.start() for found in COUNTER_READ.finditer(code) if found.start() % 2 == 0]


@pytest.mark.parametrize("text", [
    "nop dword ptr [rax+rax]; pause", "push rbp; mov rbp, rsp; mov rax, 0x1122334455667788; ret",
    "lock cmpxchg qword ptr gs:[rip+8], rcx; rep movsb; wrgsbase rax; swapgs",
    "vaddps ymm0, ymm1, ymmword ptr [rax+rbx*4+100]; crc32 rax, cl; iretq"])
def test_amd64_code_is_split_where_capstone_splits_it(text):
    arch = ARCHITECTURES["amd64"]
    code = b"".join(bytes(one) for one in [arch.assembler(text).asm(text, 0, True)[0]])
    parts = arch.split(code)
    assert b"".join(parts) == code
    assert [len(part) for part in parts] == [arch.instruction_length(part) for part in parts]
    assert len(parts) == text.count(";") + 1


@given(st.binary(max_size=64))
def test_arbitrary_amd64_bytes_are_split_without_loss(code):
    parts = ARCHITECTURES["amd64"].split(code)
    assert b"".join(parts) == code
    assert all(parts)


@given(st.binary(max_size=100), st.lists(st.tuples(
    st.sampled_from(["seek", "end", "here", "read"]), st.integers(0, 120))))
def test_a_section_view_reads_like_a_bytes_file(content, steps):
    view, truth = io.BufferedReader(_View(memoryview(content)), 16), io.BytesIO(content)
    for step, number in steps:
        if step == "seek":
            assert view.seek(number) == truth.seek(number)
        elif step == "end":
            back = -min(number, len(content))
            assert view.seek(back, io.SEEK_END) == truth.seek(back, io.SEEK_END)
        elif step == "here":
            assert view.seek(number, io.SEEK_CUR) == truth.seek(number, io.SEEK_CUR)
        else:
            assert view.read(number) == truth.read(number)
        assert view.tell() == truth.tell()
