"""Tests that data in functions is found through the loads that read it, and is never probed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emu.arch.architectures import ARCHITECTURES
from emu.elf.symbols import Symbol
from emu.guests.registry import FREEBSD
from kinst.code.listing import DATA, instructions, literals
from kinst.probes.dispatcher import new_dispatcher
from kinst.relocation.trap import TRAPS
from kinst.relocation.verdict import Refuse

PC = 0x40001000
RET = {"amd64": "c3", "arm64": "c0035fd6", "riscv64": "8280"}
# Instructions that load data located after the return instruction, and their load sizes in bytes.
LOADS = {
    "amd64": [("488b0501000000", 8), ("8b0501000000", 4), ("660f6f0501000000", 16),
              ("ff1501000000", 8), ("480b0501000000", 8)],
    "arm64": [("40000058", 8), ("40000018", 4), ("4000009c", 16), ("40000098", 4), ("4000005c", 8)],
    "riscv64": [("1705000003 35a500", 8), ("17050000 0325a500", 4), ("97050000 8869", 8)],
}


def listing(arch, code):
    return list(instructions(TRAPS[arch], code, Symbol("f", PC, len(code), 2)))


def native(arch, code):
    """Return the probe offsets and the number of data ranges that the native core finds."""
    dispatcher, _templates = new_dispatcher(
        ARCHITECTURES[arch], TRAPS[arch], FREEBSD[arch].traps.trap_frame, None)
    numbers = dispatcher.add_all(PC, code, 0, len(code), 0, 0)
    counts = []
    _inside, _rest, data = dispatcher.tally(PC, code, 0, len(code), {}, 0, counts)
    return [dispatcher.probe(n)[0] - PC for n in numbers], data


CASES = [(arch, bytes.fromhex(load), size) for arch, loads in LOADS.items() for load, size in loads]


def behind(arch, load, size):
    """Return the code of a load and a return, and the same code followed by the loaded data."""
    code = load + bytes.fromhex(RET[arch])
    if arch == "riscv64":
        target = TRAPS[arch].instructions.literal(load + bytes(8), PC)
        code += b"\1\0" * ((target[0] - PC - len(code)) // 2)
    return code, code + bytes(range(0x41, 0x41 + size))


@pytest.mark.parametrize("arch, load, size", CASES)
def test_memory_that_an_instruction_reads_is_data(arch, load, size):
    code, whole = behind(arch, load, size)
    assert TRAPS[arch].instructions.literal(whole[:16], PC) == (PC + len(code), size)
    table = listing(arch, whole)
    last = table[-1]
    assert (last.offset, last.code) == (len(code), whole[len(code) :])
    assert last.verdict == Refuse(DATA)
    assert not [i for i in table[:-1] if i.verdict == Refuse(DATA)]
    probed, data = native(arch, whole)
    assert data == 1 and probed == [
        i.offset for i in table if not isinstance(i.verdict, Refuse)]


@pytest.mark.parametrize("arch", ["arm64"])
def test_data_before_the_instruction_that_reads_it_is_found(arch):
    """The code is ``b .+12; .quad DATA; ldr x0, .-8; ret``."""
    code = bytes.fromhex("03000014" "4142434445464748" "c0ffff58" "c0035fd6")
    assert literals(TRAPS[arch], code, PC) == [(4, 12)]
    assert [(i.offset, i.verdict == Refuse(DATA)) for i in listing(arch, code)] == [
        (0, False), (4, True), (12, False), (16, False)]
    assert native(arch, code) == ([0, 12, 16], 1)


@pytest.mark.parametrize("arch, code", [
    ("amd64", "488d0500000000c3"), ("arm64", "4000001010000014c0035fd6"),
    ("riscv64", "170500001305a5008280"),
])
def test_taking_an_address_does_not_mark_data(arch, code):
    code = bytes.fromhex(code)
    assert literals(TRAPS[arch], code, PC) == [] and native(arch, code)[1] == 0


DAMAGED = [
    # VMPTRLD and a far jump through RIP are refused, but the memory that they read is still data.
    ("amd64", "0fc73501000000c3" + "41" * 8 + "90c3"),
    ("amd64", "ff2d01000000c3" + "41" * 10 + "90c3"),
    # Data that decodes as an LDR from code: b .+12; ldr x0, .+12; .word 0; ldr x0, .-8; add; add
    ("arm64", "03000014" "60000058" "00000000" "c0ffff58" "0004009100040091c0035fd6"),
    # Code in which each pass of the search finds more data.
    ("amd64", ("0f100502000000eb10" + "90" * 14 + "48b8") * 6 + "90c3" + "90" * 8),
    # UD1 with operands, as clang's -fsanitize-trap emits it, and with a RIP-relative operand.
    ("amd64", "55670fb940024889e5c3"), ("amd64", "550fb90500000000" + "41" * 8 + "c3"),
    # Encodings whose length depends on the CPU: UD0, near jumps with an operand-size prefix.
    ("amd64", "550fff00c3"), ("amd64", "55660f800000000090c3"), ("amd64", "5566e8000090c3"),
    ("amd64", "55660f78d00408c3"),
    # LDR (literal) of a vector with opc 3, which is unallocated.
    ("arm64", "5f2003d5" "400000dc" + "1f2003d5" * 9 + "c0035fd6"),
    # An invalid byte shortly before data.
    ("amd64", "488b050600000006" + "90" * 5 + "41" * 8 + "c3"),
]


@pytest.mark.parametrize("arch, code", DAMAGED)
def test_python_and_the_native_core_agree_on_hard_cases(arch, code):
    code = bytes.fromhex(code)
    table = listing(arch, code)
    probed, data = native(arch, code)
    assert probed == [i.offset for i in table if not isinstance(i.verdict, Refuse)]
    assert data == len(literals(TRAPS[arch], code, PC))


def test_memory_that_a_refused_instruction_reads_is_data():
    code = bytes.fromhex(DAMAGED[0][1])
    assert literals(TRAPS["amd64"], code, PC) == [(8, 16)]


def test_data_that_decodes_as_a_load_marks_no_data():
    assert literals(TRAPS["arm64"], bytes.fromhex(DAMAGED[2][1]), PC) == [(4, 12)]


def test_an_invalid_byte_is_not_reported_as_data():
    table = listing("amd64", bytes.fromhex(DAMAGED[-1][1]))
    assert table[-1].offset == 7 and table[-1].verdict == Refuse("is not an instruction")


def test_an_instruction_of_ambiguous_length_ends_the_listing():
    table = listing("amd64", bytes.fromhex("55660f800000000090c3"))
    assert [(i.offset, i.verdict) for i in table[1:]] == [
        (1, Refuse("is a jump with an operand-size prefix"))]


def test_an_unallocated_load_reads_no_data():
    assert TRAPS["arm64"].instructions.literal(bytes.fromhex("a00a00dc"), PC) is None


@pytest.mark.parametrize("code", ["0f180d00000000", "0fae3d00000000"])
def test_prefetched_or_flushed_memory_is_not_marked_as_data(code):
    assert TRAPS["amd64"].instructions.literal(bytes.fromhex(code), PC) is None


@given(st.sampled_from(CASES), st.binary(max_size=60), st.integers(0, 20))
def test_python_and_the_native_core_find_the_same_data(case, noise, cut):
    arch, load, size = case
    _code, whole = behind(arch, load, size)
    code = noise[:cut] + whole + noise[cut:]
    if arch != "amd64":
        step = 4 if arch == "arm64" else 2
        code = code[: len(code) // step * step]
    table = listing(arch, code)
    probed, data = native(arch, code)
    assert probed == [i.offset for i in table if not isinstance(i.verdict, Refuse)]
    assert data == len(literals(TRAPS[arch], code, PC))
