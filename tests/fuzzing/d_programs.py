"""Fuzzer of the D compiler and runtime: random programs from a grammar with types.

The types make many programs run. Some programs have long, deep, huge or strange parts, and some are
damaged. The grammar has all operators, casts, the four kinds of variables, associative arrays,
strings, structures, enumerations, inlines, translators, aggregations with keys, formats, if and
else, predicates, pragmas and macro arguments. It leaves out ``system`` and ``freopen``, which touch
the host; probes and actions that need a kernel; ``#include`` and ``-C``, which run the host's
preprocessor.
"""

import time

from dtrace.run import session
from tests.dtrace.programs import run

NUMBERS = ("0", "1", "2", "7", "-1", "255", "65536", "4294967295", "0x7fffffffffffffff",
           "18446744073709551615", "017", "10u", "3ull", "'a'", "'\\n'", "sizeof (int)")
STRINGS = ('"a"', '""', '"hello world"', '"\\x41\\t"', '"/usr/lib/x.so"', '"12"', '"%s%d"')
BINARY = ("+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>", "<", ">", "<=", ">=", "==", "!=",
          "&&", "||", "^^")
ASSIGN = ("=", "+=", "-=", "*=", "|=", "^=", "&=", "<<=", ">>=")
TYPES = ("int", "char", "short", "long long", "unsigned int", "uint64_t", "int8_t", "uint16_t")
AGGREGATES = ("count()", "sum({i})", "avg({i})", "min({i})", "max({i})", "stddev({i})",
              "quantize({i})", "lquantize({i}, 0, 100, 10)", "llquantize({i}, 10, 0, 6, 20)",
              "quantize({i}, {i})")
OPTIONS = ("strsize=32", "bufsize=64k", "nspec=4", "quiet", "aggsize=1m", "dynvarsize=1m",
           "aggsortrev", "aggsortkey", "bufpolicy=ring", "rawbytes", "switchrate=10hz",
           "stackframes=5")
STRANGE = "{}()[];,\"'$@`/\\#\n\0\u00ff\u0663\ud83d?:.*&%<>=!~^|-+"
SECONDS = 1.0


