"""Tests of random programs, of dividing scripts, and of making both smaller."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtrace.judge.generator import LAST, generated
from dtrace.judge.memory import KERNEL_TYPES
from dtrace.judge.program import Node, smaller
from dtrace.judge.scripts import divided
from dtrace.judge.shrink import shrunk
from tests.dtrace.judge.test_found import outcome

SCRIPT = """#!/usr/sbin/dtrace -s
/* a comment { */
#pragma D option quiet
struct s { int a; };
inline int X = 3;
BEGIN, END
/x == "}"/
{ trace(1); if (x) { a = 1; } else { b = 2; } printf("{;"); z++ }
syscall::read:entry
{ @ = count(); }
tick-1s { exit(0); }
"""


def test_a_seed_always_makes_the_same_program():
    assert generated(5).text == generated(5).text != generated(6).text


def test_most_random_programs_are_valid(tmp_path):
    refused, tried = [], 0
    for seed in range(100):
        # Without a kernel, the kernel's types and variables are unknown.
        text = generated(seed).text.replace("struct timespec", "int")
        if "`" in text or "union un0" in text:
            continue
        tried += 1
        path = tmp_path / "script.d"
        path.write_text(text)
        if outcome(path).refused:
            refused.append(seed)
    assert tried > 30 and len(refused) <= tried // 10


def test_random_programs_have_every_statement_function_and_conversion():
    text = "".join(generated(seed).text for seed in range(400))
    for name in ("strtoll", "strjoin", "substr", "index", "rindex", "strtok", "basename", "dirname",
                 "cleanpath", "lltostr", "toupper", "tolower", "strstr", "strchr", "strrchr",
                 "htons", "ntohs", "htonl", "ntohl", "htonll", "ntohll", "sizeof", "count", "sum",
                 "min", "max", "avg", "stddev", "quantize", "lquantize", "llquantize", "printa",
                 "clear", "trunc", "normalize", "print", "trace", "exit",
                 "if", "END", "ERROR", "tick-100ms", "json", "inet_ntoa", "inet_ntoa6",
                 "inet_ntop", "alloca", "bcopy", "memref", "printm", "tracemem", "mod",
                 "stringof", "offsetof", "xlate", "speculate", "commit", "discard",
                 "denormalize", "typedef", "union", *KERNEL_TYPES):
        assert re.search(rf"\b{name}\b", text), name
    for kind in ("self ", "this ", "string t", "#pragma D option"):
        assert kind in text
    for conversion in ("%Y", "%p", "%a", "%d", "%hd", "%lld", "%x", "%o", "%u", "%c", "%s",
                       "%S", "%@d", "%+", "%#"):
        assert conversion in text


def test_every_variant_of_a_program_is_smaller():
    program = generated(6)
    variants = list(smaller(program))
    assert len(variants) > 50
    assert all(len(variant.text) < len(program.text) or variant.text == program.text
               for variant in variants)
    assert all(variant.text.endswith(LAST) for variant in variants)


def test_a_program_is_made_as_small_as_possible():
    program = generated(6)
    wanted = next(part for part in program.parts()
                  if part.kind == "statement" and "printf" in part.text)

    def differs(node):
        return "printf" in node.text

    assert wanted.text in program.text
    small = shrunk(program, differs)
    assert differs(small)
    assert not any(differs(one) for one in smaller(small) if one.text != small.text)
    assert small.text.count("printf") == 1 and len(small.text) < 120


def test_making_a_program_smaller_has_a_limit():
    calls = []

    def differs(node):
        calls.append(node)
        return True

    shrunk(generated(3), differs, most=7)
    assert len(calls) == 7


def test_a_script_is_divided_into_clauses_and_statements():
    program = divided(SCRIPT)
    assert program.text == SCRIPT
    kinds = [piece.kind for piece in program.pieces if isinstance(piece, Node)]
    assert kinds == ["option", "option", "declaration", "declaration", "clause", "clause", "clause"]
    first = next(piece for piece in program.pieces
                 if isinstance(piece, Node) and piece.kind == "clause")
    assert [piece.text.strip() for piece in first.pieces if isinstance(piece, Node)] == [
        "trace(1);", "if (x) { a = 1; } else { b = 2; }", 'printf("{;");', "z++"]


@given(st.lists(st.sampled_from([*'{};/"\'\\#\n a', "/*", "*/", "else", "struct"]),
                max_size=40).map("".join))
def test_every_text_can_be_divided(text):
    program = divided(text)
    assert program.text == text
    for _variant, _ in zip(smaller(program), range(50), strict=False):
        pass


@pytest.mark.parametrize(("text", "smallest"), [
    (SCRIPT, "@ = count();"),
    ("BEGIN { a = 1; @ = count(); b = 2; } END { c = 3; }", "@ = count();")])
def test_the_smallest_part_of_a_script_is_found(text, smallest):
    small = shrunk(divided(text), lambda node: "@ = count();" in node.text)
    statements = [part.text.strip() for part in small.parts() if part.kind == "statement"]
    assert statements == [smallest]
