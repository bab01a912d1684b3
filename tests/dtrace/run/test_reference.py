"""Tests of edge cases that follow FreeBSD's libdtrace and dtrace.c."""

import pytest

from tests.dtrace.programs import quiet, run


@pytest.mark.parametrize("program, number", [
    ('trace("a"); trace("b"); trace(*(int *)0x10);', 3),
    ('printf("%d %d %d", 1, 2, *(int *)0x10);', 3),
    ("@[1, *(int *)0x10] = count();", 3),
    ("x = 5; y = 6; @ = sum(*(int *)0x10);", 4),
    ("@[1] = quantize(2, *(int *)0x10);", 3),
    ("normalize(@a, *(int *)0x10);", 2),
    ("trunc(@a, *(int *)0x10);", 2),
    ("tracemem(0x10, 8, 4);", 2),
])
def test_a_fault_reports_the_action_number_that_dtrace_counts(program, number):
    status, _out, said = run("-q", "-n", "BEGIN { @a = count(); } BEGIN { " + program + " } "
                             "ERROR { printf(\"[%d]\", arg2); exit(1); }")
    assert status == 1 and f"in action #{number}" in said and f"[{number}]" in _out


def test_a_fault_in_a_predicate_is_reported_there():
    _status, out, said = run("-q", "-n", "BEGIN / *(int *)0x10 / { trace(1); } "
                             "ERROR { trace(arg2); exit(1); }")
    assert "invalid address (0x10) in predicate at BPF offset" in said and out.strip() == "0"


def test_a_fault_while_a_value_is_stored_has_no_offset():
    _status, out, said = run("-q", "-n", "BEGIN { trace(stringof((char *)16)); } "
                             "ERROR { printf(\"%d\", arg3); exit(1); }")
    assert "invalid address (0x10) in action #1\n" in said and out == "-1\n"


@pytest.mark.parametrize("expression, wanted", [
    ('strtok("x,y:z", ":"), strtok(NULL, "q")', "[x,y][:z]"),
    ('strtok("::a", ":"), strtok(NULL, ":") == NULL ? "none" : "one"', "[a][none]"),
    ('substr("abc", -10), substr("abc", -5)', "[abc][abc]"),
    ('substr("abcdef", -3, 2), substr("abcdef", 1, -2)', "[de][bcd]"),
])
def test_string_subroutines_handle_edge_cases_as_freebsd_does(expression, wanted):
    assert quiet(f'BEGIN {{ printf("[%s][%s]", {expression}); exit(0); }}') == wanted


def test_strtok_rereads_the_string_and_forgets_it_after_the_firing():
    assert quiet('BEGIN { s = "x:y:z"; printf("[%s]", strtok(s, ":")); s = "p:q:r"; '
                 'printf("[%s]", strtok(NULL, ":")); } '
                 'BEGIN { printf("[%s]", strtok(NULL, ":")); } '
                 'tick-1s { printf("[%d]", strtok(NULL, ":") == NULL); exit(0); }'
                 ) == "[x][q][r][1]"


def test_arguments_are_evaluated_from_left_to_right():
    assert quiet('BEGIN { n = 2; this->d = (char *)alloca(16); '
                 'bcopy("abcdefgh" + (n++), this->d + (n++), n++); '
                 'printf("%d|%s|", n, stringof(this->d + 3)); exit(0); }') == "5|cdef|"


def test_an_aggregation_evaluates_keys_then_the_increment_then_the_value():
    assert quiet('BEGIN { @[n++] = quantize(n++, n++); exit(0); } '
                 'END { printa("%d %@d", @); }').split()[0] == "0"
    assert quiet('BEGIN { n = 0; @[n++] = sum(n); exit(0); } END { printa("%d %@d", @); }') == "0 1"
    assert quiet('BEGIN { n = 0; @[strjoin("a", "b"), n++] = sum(n++); exit(0); } '
                 'END { printa("%s %d %@d", @); }') == "ab 0 1"


def test_discard_does_not_discard_the_record_of_its_own_clause():
    status, out, _said = run("-q", "-n", 'BEGIN { printf("hello"); discard(1); exit(3); }')
    assert (status, out.strip()) == (3, "hello")


@pytest.mark.parametrize("action", ["commit(7)", "discard(7)"])
def test_an_invalid_speculation_number_is_an_illegal_operation(action):
    program = "BEGIN { " + action + "; } ERROR { trace(arg4); exit(1); }"
    _status, out, said = run("-q", "-n", program)
    assert out.strip() == "3" and "illegal operation in action #1" in said


def test_an_unaligned_store_is_a_fault():
    _status, out, said = run("-q", "-n", "BEGIN { this->p = (char *)alloca(8); "
                             "*(int *)(this->p + 1) = 5; } ERROR { trace(arg4); exit(1); }")
    assert "invalid alignment" in said and out.strip() == "2"


def test_rand_returns_64_random_bits():
    assert quiet("BEGIN { n = 0; n += rand() < 0; n += rand() < 0; n += rand() < 0; "
                 "n += rand() < 0; n += rand() < 0; n += rand() < 0; n += rand() < 0; "
                 "n += rand() < 0; printf(\"%d\", n > 0 && n < 8); exit(0); }") == "1"


@pytest.mark.parametrize("form, wanted", [
    ('"%05s|%05c|%#.3o|%#o", "ab", 65, 8, 8', "000ab|0000A|010|010"),
    ('"%-5s|%5s", "ab", "ab"', "ab   |   ab")])
def test_printf_pads_as_freebsd_does(form, wanted):
    assert quiet(f"BEGIN {{ printf({form}); exit(0); }}") == wanted


def test_a_lowered_buffer_size_is_reported_with_its_unit():
    _status, _out, said = run("-x", "bufsize=100g", "-n", "BEGIN { exit(0); }")
    assert "buffer size lowered to 200m" in said


@pytest.mark.parametrize("words, wanted", [
    ([0xABCD, 1, 0xFFFF, 0xABCD, 0xABCD, 0, 0xABCD, 0xFFFF], b"abcd:1:ffff:abcd:abcd::abcd:ffff"),
    ([0x2001, 0xDB8, 0, 1, 1, 1, 1, 1], b"2001:db8::1:1:1:1:1"),
    ([1, 2, 3, 4, 5, 6, 7, 0], b"1:2:3:4:5:6:7:0"),
    ([1, 0, 0, 4, 0, 0, 0, 8], b"1:0:0:4::8"), ([0] * 8, b"::"), ([0] * 7 + [1], b"::1")])
def test_inet_ntop_compresses_the_longest_run_of_zeros(words, wanted):
    from dtrace.run.subroutines import inet_ntoa6

    assert inet_ntoa6(b"".join(word.to_bytes(2) for word in words)) == wanted


def test_the_stability_report_lists_what_a_program_relies_on():
    _status, out, _said = run("-v", "-n", "dtrace:::BEGIN { trace(curthread); exit(0); }")
    report = """
Stability attributes for description dtrace:::BEGIN :

\tMinimum Probe Description Attributes
\t\tIdentifier Names: Stable
\t\tData Semantics:   Stable
\t\tDependency Class: Common

\tMinimum Statement Attributes
\t\tIdentifier Names: Stable
\t\tData Semantics:   Private
\t\tDependency Class: Common

"""
    assert out.startswith(report)
    _status, out, _said = run("-v", "-e", "-n", "BEGIN { exit(0); }")
    assert "Identifier Names: Unstable" in out and out.count("Argument Types") == 1
    assert "\n:::BEGIN\n" in out
