import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtrace.calls import (
    Address,
    Call,
    CallSyntaxError,
    Data,
    Evaluation,
    Name,
    Number,
    Statement,
    check,
    parse,
    unescape,
)
from emu.call import Caller
from emu.errors import KinstError


def test_arguments_of_every_kind_are_read():
    (statement,) = parse(r"""f(1, -0x10, 017, 'A', "a\n", buf(3), bytes("\x01\0"), &s+8, &t-4)""")
    assert statement == Statement(None, Call("f", (
        Number(1), Number(-16), Number(15), Number(65), Data(b"a\n\0"), Data(bytes(3)),
        Data(b"\1\0"), Address("s", 8), Address("t", -4))))


def test_programs_assign_and_nest():
    assert parse("p = f(g(1)); h(p, p + 8, p-8);") == [
        Statement("p", Call("f", (Call("g", (Number(1),)),))),
        Statement(None, Call("h", (Name("p", 0), Name("p", 8), Name("p", -8)))),
    ]


@pytest.mark.parametrize("text, says", [
    ("", "empty"), ("f(", "expected an argument, found the end"), ("f(1", "expected ','"),
    ("f(1))", "expected ';'"), ("f(#)", "cannot read"), ("f(buf(0))", "a size from 1"),
    ("f(buf(999999999999))", "a size from 1"), ("f(buf(x))", "a size"), ("f(&3)", "a symbol"),
    ('f("\\q")', "unknown escape"), ("f(bytes(3))", "a string"), ("f(&s+)", "a number"),
    ("f(" * 100 + ")" * 100, "nested deeper"), ("1 2", "expected ';'"), ("f(" + "1," * 40000,
                                                                         "longer than"),
])
def test_a_wrong_program_is_refused_with_its_place(text, says):
    with pytest.raises(CallSyntaxError, match=says) as error:
        parse(text)
    assert "\n" not in str(error.value)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text):
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
                       ("strlen(p)", "'p' was not assigned")):
        with pytest.raises(KinstError, match=says):
            check(image, parse(text))


def test_values_pass_from_call_to_call(booted):
    evaluation = Evaluation(Caller(booted))
    value = evaluation.run(parse(
        'p = buf(16); memcpy(p, "hello", 6); memcpy(p + 5, ", you", 6); strlen(p)'))
    assert value == 10
    assert booted.read_string(evaluation.names["p"]) == b"hello, you"
