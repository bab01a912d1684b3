"""Tests that the output of D programs without a kernel matches dtrace(1) byte for byte."""

import pytest

from dtrace.d.compile import libraries
from dtrace.run import linked_programs
from kinst_emu.cli import script
from tests.dtrace.programs import quiet, run


@pytest.mark.parametrize("expression, printed", [
    ("1 + 2 * 3", "7"), ("7 / 2", "3"), ("-7 / 2", "-3"), ("-7 % 4", "-3"), ("1 << 4", "16"),
    ("-8 >> 1", "-4"), ("0xff & 0x0f", "15"), ("5 ^ 3", "6"), ("~0", "-1"), ("!3", "0"),
    ("1 < 2", "1"), ("2 <= 1", "0"), ("1 && 0", "0"), ("0 || 3", "1"), ("1 ^^ 1", "0"),
    ("1 ? 5 : 6", "5"), ("'a'", "97"), ("'ab'", "24930"), ("(1, 2)", "2"), ("sizeof(int)", "4"),
    ("sizeof(\"abc\")", "4"), ("(char)0x1ff", "255"), ("-1 < 0U", "0"), ("010", "8"),
])
def test_constant_expressions_are_evaluated_as_in_c(expression, printed):
    assert quiet("BEGIN { trace(" + expression + "); exit(0); }") == printed


@pytest.mark.parametrize("value, printed", [
    ("-7 / x", "-3"), ("-7 % x", "-1"), ("x << 3", "16"), ("(0 - x) >> 1", "-1"),
    ("x * x + x", "6"), ("x == 2 && x != 3", "1"), ("x > 5 || x < 3", "1"), ("x ? 10 : 20", "10"),
    ("(uint8_t)(x - 3)", "255"), ("(int)(char)(x + 254)", "0"),
    ("(uint64_t)(0 - x) > 5", "1"), ("(0 - x) < 5", "1"),
])
def test_expressions_with_variables_are_evaluated_as_in_c(value, printed):
    assert quiet("int x; BEGIN { x = 2; trace(" + value + "); exit(0); }") == printed


def test_a_variable_from_the_host_is_extended_by_its_type(monkeypatch):
    monkeypatch.setattr(linked_programs.os, "getppid", lambda: 0xFFFF_FFFE)  # -2 in an int
    text = 'BEGIN /ppid < 0/ { printf("%d %d %d", ppid, ppid > 0, ppid == -2); exit(0); }'
    assert quiet(text) == "-2 0 1"


def test_variables_are_global_thread_local_clause_local_or_associative():
    assert quiet("""
        int g; self int s; this int t;
        BEGIN { g = 1; self->s = 2; this->t = 3; a["k", 1] = 4; a["k", 2] = 5; }
        BEGIN { printf("%d %d %d %d %d %d", g++, self->s, this->t, a["k", 1], a["k", 2], a["z", 1]);
                a["k", 1] = 0; self->s = 0; }
        BEGIN { printf(" %d %d %d", g, self->s, a["k", 1]); exit(0); }""") == "1 2 3 4 5 0 2 0 0"


def test_strings_can_be_copied_compared_and_set_to_null():
    assert quiet("""
        string s;
        string u;
        BEGIN { s = "abc"; self->t = strjoin(s, "def"); m[s] = self->t;
                printf("%s %s %d %d|%s|", s, m["abc"], s < "abd", s == m["abc"], u); s = NULL;
                printf("%d", s == NULL); exit(0); }""") == "abc abcdef 1 0||1"


def test_structures_have_members_and_bit_fields():
    assert quiet("""
        struct point { int x; int y; struct { char c[4]; } in; unsigned bits : 5; };
        struct point p; struct point many[int];
        BEGIN { p.x = 3; p.y = p.x + 4; p.bits = 37; p.in.c[1] = 'z'; many[1].y = 9; many[2] = p;
                printf("%d %d %d %c %d %d %d", p.x, p.y, p.bits, p.in.c[1], many[1].y, many[2].y,
                       sizeof (p)); exit(0); }""") == "3 7 5 z 9 7 13"


def test_pointers_can_address_scratch_memory():
    assert quiet("""
        BEGIN { this->p = (int *)alloca(16); *this->p = 7; this->p[2] = 9; this->q = this->p + 2;
                bcopy(this->q, this->p + 1, 4);
                printf("%d %d %d", *this->p, this->p[1], this->q - this->p); exit(0); }
        """) == "7 9 2"


