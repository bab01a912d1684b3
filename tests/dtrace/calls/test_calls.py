import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtrace.calls.c_library import CHAR
from dtrace.calls.calls import (
    Address,
    Data,
    Evaluation,
    Identifier,
    Invocation,
    Literal,
    Statement,
    check,
    parse,
)
from dtrace.calls.prototypes import Prototypes, describe
from dtrace.calls.strings import CallSyntaxError, unescape
from dwarf.types import Pointer, Qualified, declare
from emu.elf.image import load_image
from emu.host.errors import KinstError
from emu.machine.call import Caller
from tests.elfwriter import Elf


def test_every_form_of_argument_is_parsed():
    (statement,) = parse(r"""f(1, -0x10, 017, 'A', "a\n", buf(3), bytes("\x01\0"), &s+8, &t-4)""")
    assert statement == Statement(None, Invocation("f", (
        Literal(1), Literal(-16), Literal(15), Literal(65), Data(b"a\n\0"), Data(bytes(3)),
        Data(b"\1\0"), Address("s", 8), Address("t", -4))))


def test_calls_can_be_nested_and_assigned_to_names():
    assert parse("p = f(g(1)); h(p, p + 8, p-8);") == [
        Statement("p", Invocation("f", (Invocation("g", (Literal(1),)),))),
        Statement(None,
                  Invocation("h", (Identifier("p", 0), Identifier("p", 8), Identifier("p", -8)))),
    ]


def test_assigning_to_a_misspelled_kernel_variable_suggests_the_right_name(booted):
    evaluation = Evaluation(Caller(booted), Prototypes(booted.image))
    assert evaluation.run(parse("kept_ = 7; kept_ = 8; kept_")) == 8
    assert evaluation.changed == ["kept_: assigned as a new name, since the kernel has no "
                                  "such variable; did you mean kept?"]
    evaluation = Evaluation(Caller(booted), Prototypes(booted.image))
    evaluation.run(parse("place = 7"))
    assert not evaluation.changed


@pytest.mark.parametrize("text, says", [
    ("", "empty"), ("f(", "expected an argument, found the end"), ("f(1", "expected ','"),
    ("f(1))", "expected ';'"), ("f(#)", "cannot parse"), ("f(buf(0))", "a size from 1"),
    ("f(buf(999999999999))", "a size from 1"), ("f(buf(x))", "a size"), ("f(&3)", "a symbol"),
    ('f("\\q")', "unknown escape"), ("f(bytes(3))", "a string"), ("f(&s+)", "a number"),
    ("f(" * 100 + ")" * 100, "nested deeper"), ("1 2", "expected ';'"), ("f(" + "1," * 40000,
                                                                         "longer than"),
])
def test_syntax_errors_are_refused_with_a_clear_message(text, says):
    with pytest.raises(CallSyntaxError, match=says) as error:
        parse(text)
    assert "\n" not in str(error.value)


@given(st.text(max_size=60))
def test_arbitrary_text_parses_or_raises_a_syntax_error(text):
    try:
        assert parse(text)
    except CallSyntaxError as error:
        assert str(error)


@given(st.binary(max_size=40))
def test_every_byte_can_be_written_in_a_string(data):
    assert unescape("".join(f"\\x{byte:02x}" for byte in data)) == data


def test_unknown_names_are_found_before_anything_runs(image):
    for text, says in (("strlne(1)", "no function 'strlne'; did you mean strlen"),
                       ("strlen(&nosuch)", "no symbol 'nosuch'"),
                       ("strlen(p)", "'p' is not assigned")):
        with pytest.raises(KinstError, match=says):
            check(image, parse(text))


def test_values_pass_from_call_to_call(booted):
    evaluation = Evaluation(Caller(booted))
    value = evaluation.run(parse(
        'p = buf(16); memcpy(p, "hello", 6); memcpy(p + 5, ", you", 6); strlen(p)'))
    assert value == 10
    assert booted.read_string(evaluation.names["p"]) == b"hello, you"


