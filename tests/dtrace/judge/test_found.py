"""Programs on which kdtrace once differed from FreeBSD 15.0's dtrace(1), with what that prints.

The random programs of ``kinst xval --dtrace`` found them, made as small as possible.
"""

import contextlib
import io

import pytest

from dtrace.judge.outcome import ERRORS, OUTPUT, Outcome, compared, differences
from dtrace.run.render import moment
from emu.host.errors import KinstError
from kinst_emu.cli.judged import NOT_TEMPORAL
from kinst_emu.cli.script import trace

HELD = "struct h { int i; long j; }; struct s { int a; struct h h[2]; int *p; }; struct s x;\n"
LAST = "tick-1s { exit(0); }\n"
QUIET = "#pragma D option quiet\n"
FAILED = "dtrace: failed to compile script FILE: line "
ERROR = "dtrace: error on enabled probe ID N (ID N: dtrace:::BEGIN): "
NULL = f"{ERROR}invalid address (0x0) in action "

FOUND = {
    "the compiler's own clauses count as matched": (
        'END { if (9) { } else { } }\n', 0,
        "CPU     ID                    FUNCTION:NAME\n  0 ID                         :tick-1s \n\n",
        "dtrace: script FILE matched 4 probes\n"),
    "a negated literal keeps its type": (
        f'{QUIET}BEGIN {{ @["a", !(2l)] = min(1); }}\n', 0,
        f"\n  a{0:66}{1:17}\n", ""),
    "the left side of an assignment is checked first": (
        f"{QUIET}BEGIN {{ v1 = (v3 += v3--); }}\n", 1, "",
        f"{FAILED}2: v3 has not yet been declared or assigned\n"),
    "an unknown array is reported before its keys": (
        f'{QUIET}BEGIN {{ trace(t0["a", t1[1]]); }}\n', 1, "",
        f"{FAILED}2: t0 has not yet been declared or assigned\n"),
    "a variable is not its own first value": (
        f"{QUIET}BEGIN {{ v2 = v2; }}\n", 1, "",
        f"{FAILED}2: v2 has not yet been declared or assigned\n"),
    "unsigned conversions divide a normalized value as unsigned": (
        f'{QUIET}BEGIN {{ @ = sum(-7); normalize(@, 2); printa("%@d %@i %@ld %@u %@x %@o\\n", @); '
        "}\n", 0, "-3 -3 -3 9223372036854775804 7ffffffffffffffc 777777777777777777774\n"
        "\n", ""),
    "the divisor of normalize() has the size of its type": (
        f"{QUIET}BEGIN {{ @ = sum(-7); normalize(@, -2); printa(\"%@d %@u\\n\", @); }}\n", 0,
        "0 4294967297\n\n", ""),
    "the address of a member cannot be written through": (
        f"{QUIET}{HELD}BEGIN {{ *(&x.a) = 1; }}\n", 1, "",
        f"{FAILED}3: operator = can only be applied to a writable variable\n"),
    "a sum of a pointer is writable only as an array's element": (
        f"{QUIET}{HELD}BEGIN {{ (x.p + 1)[0] = 1; }}\n", 1, "",
        f"{FAILED}3: operator = can only be applied to a writable variable\n"),
    "a difference of a pointer is not writable": (
        f"{QUIET}{HELD}BEGIN {{ *(x.p - 1) = 1; }}\n", 1, "",
        f"{FAILED}3: operator = can only be applied to a writable variable\n"),
    "what is stepped, assigned or after a comma can be written through": (
        f"{QUIET}BEGIN {{ this->p = (char *)alloca(8); this->q = this->p; *(this->p++) = 65; "
        "*(this->p = this->q + 1) = 66; *(0, this->p) = 66; *(this->p += 1) = 0; "
        "trace(stringof(this->q)); }\n", 0, "AB\n", ""),
    "an inline that is another name of a variable can be written": (
        f"{QUIET}int y; inline int X = y;\nBEGIN {{ X = 3; trace(y); }}\n", 0, "3\n", ""),
    "no other inline can be written through": (
        f"{QUIET}{HELD}inline int *X = x.p;\nBEGIN {{ *X = 3; }}\n", 1, "",
        f"{FAILED}4: operator = can only be applied to a writable variable\n"),
    "an address that is cast is writable": (
        f"{QUIET}{HELD}BEGIN {{ *((int *)&x.a) = 5; ((struct h *)&x.h[0])->i = 6; "
        "trace(x.a); trace(x.h[0].i); }\n", 0, "56\n", ""),
    "a structure is aligned as its first member": (
        f"{QUIET}struct s {{ short a; char b[3]; struct {{ short i; int j; }} h[2]; }};\n"
        "BEGIN { trace(offsetof(struct s, h)); trace(sizeof (struct s)); }\n", 0, "622\n", ""),
    "a member without alignment cannot be stored": (
        f"{QUIET}struct s {{ short a; struct {{ short i; int j; }} h[2]; }}; struct s x;\n"
        "BEGIN { x.h[1].j = 1; }\n", 0, "\n",
        f"{ERROR}invalid alignment in action #1 at offset N\n"),
    "the name of a type without a name is followed by one space": (
        f"{QUIET}struct s {{ union {{ int a; }} g; struct {{ int i; }} h; enum {{ AA }} e; "
        "struct { int i; } k[1]; union { int q; } *p; }; struct s x;\nBEGIN { print(x); }\n", 0,
        "struct s {\n    union g = {\n        int a = 0\n    }\n    struct h = {\n"
        "        int i = 0\n    }\n    enum e = AA\n    struct  [1] k = [ \n"
        "        struct  {\n            int i = 0\n"
        "        }\n    ]\n    union  *p = 0\n}\n", ""),
    "an array is not a pointer to its first structure": (
        f"{QUIET}{HELD}BEGIN {{ trace(x.h->i); }}\n", 1, "",
        f"{FAILED}3: operator -> must be applied to a pointer\n"),
    "copying a null string into a key has no offset": (
        f'{QUIET}BEGIN {{ @a1[strstr("a", ".."), "a"] = avg(1); }}\n', 0, "\n",
        f"{NULL}#2\n"),
    "the percent sign counts as a conversion": (
        f'{QUIET}BEGIN {{ printf("%.2S%%%-20hd", "a", 1); }}\n', 1, "",
        f"{FAILED}2: printf( ) argument #3 is incompatible with conversion #3 prototype:\n"
        "\tconversion: %hd\n\t prototype: short\n\t  argument: int\n"),
    "an unknown aggregation is named in a clause with an if": (
        f'{QUIET}BEGIN {{ if (1) {{ }}\n@a1[1] = count();\nprinta("%d", @); }}\n', 1, "",
        f"{FAILED}4: failed to resolve @_: Unknown variable name\n"),
    "the left operand names the type of a result": (
        f'{QUIET}uint64_t v1;\nBEGIN {{ printf("%c", strlen("a") % (v1 | 1)); }}\n', 1, "",
        f"{FAILED}3: printf( ) argument #2 is incompatible with conversion #1 prototype:\n"
        "\tconversion: %c\n\t prototype: char, short, or int\n\t  argument: size_t\n"),
    "an element that was never set is an empty string": (
        f'{QUIET}string t1[int];\nBEGIN {{ t1[2] = 0; '
        'printf("%d %d", strlen(t1[1]), strlen(t1[2])); }\n', 0, "0 0\n", ""),
    "a constant is converted to the type that it is combined with": (
        f"{QUIET}unsigned char v3; int16_t v0;\nBEGIN {{ v3 -= 1; v3 *= -65535; "
        "v0 -= -128; printf(\"%d %d %d\", v3, (long long)v3, (long long)v0); }\n", 0,
        "255 -1 128\n", ""),
    "a position that is not a negative int is far beyond the end": (
        f'{QUIET}uint32_t v;\nBEGIN {{ printf("%d %d %d", index("ab", "b", (v = {(1 << 63) - 1})), '
        f'rindex("ab", "b", (v = {(1 << 63) - 1})), strlen(substr("ab", 0, v = {(1 << 63) - 1}))); '
        '}\n', 0, "-1 1 2\n", ""),
    "a string that cannot be printed is an array of characters": (
        '#pragma D option strsize=6\nBEGIN { print("a\\tb"); print("a"); }\n', 0,
        "CPU     ID                    FUNCTION:NAME\n  0 ID                           :BEGIN "
        "string [ 'a', '\\011', 'b', '\\0', '\\0', '\\0' ]\nstring \"a\"\n\n"
        "  0 ID                         :tick-1s \n\n",
        "dtrace: script FILE matched 2 probes\n"),
    "a constant argument that does not fit in its type is converted, too": (
        f'{QUIET}BEGIN {{ printf("%s %s %s %s", substr("abc", (int)0xffffffff), '
        'substr("abc", 18446744073709551615ull), substr("abc", (int8_t)255), '
        'substr("abc", 0xffffffff)); }\n', 0, "c c c \n", ""),
    "keys that another statement adds after printa() are printed at the end": (
        f"{QUIET}BEGIN {{ @a[1] = count(); printa(@a); }}\n"
        "tick-100ms { @a[2] = count(); @a[1] = count(); }\n", 0,
        f"\n{1:9}{1:17}\n\n{2:9}{10:17}\n", ""),
    "an enumeration is unsigned, except in arithmetic": (
        f'{QUIET}enum e {{ A = -3, B }};\nBEGIN {{ printf("%d %d %d %d", A, A < 0, A + 1, '
        '(long)A); }\n', 0, "4294967293 1 -2 4294967293\n", ""),
    "the value of an inline has the type of the inline": (
        f'{QUIET}inline uint64_t f[char x] = x + x + 1;\n'
        'BEGIN { printf("%d % d", f[-4611686018427387905ul], f[1]); }\n', 0,
        "18446744073709551615 3\n", ""),
    "keys of an element that was never set are evaluated once": (
        f'{QUIET}string t[long]; int v;\nBEGIN {{ printf("[%s]%d", t[v++], v); }}\n', 0,
        "[]1\n", ""),
    "blanks are not escaped": (
        f'{QUIET}BEGIN {{ printf("[%S|%C]", "a b\\t", \' \'); }}\n', 0, "[a b\\t\\0| ]\n", ""),
    "a packed column is at least as wide as four digits": (
        '#pragma D option quiet\n#pragma D option aggpack\n'
        'BEGIN { @["a"] = quantize(-1); }\n', 0,
        "\n\n              key  min .---. max  | count\n"
        "                a   -2 : █ : 0    | 1\n", ""),
    "a bit-field of a program's structure is printed with its type": (
        "#pragma D option quiet\nstruct s { int a; unsigned int c : 23; }; struct s x;\n"
        "BEGIN { print(x); }\n", 0,
        "struct s {\n    int a = 0\n    unsigned int c :23 = 0\n}\n", ""),
    "a constant of an unsigned type is widened with zeros": (
        f"{QUIET}BEGIN {{ printf(\"%d\", (long)~(0100000u)); }}\n", 0, "4294934527\n", ""),
    "a bit-field of a whole number of bytes is printed as a number, unless it begins in a byte": (
        "#pragma D option quiet\nstruct s { int a : 3; int b : 8; char c : 8; int d : 16; "
        "int e : 24; };\nstruct s x;\n"
        "BEGIN { x.a = -1; x.b = 0x41; x.c = 'A'; x.d = 3; x.e = 4; print(x); }\n",
        0, "struct s {\n    int a :3 = 0x7\n    int b = 0x41\n    char c = 'A'\n    int d = 0x3\n"
        "    int e :24 = 0x4\n}\n", ""),
    "unsigned and unsigned int are two names": (
        "#pragma D option quiet\nBEGIN { print((unsigned)1); print((unsigned int)1); "
        "print((signed)1); }\n", 0, "unsigned 0x1\nunsigned int 0x1\nsigned 0x1\n\n", ""),
    "when BEGIN ends the trace, its rows come before those of ERROR": (
        f"{QUIET}BEGIN {{ trace(*(int *)0); }}\nBEGIN {{ trace(1); exit(0); }}\n"
        "ERROR { trace(2); }\nEND { trace(3); }\n", 0, "123\n",
        f"{NULL}#1 at offset N\n"),
    "all keys of a variable are evaluated before one of them is copied": (
        f'{QUIET}string s; string t[string, int]; int v;\n'
        'BEGIN { s = t[strtok(strjoin(s, ""), "a"), v--]; }\nEND { trace(v); }\n', 0, "-1\n",
        f"{NULL}#1 at offset N\n"),
    "when BEGIN ends the trace, nothing is consumed before END": (
        f"{QUIET}BEGIN {{ @ = count(); printa(@); exit(2); }}\nEND {{ @ = count(); }}\n", 2,
        f"\n{2:17}\n\n", ""),
    "a key that is not a string is printed as bytes, also in packed rows": (
        '#pragma D option quiet\n#pragma D option strsize=3\n#pragma D option agghist\n'
        'string t[int];\nBEGIN { @[t[1], 5] = count(); }\n', 0,
        "\n\n                       key  ------------- Distribution ------------- count    \n"
        "\n             0  1  2  3  4  5  6  7  8  9  a  b  c  d  e  f  0123456789abcdef\n"
        "         0: 00 00 00                                         ...\n"
        "        5 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@ 1        \n", ""),
    "the value of a conditional expression is not converted": (
        f"{QUIET}unsigned int v; long x;\nBEGIN {{ v--; x = (v ? v : 1); trace(x); }}\n", 0,
        "-1\n", ""),
    "short strings are sorted as numbers": (
        f'{QUIET}#pragma D option strsize=4\nBEGIN {{ @["a"] = count(); @["922"] = count(); }}\n',
        0, f"\n{97:9}{1:17}\n{3289657:9}{1:17}\n", ""),
    "a packed column of 19 digits is wider by one": (
        '#pragma D option quiet\n#pragma D option aggpack\n'
        'BEGIN { @["a"] = quantize(1ull << 61); }\n', 0,
        "\n\n              key                  min .---. max                  | count\n"
        "                a  1152921504606846976 : █ : 4611686018427387904  | 1\n", ""),
    "an inline function's value is converted even if it has the declared type": (
        f"{QUIET}inline uint32_t f[uint32_t x] = x + x + 3;\n"
        "BEGIN { trace((long)f[0x7fffffff]); }\n", 0, "1\n", ""),
    "structures are copied to variables from the end": (
        f"{QUIET}struct s {{ long a; long b; }}; struct s x;\nBEGIN {{ x = *(struct s *)64; }}\n",
        0, "\n", f"{ERROR}invalid address (0x40) in action #1 at offset N\n"),
    "structures are copied to records and keys from the beginning": (
        f"{QUIET}struct s {{ long a; long b; }};\nBEGIN {{ trace(*(struct s *)64); }}\n"
        "BEGIN { @[*(struct s *)64] = count(); }\n", 0, "\n",
        f"{ERROR}invalid address (0x4f) in action #1\n"
        f"{ERROR}invalid address (0x4f) in action #2\n"),
    "a thread-local structure has no address before it is assigned": (
        f"{QUIET}struct s {{ long a; long b; }}; self struct s x, y; struct s z;\n"
        "BEGIN { self->x.a = 1; trace(2); }\nBEGIN { trace(self->x.b); }\n"
        "BEGIN { z.b = 7; self->y = z; self->y.a = 1; trace(self->y.a); trace(self->y.b); }\n"
        "BEGIN { self->y = *(struct s *)0; trace(self->y.b); }\n", 0, "17\n",
        f"{ERROR}invalid address (0x0) in action #1 at offset N\n"
        f"{ERROR}invalid address (0x8) in action #1 at offset N\n"
        f"{ERROR}invalid address (0x8) in action #2 at offset N\n"),
    "a structure that was assigned from NULL is NULL": (
        f"{QUIET}struct s {{ long a; long b; }}; struct s x, y; this struct s z;\n"
        "BEGIN { trace(x.a); x = *(struct s *)0; y = x; trace(&y.b); trace(y.b); }\n"
        "BEGIN { this->z = x; trace(x.b); }\nBEGIN { trace(this->z.b); }\n"
        "BEGIN { trace(1); print(x); }\n", 0, "\n",
        f"{ERROR}invalid address (0x8) in action #5 at offset N\n"
        f"{ERROR}invalid address (0x8) in action #2 at offset N\n"
        f"{ERROR}invalid address (0x8) in action #1 at offset N\n"
        f"{ERROR}invalid address (0xf) in action #2\n"),
    "the last unreadable byte is reported": (
        f"{QUIET}BEGIN {{ trace(memstr((void *)64, 'a', 3)); }}\n"
        "BEGIN { printm(3, memref((void *)64, 3)); }\nBEGIN { trace(copyinstr(64, 5)); }\n"
        "BEGIN { trace(inet_ntoa6((struct in6_addr *)0xffffffffffffff00)); }\n"
        "BEGIN { trace(inet_ntop(2, (void *)0xffffffffffffff00)); }\n", 0, "\n",
        f"{ERROR}invalid address (0x41) in action #1 at offset N\n"
        f"{ERROR}invalid address (0x42) in action #1\n"
        f"{ERROR}invalid address (0x45) in action #1 at offset N\n"
        f"{ERROR}invalid address (0xffffffffffffff0f) in action #1 at offset N\n"
        f"{ERROR}invalid address (0xffffffffffffff00) in action #1 at offset N\n"),
    "an inline name of a variable stores all of it": (
        f"{QUIET}int y; long z; self int v; inline int X = y; inline char C = z;\n"
        "inline int V = self->v; inline int Y = X; inline char D = C;\n"
        "BEGIN { X = -1; trace(y == -1); z = 0x1234; C = 1; trace(z); V = 4; trace(self->v);\n"
        "Y = 6; trace(y); D = 0x107; trace(z); V++; Y--; trace(self->v); trace(y); }\n", 0,
        "1146755\n", ""),
    "strings in structures have the size of strsize": (
        f"#pragma D option strsize=512\n{QUIET}struct s {{ string t; long b; }}; struct s x;\n"
        'BEGIN { x.b = 7; x.t = "a"; trace(x.b); trace(x.t); trace(sizeof (x));\n'
        "trace(sizeof (string)); print(x); }\n", 0,
        '7a520512struct s {\n    string t = [ "a" ]\n    long b = 0x7\n}\n', ""),
    "sums of squares of several statements have 128 bits": (
        f"{QUIET}BEGIN {{ @ = stddev(5000000000); @ = stddev(5000000100); @ = stddev(5000000200);"
        ' printa("%@d", @); exit(0); }\n', 0, "81\n", ""),
    "a string and a number make a string": (
        f'{QUIET}BEGIN {{ print("abc" + 1); print(1 + "abc"); trace("abc" + 1); x = "bcd" + 2;\n'
        'trace(x); @["abc" + 2] = count(); trace("abc" - "abc"); }\n', 0,
        f'string "bc"\nstring "bc"\nbcd0\n  c{1:66}\n', ""),
    "arrays and functions have the names of CTF": (
        f"{QUIET}struct s {{ int a[2][3]; int *(*h[2])(int); void (*g)(); char *c[2]; }} z;\n"
        "BEGIN { print(z); }\n", 0,
        "struct s {\n    int [2][3] a = [ [ 0, 0, 0 ], [ 0, 0, 0 ] ]\n    int (*[2])() h = [ 0, 0 ]"
        "\n    int (*)() g = 0\n    char *[2] c = [ 0, 0 ]\n}\n", ""),
    "an index of a JSON array without digits is 0": (
        f"{QUIET}#pragma D option strsize=4\n"
        'BEGIN { trace(strtoll(json("[[7]]", "[0][0]"))); trace(strtoll(json("[2]", "[x]"))); }\n',
        0, "72\n", ""),
    "a short number has a sign": (
        f'{QUIET}BEGIN {{ printf("[%+hd|% hd|%+hd|%+hu]", (short)5, (short)7, (short)-1, '
        '(unsigned short)1); }\n', 0, "[+5| 7|+65535|1]\n", ""),
}


