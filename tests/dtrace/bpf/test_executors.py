"""Tests that both BPF executors follow RFC 9669, agree, and refuse out-of-bounds accesses."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrace.bpf._runtime import NATIVE, Runtime
from dtrace.bpf.assembler import Assembler
from dtrace.bpf.encoding import (
    LOCAL,
    VALUE,
    WIDE,
    Alu,
    BpfInstruction,
    BpfJump,
    Class,
    EncodingError,
    K,
    Mode,
    Size,
    X,
    decode,
    disassemble,
    encode,
)
from dtrace.bpf.interpreter import Interpreter
from dtrace.bpf.layout import Fault, Helper, Region
from dtrace.bpf.verifier import VerifierError, verify

U64 = (1 << 64) - 1


def runtime(helpers=None):
    return Runtime({Region.GLOBALS: 64, Region.LOCALS: 16, Region.WORK: 1024, Region.RECORD: 1024,
                    Region.SCRATCH: 1024}, b"\0hello\0", [(8, 0, False, 8)], 1024,
                   [(1, 1, ())], 4096, 4096, 0, (1, 1024), 64, helpers or {})


def executed(write, argument=0):
    """Run a program on both executors, check that they agree, and return r0."""
    out = Assembler()
    write(out)
    out.leave()
    code = encode(out.finish())
    verify(code, [0], NATIVE)
    native = runtime()
    values = {native.run(native.load(code), argument),
              Interpreter(runtime(), code).run(0, argument)}
    assert len(values) == 1, values
    return values.pop()


@pytest.mark.parametrize("operation, left, right, offset, wide, narrow", [
    (Alu.ADD, U64, 2, 0, 1, 1), (Alu.SUB, 1, 2, 0, U64, 0xFFFFFFFF),
    (Alu.MUL, 1 << 63, 2, 0, 0, 0), (Alu.MUL, 0x1_0000_0001, 3, 0, 0x3_0000_0003, 3),
    (Alu.DIV, U64, 2, 0, U64 // 2, 0x7FFFFFFF), (Alu.DIV, 7, 0, 0, 0, 0),
    (Alu.DIV, -7 & U64, 2, 1, -3 & U64, 0xFFFFFFFD), (Alu.DIV, 7, 0, 1, 0, 0),
    (Alu.DIV, 1 << 63, U64, 1, 1 << 63, 0), (Alu.MOD, 7, 0, 0, 7, 7), (Alu.MOD, 7, 4, 0, 3, 3),
    (Alu.MOD, -7 & U64, 4, 1, -3 & U64, 0xFFFFFFFD), (Alu.MOD, 1 << 63, U64, 1, 0, 0),
    (Alu.MOD, 0x1_0000_0007, 0, 0, 0x1_0000_0007, 7),
    (Alu.OR, 0xF0, 0x0F, 0, 0xFF, 0xFF), (Alu.AND, 0xFF, 0x3C, 0, 0x3C, 0x3C),
    (Alu.XOR, 0xFF, U64, 0, U64 ^ 0xFF, 0xFFFFFF00), (Alu.LSH, 1, 63, 0, 1 << 63, 1 << 31),
    (Alu.LSH, 1, 65, 0, 2, 2), (Alu.RSH, 1 << 63, 63, 0, 1, 0), (Alu.RSH, U64, 33, 0, U64 >> 33,
                                                                0x7FFFFFFF),
    (Alu.ARSH, 1 << 63, 63, 0, U64, 0), (Alu.ARSH, 0x80000000, 31, 0, 1, 0xFFFFFFFF),
    (Alu.MOV, 0, U64, 0, U64, 0xFFFFFFFF), (Alu.MOV, 0, 0x80, 8, U64 - 0x7F, 0xFFFFFF80),
    (Alu.MOV, 0, 0x8000, 16, U64 - 0x7FFF, 0xFFFF8000),
])
def test_arithmetic_follows_rfc_9669(operation, left, right, offset, wide, narrow):
    def program(word):
        def write(out):
            out.constant(0, left)
            out.constant(2, right)
            out.alu(operation, 0, 2, offset=offset, word=word)
        return write

    assert executed(program(False)) == wide
    assert executed(program(True)) == narrow


@pytest.mark.parametrize("kind, x, bits, value, result", [
    (Class.ALU, X, 16, 0x1122334455667788, 0x8877), (Class.ALU, X, 32, 0x11223344, 0x44332211),
    (Class.ALU, X, 64, 0x1122334455667788, 0x8877665544332211),
    (Class.ALU, K, 16, 0x1122334455667788, 0x7788), (Class.ALU, K, 32, U64, 0xFFFFFFFF),
    (Class.ALU, K, 64, U64, U64), (Class.ALU64, K, 16, 0x1122, 0x2211),
    (Class.ALU64, K, 64, 1, 1 << 56),
])
def test_byte_swaps_reverse_the_given_width(kind, x, bits, value, result):
    def write(out):
        out.constant(0, value)
        out.add(BpfInstruction(kind | Alu.END | x, 0, 0, 0, bits))
    assert executed(write) == result


@pytest.mark.parametrize("condition, left, right, wide, narrow", [
    (BpfJump.JEQ, 1 << 32, 0, False, True), (BpfJump.JNE, 1 << 32, 0, True, False),
    (BpfJump.JGT, U64, 1, True, True), (BpfJump.JGE, 1, 1, True, True),
    (BpfJump.JLT, 1, U64, True, True),
    (BpfJump.JLE, 2, 1, False, False), (BpfJump.JSET, 1 << 40, 1 << 40, True, False),
    (BpfJump.JSGT, U64, 1, False, False), (BpfJump.JSGE, 0x80000000, 0, True, False),
    (BpfJump.JSLT, U64, 0, True, True), (BpfJump.JSLE, 0x7FFFFFFF, 0x80000000, True, False),
])
def test_conditional_jumps_compare_as_rfc_9669_says(condition, left, right, wide, narrow):
    def program(kind):
        def write(out):
            out.constant(1, left)
            out.constant(2, right)
            out.constant(0, 1)
            out.add(BpfInstruction(kind | condition | X, 1, 2, 1))
            out.constant(0, 0)
        return write

    assert executed(program(Class.JMP)) == wide
    assert executed(program(Class.JMP32)) == narrow


@pytest.mark.parametrize("size, signed, result", [
    (1, False, 0x88), (2, False, 0x7788), (4, False, 0x55667788), (8, False, 0x1122334455667788),
    (1, True, U64 - 0x77), (2, True, 0x7788), (4, True, 0x55667788),
])
def test_loads_work_for_every_size_and_signedness(size, signed, result):
    def write(out):
        out.constant(1, 0x1122334455667788)
        out.store(10, -8, 1)
        out.load(0, 10, -8, size, signed)
    assert executed(write) == result


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_stores_write_only_the_bytes_of_their_size(size):
    def write(out):
        out.store_constant(10, -8, 0)
        out.store_constant(10, -8, -2, size)
        out.load(0, 10, -8)
    assert executed(write) == (1 << 8 * size) - 2


def test_long_jumps_and_local_calls_are_executed():
    def write(out):
        out.add(BpfInstruction(Class.JMP32 | BpfJump.JA, 0, 0, 0, 1))
        out.constant(1, 1)  # the jump skips this instruction
        out.constant(0, 7)
    code = Assembler()
    write(code)
    code.leave()
    native = runtime()
    assert native.run(native.load(encode(code.finish()))) == 7
    caller = Assembler()
    caller.constant(6, 5)
    caller.constant(1, 2)
    caller.add(BpfInstruction(Class.JMP | BpfJump.CALL, 0, LOCAL, 0, 2))
    caller.alu(Alu.ADD, 0, 6)
    caller.leave()
    caller.move(0, 1)
    caller.constant(6, 100)
    caller.leave()
    code = encode(caller.finish())
    verify(code, [0, 5], NATIVE)
    assert native.run(native.load(code)) == Interpreter(runtime(), code).run(0) == 7


OPERATIONS = [o for o in Alu if o not in (Alu.END, Alu.NEG)]
NUMBERS = st.one_of(st.integers(0, U64), st.sampled_from([0, 1, U64, 1 << 63, 1 << 31, 0xFFFFFFFF]))


@settings(max_examples=200, deadline=None)
@given(st.lists(NUMBERS, min_size=4, max_size=4), st.lists(st.tuples(
    st.sampled_from(OPERATIONS), st.integers(0, 3), st.integers(0, 3), st.booleans(),
    st.booleans(), st.integers(-(1 << 31), (1 << 31) - 1)), max_size=30))
def test_both_executors_agree_on_arithmetic(start, steps):
    def write(out):
        for register, value in enumerate(start):
            out.constant(register, value)
        for operation, to, source, word, immediate, value in steps:
            if immediate:
                out.alu_constant(operation, to, value, word=word)
            else:
                out.alu(operation, to, source, word=word)
    executed(write)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=160))
def test_arbitrary_bytes_decode_or_raise_an_encoding_error(content):
    try:
        found = decode(content)
    except EncodingError:
        return
    assert encode([i for i in found if i is not None]) == content
    for at, i in enumerate(found):
        assert i is None or disassemble(i, at)


ANY = st.builds(
    BpfInstruction, st.integers(0, 255).filter(lambda o: o != WIDE), st.integers(0, 10),
    st.integers(0, 10), st.sampled_from([0, 1, 2, -1, 8, 16, 32, -8]),
    st.sampled_from([0, 1, -1, 16, 32, 64, 7, 1 << 30]), st.none())


@settings(max_examples=400, deadline=None)
@given(st.lists(ANY, max_size=24))
def test_unverified_code_does_not_crash_the_native_executor(instructions):
    code = b"".join(i.encode() for i in instructions)
    native = runtime({n: lambda *_arguments: 0 for n in range(20, 256)})
    try:
        entry = native.load(code)
    except (EncodingError, ValueError):
        return
    if instructions:
        native.run(entry, Region.CONTEXT.address)


def test_endless_loops_end_with_a_fault_even_in_long_programs():
    one = BpfInstruction(Class.ALU64 | Alu.ADD | K, 1, 0, 0, 1)
    ends = BpfInstruction(Class.JMP | BpfJump.EXIT)
    circle = [*[one] * 30_000, BpfInstruction(Class.JMP | BpfJump.JA, 0, 0, -30_001)]
    # The same endless loop, but with the additions in a called function.
    called = [BpfInstruction(Class.JMP | BpfJump.CALL, 0, LOCAL, 0, 1),
              BpfInstruction(Class.JMP | BpfJump.JA, 0, 0, -2), *[one] * 30_000, ends]
    for code in (circle, called):
        native, faults = runtime(), []
        native.faults = lambda *found, faults=faults: faults.append(found[1])
        assert native.run(native.load(encode(code))) == U64
        assert set(faults) == {Fault.ILLEGAL_OPERATION}


@settings(max_examples=400, deadline=None)
@given(st.lists(ANY, max_size=24))
def test_verified_code_terminates_and_both_executors_agree(instructions):
    code = b"".join(i.encode() for i in [*instructions, BpfInstruction(0x95)])
    try:
        verify(code, [0], {Helper.ALLOCATE, Helper.SPECULATION})
    except VerifierError:
        return
    native = runtime()
    assert native.run(native.load(code), Region.CONTEXT.address) == Interpreter(
        runtime(), code).run(0, Region.CONTEXT.address)


@pytest.mark.parametrize("write, says", [
    (lambda out: out.alu(Alu.ADD, 0, 1), "reads r0"),
    (lambda out: out.move(0, 3), "reads r3"),
    (lambda out: out.constant(1, 1), "reads r0"),
    (lambda out: out.constant(10, 1), "writes the frame pointer"),
    (lambda out: out.load(0, 10, -8), "no value"),
    (lambda out: out.store(10, 0, 1), "outside the function's frame"),
    (lambda out: out.store(10, -520, 1), "outside the function's frame"),
    (lambda out: out.add(BpfInstruction(Class.JMP | BpfJump.JA, 0, 0, -1)), "backward"),
    (lambda out: out.add(BpfInstruction(Class.JMP | BpfJump.JA, 0, 0, 9)), "outside the function"),
    (lambda out: out.helper(200), "helper 200"),
    (lambda out: (out.constant(0, 0), out.leave(), out.constant(0, 1)), "is unreachable"),
    (lambda out: (out.helper(Helper.ALLOCATE), out.move(0, 1)), "reads r1"),
    (lambda out: out.add(BpfInstruction(Class.JMP | BpfJump.CALL, 0, LOCAL, 0, 0)),
     "not the start of a function"),
    (lambda out: out.add(BpfInstruction(Class.JMP | BpfJump.CALL, 0, LOCAL, 0, -1)), "deeper"),
])
def test_the_verifier_names_the_mistake(write, says):
    out = Assembler()
    write(out)
    if says == "deeper":
        out.constant(0, 0)
    out.leave()
    with pytest.raises(VerifierError, match=says):
        verify(encode(out.finish()), [0], {Helper.ALLOCATE})


def test_a_fault_ends_the_function_but_not_the_program():
    def program():
        out = Assembler()
        out.move(6, 1)
        out.add(BpfInstruction(Class.JMP | BpfJump.CALL, 0, LOCAL, 0, 3))
        out.constant(0, 42)
        out.leave()
        out.leave()
        out.constant(1, Fault.DIVIDE_BY_ZERO)
        out.constant(2, 0)
        out.helper(Helper.FAULT)
        out.constant(0, 1)
        out.leave()
        return encode(out.finish())

    for make in (lambda rt, code: rt.run(rt.load(code)),
                 lambda rt, code: Interpreter(rt, code).run(0)):
        faults, rt = [], runtime()
        rt.faults = lambda *found, faults=faults: faults.append(found[1])
        assert make(rt, program()) == 42 and faults == [Fault.DIVIDE_BY_ZERO]


def test_the_interpreter_reports_each_instruction_to_its_callback():
    out = Assembler()
    out.constant(0, 1)
    out.alu_constant(Alu.ADD, 0, 2)
    out.leave()
    reported = []
    Interpreter(runtime(), encode(out.finish()), lambda at, i, r: reported.append(
        (disassemble(i, at), r[0]))).run(0)
    assert reported == [("r0 = 0x1", 0), ("r0 += 0x2", 1), ("exit", 3)]


def test_wide_constants_and_load_sizes_are_encoded():
    wide = BpfInstruction(WIDE, 1, VALUE, 0, -1, 0x1234)
    assert wide.constant == 0x1234_FFFF_FFFF and decode(wide.encode()) == (wide, None)
    load = BpfInstruction(Class.LDX | Mode.MEM | Size.H, 1, 2, -4)
    assert disassemble(load) == "r1 = *(u16 *)(r2 -0x4)"