class Grammar:
    """A generator of random D programs."""

    def __init__(self, rng):
        self.rng = rng
        self.depth = rng.choice((1, 2, 3, 3, 4))
        self.inlines = []

    def integer(self, depth=None):
        """Return a random integer expression."""
        rng, depth = self.rng, self.depth if depth is None else depth
        if depth <= 0:
            return rng.choice((*NUMBERS, "x", "y", "this->i", "self->i", "arr[1]", "timestamp",
                               "pid", "arg0", "RED", "GREEN", "s.m", "s.in.c", *self.inlines))
        kind, inner = rng.randrange(13), depth - 1
        if kind < 4:
            return f"{self.integer(inner)} {rng.choice(BINARY)} {self.integer(inner)}"
        if kind == 4:
            return f"({self.integer(inner)})"
        if kind == 5:
            return rng.choice(("-", "~", "!", "+")) + f"({self.integer(inner)})"
        if kind == 6:
            return f"({rng.choice(TYPES)})({self.integer(inner)})"
        if kind == 7:
            return (f"({self.integer(inner)} ? {self.integer(inner)} : {self.integer(inner)})")
        if kind == 8:
            return rng.choice((f"strlen({self.string(inner)})", f"strtoll({self.string(inner)})",
                               f"index({self.string(inner)}, {self.string(inner)})",
                               f"rindex({self.string(inner)}, {self.string(inner)})",
                               f"htons({self.integer(inner)})", "rand()", "speculation()"))
        if kind == 9:
            return f"(x {rng.choice(ASSIGN)} {self.integer(inner)})"
        if kind == 10:
            return rng.choice(("x++", "--y", "++this->i", "self->i--", "s.m++"))
        if kind == 11:
            compared = rng.choice(("==", "!=", "<", ">="))
            return f"({self.string(inner)} {compared} {self.string(inner)})"
        return f"tup[{self.integer(inner)}, {self.string(inner)}]"

    def string(self, depth=None):
        """Return a random string expression."""
        rng, depth = self.rng, self.depth if depth is None else depth
        if depth <= 0:
            return rng.choice((*STRINGS, "str", "self->s", "this->s", "execname", "probename"))
        inner = depth - 1
        return rng.choice((
            lambda: f"strjoin({self.string(inner)}, {self.string(inner)})",
            lambda: f"substr({self.string(inner)}, {self.integer(inner)})",
            lambda: f"substr({self.string(inner)}, {self.integer(inner)}, {self.integer(inner)})",
            lambda: f"lltostr({self.integer(inner)})", lambda: f"basename({self.string(inner)})",
            lambda: f"dirname({self.string(inner)})", lambda: f"toupper({self.string(inner)})",
            lambda: f"strtok({self.string(inner)}, {self.string(inner)})",
            lambda: f"strchr({self.string(inner)}, 'a')",
            lambda: f"cleanpath({self.string(inner)})",
            lambda: f"({self.integer(inner)} ? {self.string(inner)} : {self.string(inner)})",
            lambda: self.string(0),
        ))()

    def statement(self, depth=2):
        """Return a random statement."""
        rng = self.rng
        kind = rng.randrange(16)
        if kind == 0 and depth:
            other = f" else {{ {self.statement(depth - 1)} }}" if rng.random() < 0.5 else ""
            return f"if ({self.integer()}) {{ {self.statement(depth - 1)} }}{other}"
        if kind <= 3:
            name = rng.choice(("x", "y", "this->i", "self->i", "arr[1]", "s.m", "s.in.c"))
            return f"{name} {rng.choice(ASSIGN)} {self.integer()};"
        if kind <= 5:
            return f"{rng.choice(('str', 'self->s', 'this->s'))} = {self.string()};"
        if kind <= 7:
            keys = rng.choice(("", "[{i}]", "[{s}]", "[{i}, {s}]", "[{i}, {i}, {i}]"))
            text = f"@{'abc'[len(keys) % 3]}{len(keys)}{keys} = {rng.choice(AGGREGATES)};"
            while "{i}" in text or "{s}" in text:
                text = text.replace("{i}", self.integer(1), 1).replace("{s}", self.string(1), 1)
            return text
        if kind <= 10:
            parts, values = [], []
            for _ in range(rng.randrange(5)):
                width = rng.choice(("", "5", "-20", "05", ".3", "*", "+", " ", "#", "999"))
                if rng.random() < 0.5:
                    parts.append(f"%{width}" + rng.choice(("d", "x", "u", "o", "lld", "c", "i")))
                    values += [self.integer(1)] * (1 + (width == "*"))
                else:
                    parts.append(f"%{width}s")
                    values += ["3"] * (width == "*") + [self.string(1)]
            return f"printf(\"{' '.join(parts)}\\n\"{''.join(', ' + v for v in values)});"
        return rng.choice((
            lambda: f"trace({self.integer()});", lambda: f"trace({self.string()});",
            lambda: f"print({self.integer()});", lambda: "print(s);",
            lambda: "tracemem(&`nosuch, 4);",
            lambda: "clear(@a0);", lambda: "trunc(@a0, 1);", lambda: "normalize(@a0, 3);",
            lambda: "printa(@a0);", lambda: "stack();", lambda: "exit(0);", lambda: "chill(10);",
            lambda: f"tup[{self.integer(1)}, {self.string(1)}] = {self.integer(1)};",
            lambda: "this->p = alloca(8); bcopy(&x, this->p, 4); trace(*(int *)this->p);",
            lambda: "speculate(speculation());", lambda: "commit(1);", lambda: "discard(2);",
            lambda: "setopt(\"quiet\");", lambda: f"trace(json({self.string()}, \"a[1].b\"));",
            lambda: "trace(inet_ntop(2, alloca(16)));", lambda: "ftruncate();",
        ))()

    def program(self):
        """Return a random program with declarations and up to four clauses."""
        rng, out = self.rng, []
        for option in rng.sample(OPTIONS, rng.randrange(3)):
            out.append(f"#pragma D option {option}")
        out += ["int x; int y; self int i; this int i; string str; self string s; this string s;",
                "struct inner { char c; short d[3]; }; struct outer { int m; struct inner in; } s;",
                "enum colour { RED, GREEN = 5, BLUE };", "int arr[int]; int tup[int, string];"]
        for n in range(rng.randrange(4)):
            out.append(f"inline int in{n} = {self.integer(2)};")
            self.inlines.append(f"in{n}")
        many = rng.choice((1, 1, 2, 3, 6, 30))
        probes = "BEGIN", "END", "ERROR", "BEGIN,END", "dtrace:::BEGIN", "tick-1s"
        for probe in rng.choices(probes, k=rng.randrange(1, 4)):
            predicate = f" /{self.integer(2)}/" if rng.random() < 0.3 else ""
            body = " ".join(self.statement() for _ in range(rng.randrange(many + 1)))
            out.append(f"{probe}{predicate} {{ {body} }}")
        out.append("tick-1s { exit(0); }")
        return "\n".join(out)

    def huge(self):
        """Return a program of about a kilobyte with one long or deeply nested part."""
        n = self.rng.randrange(10, 400)
        part = self.rng.choice((
            lambda: "trace(" + "(" * n + "1" + ")" * n + ");",
            lambda: "trace(" + "1+" * n + "1);", lambda: "trace(" + "-" * n + "1);",
            lambda: "trace(" + "9" * n + ");", lambda: "x = 1;" * (n // 2),
            lambda: "if (1) { " * (n // 4) + "x = 1;" + " }" * (n // 4),
            lambda: "trace(" + "1 ? " * (n // 2) + "1" + " : 2" * (n // 2) + ");",
            lambda: "@" + "a" * n + " = count();", lambda: "trace(\"" + "s" * n + "\");",
            lambda: "printf(\"" + "%d" * (n // 3) + "\"" + ", 1" * (n // 3) + ");",
            lambda: "@[" + ", ".join("1" * (n // 3)) + "] = count();",
            lambda: "trace((int)" * (n // 8) + "1" + ")" * (n // 8) + ";",
            lambda: "trace(" + "*(int **)" * (n // 8) + "0);", lambda: "trace(x" + "[1]" * n + ");",
        ))()
        return f"BEGIN {{ {part} exit(0); }}"


def damaged(rng, text):
    """Return a program's text with up to three random changes."""
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(text) + 1)
        end = min(len(text), at + rng.randrange(12))
        new = rng.choice(("", text[at:end] * 2, rng.choice(STRANGE), rng.choice(NUMBERS)))
        text = text[:at] + new + text[end if rng.random() < 0.5 else at :]
    return text


def source(rng):
    """Return the text of a random program."""
    grammar = Grammar(rng)
    text = grammar.huge() if rng.random() < 0.2 else grammar.program()
    return damaged(rng, text) if rng.random() < 0.3 else text


def once(rng, ground):
    """Run one random program and return ``ran`` or ``refused``.

    :raises AssertionError: the program takes more than a second per kilobyte of source
    """
    text = source(rng).encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    began = time.process_time()
    try:
        _status, _out, errors = run("-q", "-x", "strsize=64", "-w", "-n", text)
    except RecursionError:
        raise AssertionError(f"the program nests too deeply for Python: {text!r}") from None
    spent = time.process_time() - began
    assert spent < SECONDS * max(1, len(text) / 1024), (spent, text)
    assert "Traceback" not in errors, (errors, text)
    return "refused" if "failed to compile" in errors or "invalid probe" in errors else "ran"


def ground():
    """Lower the limit on firings from 10 million to 2,000, so that endless traces end soon."""
    session.MAX_FIRINGS = 2000