def outcome(path):
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            status = trace([*NOT_TEMPORAL, "-s", str(path)])
        except KinstError as error:
            print(f"dtrace: {error}", file=errors)
            status = 1
    return Outcome(status, output.getvalue(), errors.getvalue())


@pytest.mark.parametrize("name", FOUND)
def test_a_difference_that_was_found_stays_away(name, tmp_path):
    program, status, output, errors = FOUND[name]
    path = tmp_path / "script.d"
    path.write_text(program + LAST)
    ours = outcome(path)
    assert (ours.status, compared(ours.output, OUTPUT),
            compared(ours.errors, ERRORS)) == (status, output, errors)
    assert differences(Outcome(status, output, errors), ours) == []


@pytest.mark.parametrize("before", ["", "this "])
@pytest.mark.parametrize("access", ["*((long *)&x.b) = 1", "trace(*((long *)&x.b))",
                                    "*((char *)&x.b + 2) = 1", "trace(((long *)&x.a)[2])"])
def test_a_pointer_does_not_lead_out_of_its_variable(tmp_path, before, access):
    path = tmp_path / "script.d"
    access = access.replace("x", f"{before[:-1]}->x" if before else "x")
    path.write_text(f"{QUIET}struct s {{ long a; short b; }}; {before}struct s x; {before}struct s "
                    f"y;\nBEGIN {{ {access}; }}\n{LAST}")
    assert "invalid address (0x" in outcome(path).errors
    path.write_text(path.read_text().replace("(long *)&x.b", "(short *)&x.b").replace(
        "(long *)&this->x.b", "(short *)&this->x.b").replace("+ 2", "+ 1").replace("[2]", "[0]"))
    assert outcome(path).errors == ""