def test_inlines_enumerations_and_translators_work():
    assert quiet("""
        inline int TWICE[int n] = n * 2; inline string NAME = probename;
        enum color { RED = 3, BLUE };
        struct out { int a; string b; };
        translator struct out < int T > { a = T + 1; b = T > 4 ? "big" : "small"; };
        struct out made;
        BEGIN { made = xlate<struct out>(8);
                printf("%d %s %d %d %s %d %s", TWICE[4], NAME, BLUE, xlate<struct out>(4).a,
                       xlate<struct out>(5).b, made.a, made.b); exit(0); }
        """) == "8 BEGIN 4 5 big 9 big"


def test_if_statements_can_be_nested():
    assert quiet("""
        BEGIN { x = 3; if (x > 2) { printf("a"); if (x > 5) printf("b"); else printf("c"); }
                else { printf("d"); } printf("e"); exit(0); }""") == "ace"


@pytest.mark.parametrize("call, printed", [
    ('strlen("abc")', "3"), ('strchr("abcb", 98)', "bcb"), ('strrchr("abcb", 98)', "b"),
    ('strstr("abcdef", "cd")', "cdef"), ('substr("abcdef", 2)', "cdef"),
    ('substr("abcdef", -3, 2)', "de"), ('substr("abcdef", 1, -2)', "bcd"),
    ('index("abcabc", "c")', "2"), ('index("abcabc", "c", 3)', "5"), ('rindex("abcabc", "a")', "3"),
    ('strjoin("a", "b")', "ab"), ('basename("/usr/lib/")', "lib"), ('dirname("/usr/lib")', "/usr"),
    ('cleanpath("/a/./b//../c")', "/a/c"), ("lltostr(-12)", "-12"), ("lltostr(255, 16)", "0xff"),
    ('strtoll("0x1f", 16)', "31"), ('strtoll("-12abc")', "-12"), ('toupper("aBc")', "ABC"),
    ('tolower("aBc")', "abc"), ("htons(0x1234)", "13330"), ("ntohl(1)", "16777216"),
    ('json("{\\"a\\": [1, {\\"b\\": \\"c\\"}]}", "a[1].b")', "c"),
])
def test_subroutines_return_the_values_that_the_guide_documents(call, printed):
    assert quiet("BEGIN { trace(" + call + "); exit(0); }") == printed


def test_strtok_continues_with_the_same_string():
    assert quiet('BEGIN { this->a = strtok("a:b:c", ":"); this->b = strtok(NULL, ":"); '
                 'printf("%s %s", this->a, this->b); exit(0); }') == "a b"


@pytest.mark.parametrize("format_, arguments, printed", [
    ("%d %i %u", "-1, -1, 1", "-1 -1 1"), ("%5d|%-5d|%05d", "42, 42, 42", "   42|42   |00042"),
    ("%x %X %#x %o", "255, 255, 255, 8", "ff FF 0xff 10"), ("%c%c", "72, 105", "Hi"),
    ("%s|%6s|%-6s|%.2s", '"abc", "abc", "abc", "abc"', "abc|   abc|abc   |ab"),
    ("%*d", "5, 42", "   42"), ("%%%d", "1", "%1"), ("%p", "(void *)0x1234", "1234"),
    ("%S", '"a\\tb"', "a\\tb\\0"), ("%+d % d", "5, 5", "+5  5"), ("%lld", "(long long)-5", "-5"),
    ("%hx", "(short)-1", "ffff"),
])
def test_printf_conversions_format_their_arguments(format_, arguments, printed):
    assert quiet(f'BEGIN {{ printf("{format_}", {arguments}); exit(0); }}') == printed


def test_default_output_has_cpu_probe_id_and_name_columns():
    status, out, said = run("-n", 'BEGIN { trace(1); trace("two"); exit(3); }')
    assert status == 3 and said == "dtrace: description 'BEGIN ' matched 1 probe\n"
    assert out == ("CPU     ID                    FUNCTION:NAME\n"
                   "  0      1                           :BEGIN         1  two"
                   "                              \n\n")


def test_only_empty_and_recording_clauses_print_rows():
    _status, out, _said = run("-n", "BEGIN { x = 1; } BEGIN BEGIN { @ = count(); } END { exit(0); }"
                              " tick-1s { exit(0); }")
    assert out.count(":BEGIN") == 1 and out.count(":END") == 1


