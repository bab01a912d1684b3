"""Tests that hostile D sources are refused quickly, with one clear message."""

import sys

import pytest

from dtrace.d.language.options import MAX_TIME
from tests.dtrace.programs import command, quiet, run, tag

DOUBLED = {
    "inlines": "inline int a0 = pid;" + "".join(
        f"inline int a{n} = a{n - 1} + a{n - 1};" for n in range(1, 26)) + "BEGIN { trace(a25); }",
    "constant inlines": "inline int a0 = 1;" + "".join(
        f"inline int a{n} = a{n - 1} + a{n - 1};" for n in range(1, 26)) + "BEGIN { trace(a25); }",
    "inlines with keys": "inline int a0[int x] = x;" + "".join(
        f"inline int a{n}[int x] = a{n - 1}[x] + a{n - 1}[x];" for n in range(1, 26))
        + "BEGIN { trace(a25[1]); }",
    "translators": "struct s0 { int m; }; translator struct s0 < int *a > { m = *a; };" + "".join(
        f"struct s{n} {{ int m; }}; translator struct s{n} < int *a > "
        f"{{ m = xlate<struct s{n - 1}>(a).m + xlate<struct s{n - 1}>(a).m; }};"
        for n in range(1, 26)) + "BEGIN { trace(xlate<struct s25>((int *)arg0).m); }",
    "descriptions": "BEGIN," * 682 + "BEGIN { " + "x = 1;" * 500 + " }",
}


@pytest.mark.parametrize("kind", DOUBLED)
def test_sources_that_expand_exponentially_are_refused_before_expansion(kind):
    """Expanding a source that doubles its size 25 times would take hours."""
    status, out, said = run("-q", "-n", DOUBLED[kind])
    assert status == 1 and not out and " more than " in said and said.count("\n") <= 1


def test_structures_of_exponential_size_can_be_declared():
    source = "struct s0 { int m; };" + "".join(
        f"struct s{n} {{ struct s{n - 1} a, b; }};" for n in range(1, 29))
    assert quiet(source + "BEGIN { trace(sizeof(struct s28)); exit(0); }") == str(4 << 28)


@pytest.mark.parametrize("source, expected", [
    ("BEGIN { trace(" + "9" * 5000 + "); }", "D_INT_OFLOW"),
    ("BEGIN { trace(0" + "7" * 5000 + "); }", "D_INT_OFLOW"),
    ("BEGIN { trace(0x" + "f" * 5000 + "); }", "D_INT_OFLOW"),
    ("9" * 5000 + " { }", "D_INT_OFLOW"),
    ("BEGIN { trace(\u0663); }", "D_SYNTAX"), ("BEGIN { trace(1\u00b2); }", "D_SYNTAX"),
    ("BEGIN { @ = llquantize(1, 2, 0, 61, 32768); }", "D_LLQUANT_NSTEPVAL"),
])
def test_malformed_and_overlong_numbers_get_the_right_error_tag(source, expected):
    assert tag(source) == expected


def test_a_macro_argument_of_5000_digits_overflows():
    assert tag("BEGIN { trace($1); }", "9" * 5000) == "D_MACRO_OFLOW"


def test_leading_zeros_do_not_make_a_number_too_large():
    assert quiet("BEGIN { trace(0x" + "0" * 5000 + "1f); exit(0); }") == "31"


def test_a_daily_timer_ends_with_a_message_at_the_time_limit():
    status, _out, said = command("-q", "-n", "tick-1day { }")
    assert status == 0 and "limit of 146 years reached" in said and "Traceback" not in said


@pytest.mark.parametrize("option", ["switchrate", "aggrate", "statusrate"])
def test_a_rate_longer_than_the_time_limit_is_refused(option):
    status, _out, said = run("-k", "teaching/amd64", "-x", f"{option}={MAX_TIME + 1}ns", "-q", "-n",
                             "BEGIN { exit(0); }")
    assert status == 1 and "Invalid value" in said


def _calls(source):
    """Return the number of Python function calls made while a program is compiled and run."""
    count = 0

    def profile(_frame, event, _argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        run("-q", "-n", source)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("statement", [
    "x = 1;", "trace(1);", "@a{n} = count();", "v{n} = 1;", "if (1) {{ x = 1; }}"])
def test_compile_time_is_linear_in_the_number_of_statements(statement):
    """Count function calls, since wall-clock time depends on the load of the host."""
    def program(count):
        return "BEGIN { " + "".join(statement.format(n=n) for n in range(count)) + " exit(0); }"

    assert _calls(program(800)) < 2.3 * _calls(program(400))