@pytest.mark.parametrize("scope, name", [("", "x"), ("self ", "self->x"), ("this ", "this->x")])
@pytest.mark.parametrize("copy", ["*((struct big *)&x.a) = z", "*((string *)&x.a) = \"abcdefgh\"",
                                  "z = *((struct big *)&x.a)", "tracemem(&x.a, 17)"])
def test_a_copy_does_not_leave_its_variable(tmp_path, scope, name, copy):
    path = tmp_path / "script.d"
    path.write_text(f"{QUIET}struct s {{ long a; long b; }}; struct big {{ long w[9]; }};\n"
                    f"{scope}struct s x; struct s o; {scope}struct s y; struct big z;\n"
                    f"BEGIN {{ {name} = o; o.a = 7; {name.replace('x', 'y')} = o; z.w[2] = 3; }}\n"
                    f"BEGIN {{ {copy.replace('x.', name + '.')}; }}\n"
                    f"BEGIN {{ trace({name.replace('x', 'y')}.a); }}\n{LAST}")
    ours = outcome(path)
    assert ours.output == "7\n" and "invalid address (0x" in ours.errors


@pytest.mark.parametrize("to", ["&x.b", "&self->z.b", "&y.a", "(void *)64", "this->p + 1"])
def test_bcopy_writes_only_to_memory_that_the_clause_has_allocated(tmp_path, to):
    path = tmp_path / "script.d"
    path.write_text(f"{QUIET}struct s {{ long a; short b; }}; struct s x, y; self struct s z;\n"
                    f"BEGIN {{ this->p = (char *)alloca(8); bcopy(this->p, {to}, 8); }}\n{LAST}")
    assert "invalid address (0x" in outcome(path).errors
    path.write_text(path.read_text().replace(to, "this->p"))
    assert outcome(path).errors == ""