def test_aggregations_are_printed_at_the_end_sorted_by_value():
    assert quiet("""
        BEGIN { @c["b"] = count(); @c["b"] = count(); @c["a"] = count(); @s = sum(5); @s = sum(6);
                @m = max(3); @m = max(9); @n = min(3); @n = min(-2); @v = avg(4); @v = avg(8);
                @d = stddev(2); @d = stddev(4); exit(0); }""") + "\n" == "\n" + "".join(
        f"  {key:<50} {value:16d}\n" for key, value in (("a", 1), ("b", 2))) + "".join(
        f" {value:16d}\n" for value in (11, 9, -2, 6, 1))


def test_quantize_distributions_are_drawn():
    assert quiet("BEGIN { @q = quantize(5); @q = quantize(6); @q = quantize(-3); "
                 "printa(@q); exit(0); }") == (
        "\n\n           value  ------------- Distribution ------------- count    \n"
        "              -4 |                                         0        \n"
        "              -2 |@@@@@@@@@@@@@                            1        \n"
        "              -1 |                                         0        \n"
        "               0 |                                         0        \n"
        "               1 |                                         0        \n"
        "               2 |                                         0        \n"
        "               4 |@@@@@@@@@@@@@@@@@@@@@@@@@@@              2        \n"
        "               8 |                                         0        \n\n")


def test_linear_distributions_have_underflow_and_overflow_rows():
    assert quiet("tick-1ms { @ = lquantize(i++, 2, 8, 3); } tick-1ms /i == 12/ { exit(0); }") == (
        "\n\n           value  ------------- Distribution ------------- count    \n"
        "             < 2 |@@@@@@@                                  2        \n"
        "               2 |@@@@@@@@@@                               3        \n"
        "               5 |@@@@@@@@@@                               3        \n"
        "            >= 8 |@@@@@@@@@@@@@                            4        \n")


def test_printa_takes_a_format_and_several_aggregations():
    assert quiet("""
        BEGIN { @a["x"] = count(); @b["x"] = sum(7); @b["y"] = sum(9);
                printa("%s %@d %@d;", @a, @b); exit(0); }""") .startswith("y 0 9;x 1 7;")


def test_normalize_trunc_and_clear_change_an_aggregation():
    out = quiet("""
        BEGIN { @a[1] = sum(100); @a[2] = sum(300); @a[3] = sum(200); }
        BEGIN { normalize(@a, 10); printa("%d=%@d ", @a); trunc(@a, 2); printa("%d=%@d ", @a);
                clear(@a); printa("%d=%@d ", @a); exit(0); }""")
    assert out.startswith("1=10 3=20 2=30 3=20 2=30 2=0 3=0 ")


def test_a_speculation_is_committed_or_discarded():
    assert quiet("""
        #pragma D option nspec=2
        BEGIN { this->a = speculation(); this->b = speculation(); }
        BEGIN { speculate(this->a); printf("kept"); }
        BEGIN { speculate(this->b); printf("gone"); }
        BEGIN { discard(this->b); }
        BEGIN { printf("first "); }
        BEGIN { commit(this->a); }
        BEGIN { exit(0); }""") == "first kept"


def test_a_fault_is_reported_and_the_error_probe_fires():
    status, out, said = run("-q", "-n", """
        BEGIN { trace(*(int *)64); }
        ERROR { printf("%d %x", arg4, arg5); exit(2); }""")
    assert (status, out) == (2, "1 40\n")
    assert "error on enabled probe ID 1 (ID 1: dtrace:::BEGIN): invalid address (0x40)" in said


@pytest.mark.parametrize("action, says", [
    ("trace(1 / x)", "divide-by-zero"), ("trace(alloca(1 << 30))", "out of scratch space"),
    ('trace(strlen(NULL))', "invalid address (0x0)"),
    ("trace(lltostr(1, 99))", "illegal operation"),
    ("bcopy((void *)64, alloca(4), 4)", "invalid address (0x40)"),
    ("bcopy((void *)-64, alloca(4), 4)", "invalid address (0xffffffffffffffc3)"),
    ("bcopy(alloca(4), (void *)64, 4)", "invalid address (0x40)"),
    ("this->s = alloca(8); bcopy(this->s, alloca(0), 4)", "invalid address"),
    ("a[1][9] = 1", "invalid address"), ("trace(uregs[1])", "illegal operation"),
])
def test_each_fault_is_reported_by_name(action, says):
    _status, _out, said = run("-q", "-n", "int x; int a[int][4]; BEGIN { " + action + "; } "
                              "tick-1s { exit(0); }")
    assert says in said