@pytest.mark.parametrize("text, says", [
    ('strlen()', "expected 1 argument, got 0"), ('strlen("a", 2)', "expected 1 argument, got 2"),
    ('crc32("a", "b", 1)', "argument 1 must be u32, not a string"),
    ('classify(5000000000, 1)', "argument 1: 5000000000 does not fit"),
    ('strlen(machine_idle())', "argument 1 is machine_idle(...), which returns nothing"),
])
def test_arguments_are_checked_against_the_prototype(image, text, says):
    with pytest.raises(KinstError, match=re.escape(says)):
        check(image, parse(text), Prototypes(image))
    check(image, parse(text))


def test_an_unmapped_pointer_argument_is_refused(booted):
    evaluation = Evaluation(Caller(booted), Prototypes(booted.image))
    if booted.translate(1 << 50) is None:
        with pytest.raises(KinstError, match="nothing is mapped at 0x4"):
            evaluation.run(parse("strlen(0x4000000000000)"))
    else:
        assert booted.arch.name != "amd64"  # the other teaching kernels do not use page tables
    assert evaluation.run(parse('strlen("ab")')) == 2


@pytest.mark.parametrize("call, says", [
    ('strlen("ab")', "2 (0x2)"), ('memcpy(buf(8), "ab", 3)', "(void *) 0x"),
    ('cnputs("")', ""), ('strcmp("a", "b")', "-1 (0xffffffff)"), ("5", "5 (0x5)"),
])
def test_results_are_formatted_by_their_types(booted, call, says):
    evaluation = Evaluation(Caller(booted), Prototypes(booted.image))
    value = evaluation.run(parse(call))
    shown = describe(booted, evaluation.kind, value)
    assert shown.startswith(says) and bool(shown) == bool(says)


def test_a_kernel_variable_can_be_read_and_set(booted):
    at = booted.image.symbols.find("kept").address
    before = booted.read(at, 4)
    evaluation = Evaluation(Caller(booted), Prototypes(booted.image))
    program = parse("kept = 7; kept + 1")
    check(booted.image, program, evaluation.prototypes)
    assert evaluation.run(program) == 8
    assert evaluation.changed == [
        f"kept: {int.from_bytes(before, 'little')} -> 7 (unsigned int kept, at {at:#x})"]
    assert evaluation.run(parse("kept")) == 7 and declare(evaluation.kind) == "unsigned int"
    assert booted.read(at, 8)[:4] == (7).to_bytes(4, "little")
    with pytest.raises(KinstError,
                       match="kept = 4294967296: the value does not fit in the 4 bytes"):
        evaluation.run(parse("kept = 0x100000000"))
    booted.write(at, before)


@pytest.mark.parametrize("text, says", [
    ("strlen = 4", "strlen is a kernel function"),
    ("notes = 4", "not a number or pointer (struct note notes[8]); use &notes"),
    ("strlen(notes)", "not a number or pointer"),
])
def test_assigning_to_a_function_or_an_array_is_refused(image, text, says):
    with pytest.raises(KinstError, match=re.escape(says)):
        check(image, parse(text), Prototypes(image))


def test_a_char_pointer_result_shows_its_string(booted):
    address = Caller(booted).place(b"text\0")
    shown = describe(booted, Pointer(lambda: Qualified("const", lambda: CHAR)), address)
    assert shown == f'(const char *) {address:#x} "text"'


def test_prototypes_of_the_c_library_are_known_without_debug_data(tmp_path):
    (tmp_path / "kernel").write_bytes(Elf(symbols=[("strlen", 0x1000, 4, 2)]).build())
    prototypes = Prototypes(load_image(tmp_path / "kernel"))
    assert prototypes.types() is None
    assert declare(prototypes.of("strlen", None), "strlen") == "size_t strlen(const char *s)"
    assert prototypes.of("classify", None) is None