@pytest.mark.parametrize("aggregated, switched, shown", [
    (300, 100, "4 4 4 8 8 "), (100, 300, "4 4 4 8 8 8 12 "), (1000, 1000, "14 14 14 14 14 14 14 ")])
def test_aggregations_are_read_at_aggrate_and_buffers_at_switchrate(tmp_path, aggregated, switched,
                                                                   shown):
    path = tmp_path / "script.d"
    path.write_text(f"{QUIET}#pragma D option aggrate={aggregated}ms\n"
                    f"#pragma D option switchrate={switched}ms\ntick-70ms {{ @ = sum(1); }}\n"
                    'tick-100ms /n++ < 7/ { printa("%@d ", @); }\ntick-1010ms { exit(0); }\n')
    assert outcome(path).output == f"{shown}\n"


def test_a_structure_in_a_key_is_compared_without_what_follows_it(tmp_path):
    path = tmp_path / "script.d"
    path.write_text(f"{QUIET}struct t {{ int a; int b; int c; }}; struct t v; long y[long, long];\n"
                    "BEGIN { v.a = 1; y[-1, -1] = 1; @[v] = count(); y[3, 3] = 1; @[v] = count();\n"
                    f'printa("%@d", @); }}\n{LAST}')
    assert outcome(path).output.splitlines()[0] == "2"