def test_an_inline_name_for_a_translation_can_be_printed():
    assert quiet("""
        struct out { int a; string b; };
        translator struct out < int I > { a = I * 2; b = "text"; };
        inline struct out *made = xlate <struct out *> (4);
        BEGIN { printf("%d %s ", made->a, (*made).b); print(*made); exit(0); }""") == (
            '8 text struct out {\n    int a = 0x8\n    string b = [ "text" ]\n}')


def test_register_names_are_defined_unless_nolibs_is_set():
    assert quiet("BEGIN { printf(\"%d %d\", R_PC, R_SP); exit(0); }") == "14 17"
    status, _out, said = run("-x", "nolibs", "-n", "BEGIN { trace(R_PC); }")
    assert status == 1 and "failed to resolve R_PC" in said


@pytest.mark.parametrize("least, refused", [
    ("Evolving/Evolving/Common", True), ("Evolving/Private/Common", False), ("Standard", True)])
def test_the_amin_option_refuses_less_stable_variables(least, refused):
    status, _out, said = run("-x", "errtags", "-x", f"amin={least}", "-n",
                             "BEGIN { trace((int)curthread); exit(0); }")
    assert (status == 1 and "[D_ATTR_MIN]" in said) == refused


def test_timers_fire_in_virtual_time():
    assert quiet("""
        tick-10ms { ticks++; } profile-100hz { profiles++; }
        tick-1s { printf("%d %d %d", ticks, profiles, timestamp); exit(0); }""") == (
            "100 100 1000000000")


def test_drops_are_reported():
    _status, _out, said = run("-q", "-x", "aggsize=4k", "-n", "tick-1ms { @[i++] = count(); } "
                              "tick-1s { exit(0); } tick-10s { exit(1); }")
    assert "aggregation drops on CPU 0" in said
    _status, _out, said = run("-q", "-x", "dynvarsize=1k", "-n", "tick-1ms { a[i++] = 1; } "
                              "tick-1s { exit(0); }")
    assert "dynamic variable drops" in said
    _status, _out, said = run("-q", "-x", "bufsize=128", "-n", "tick-1ms { trace(i++); } "
                              "tick-1s { exit(0); } tick-2s { exit(0); }")
    assert "drops on CPU 0" in said


def test_the_ring_buffer_policy_keeps_the_newest_records():
    out = quiet("""
        #pragma D option bufpolicy=ring
        #pragma D option bufsize=256
        tick-1ms { printf("%d ", i++); } tick-1ms /i == 100/ { exit(0); }""")
    numbers = [int(word) for word in out.split()]
    assert numbers == list(range(numbers[0], 100)) and 5 < len(numbers) < 20


def test_invalid_options_are_refused():
    assert run("-x", "nosuch=1", "-n", "BEGIN")[::2] == (
        1, "dtrace: failed to set -x nosuch: Invalid option name\n")
    assert run("-x", "bufsize=x", "-n", "BEGIN")[2].endswith("Invalid value for specified option\n")
    assert run("-n", "BEGIN { system(\"true\"); exit(0); }")[2].endswith(
        "could not enable tracing: Destructive actions not allowed\n")
    assert run("-w", "-q", "-n", 'BEGIN { freopen("%s", "/dev/null"); trace(1); freopen(""); '
               "exit(0); }")[:2] == (0, "\n")


@pytest.mark.parametrize("allowed", ["#pragma D option destructive\n",
                                     'BEGIN { setopt("destructive"); }'])
@pytest.mark.parametrize("action, says", [
    ('system("touch %s")', "system() runs a command"), ('freopen("%s")', "freopen() writes to a")])
def test_a_program_cannot_affect_the_host_without_w(tmp_path, allowed, action, says):
    path = tmp_path / "made"
    program = f'{allowed} BEGIN {{ {action % path}; trace(1); exit(0); }}'
    status, _out, err = run("-q", "-n", program)
    assert status == 1 and (("with -w" in err and says in err) or "not allowed" in err)
    assert not path.exists()
    assert run("-w", "-q", "-n", program)[0] == 0
    assert path.exists()


def test_a_program_can_allow_itself_to_affect_the_guest():
    program = "#pragma D option destructive\nfbt::strlen:entry { chill(1000); exit(4); }"
    assert run("-k", "teaching/amd64", "-q", "-n", program, "-c", 'strlen("a")')[0] == 4