def test_a_string_of_an_array_ends_before_its_key(tmp_path):
    path = tmp_path / "script.d"
    path.write_text(f'{QUIET}#pragma D option strsize=10\nBEGIN {{ x["k"] = "0123456789abc";\n'
                    f'printf("[%s]", x["k"] + 16); }}\n{LAST}')
    assert outcome(path).output.splitlines()[0] == "[]"


def test_times_before_1970_are_rounded_as_in_c():
    assert moment("Y", -1) == moment("Y", 999_999_999) == moment("Y", -999_999_999)
    assert moment("Y", -10**9) != moment("Y", 0)


@pytest.mark.parametrize("member", ["struct u h", "struct u h[2]", "union u h[2][3]"])
def test_a_member_of_a_type_without_a_definition_is_refused(tmp_path, member):
    path = tmp_path / "script.d"
    path.write_text(f"struct s {{ int a; {member}; }};\n{LAST}")
    assert outcome(path).errors.startswith(
        f"dtrace: failed to compile script {path}: line 1: incomplete struct/union/enum ")


def test_a_fault_of_error_does_not_replace_the_place_of_the_fault_before_it(tmp_path):
    path = tmp_path / "script.d"
    path.write_text(f"{QUIET}self string s;\nBEGIN {{ x = 1; trace(*(int *)0); }}\n"
                    f'ERROR /index("x", self->s)/ {{ printf("fault"); }}\n{LAST}')
    ours = outcome(path)
    assert "1 error in ERROR probe enabling" in ours.errors
    assert "invalid address (0x0) in action #2 at BPF offset" in ours.errors