def test_macro_arguments_are_replaced():
    assert quiet('BEGIN { printf("%d %s", $1 + 1, $$2); exit(0); }', "41", "word") == "42 word"
    assert "extraneous argument '1'" in run("-n", "BEGIN { exit(0); }", "1")[2]


def test_the_C_option_runs_the_preprocessor_on_a_script(tmp_path):
    path = tmp_path / "a.d"
    path.write_text("#!/usr/bin/env -S kdtrace -s\n#define N 7\n"
                    "#pragma D option quiet\nBEGIN { trace(N); exit(0); }\n")
    assert run("-C", "-s", str(path)) == (0, "7\n", "")


def test_the_l_option_lists_probes():
    _status, out, _said = run("-l", "-n", "BEGIN", "-n", "tick-5s")
    assert out.splitlines() == [
        "   ID   PROVIDER            MODULE                          FUNCTION NAME",
        "    1     dtrace                                                     BEGIN",
        "   17    profile                                                     tick-5s"]
    assert "No probe matches description" in run("-l", "-n", "nosuch:::x")[2]


def test_the_F_option_indents_calls():
    _status, out, _said = run("-F", "-n", "BEGIN { exit(0); }")
    assert out.startswith(f"{'CPU':>3} {'FUNCTION':<41}\n  0 | :BEGIN ")
    _status, out, _said = run("-F", "-k", "teaching/amd64", "-n", "fbt::fibonacci: { }", "-c",
                              "fibonacci(2)")
    assert [line.rstrip() for line in out.splitlines()[1:5]] == [
        "  0  -> fibonacci", "  0    -> fibonacci", "  0    <- fibonacci", "  0  <- fibonacci"]


def test_print_formats_values_by_their_types():
    assert quiet("""
        struct in { char c; int n[2]; }; struct top { int i; struct in in; void *p; } t;
        BEGIN { t.i = 10; t.in.c = 'x'; t.in.n[1] = 5; t.p = (void *)0x20; print(t); print(7);
                print("s"); exit(0); }""") == """struct top {
    int i = 0xa
    struct in in = {
        char c = 'x'
        int [2] n = [ 0, 0x5 ]
    }
    void *p = 0x20
}int 0x7
string "s"
"""


def test_tracemem_dumps_memory():
    assert quiet(
        "BEGIN { this->p = (char *)alloca(4); *this->p = 65; tracemem(this->p, 4); exit(0); }") == (
        "\n             0  1  2  3  4  5  6  7  8  9  a  b  c  d  e  f  0123456789abcdef\n"
        "         0: 41 00 00 00                                      A...\n")


def test_the_S_option_shows_code_with_source_lines():
    _status, _out, said = run("-e", "-S", "-n", "int y; BEGIN\n{\n\tx = y + 1;\n}")
    assert "clause_1 (BEGIN):\n" in said and "; 3: x = y + 1;\n" in said and ": 9500" in said


@pytest.mark.parametrize("version, release", [(1_403_000, 14), (1_500_068, 15), (None, 15)])
def test_the_preprocessor_knows_the_release_of_the_kernel(tmp_path, monkeypatch, version, release):
    monkeypatch.setattr(script, "version_of", lambda image: version)
    path = tmp_path / "a.d"
    path.write_text("#pragma D option quiet\nBEGIN { trace(__FreeBSD__); exit(0); }\n")
    assert run("-C", "-s", str(path), "-k", "teaching/amd64", "-c", "strlen(\"\")")[:2] == (
        0, f"{release}\n")


def test_a_library_that_does_not_fit_the_kernel_is_left_out_unless_it_is_named(monkeypatch):
    text = ("typedef struct psinfo { int nothing; } psinfo_t;\n"
            "translator psinfo_t < struct thread *T > { nothing = T->td_nothing; };\n")
    monkeypatch.setattr(libraries, "libraries", lambda arch, types: {"psinfo": text})
    monkeypatch.setattr(libraries, "_fits", lambda text, types: True)
    words = ("-q", "-k", "teaching/amd64", "-c", "strlen(\"abc\")", "-n")
    status, out, said = run(*words, "fbt::strlen:entry { trace(args[0] != 0); }")
    assert status == 0 and "1" in out
    assert "left out library psinfo.d, which does not fit this kernel" in said
    status, out, said = run(*words, "BEGIN { trace(sizeof(psinfo_t)); }")
    assert status and "failed to compile library psinfo.d for this kernel" in said
