"""Tests of ``--json`` (trace output as objects) and ``--emit-elf`` (trace code as ELF)."""

import io
import json
import math
import shutil
import struct
import subprocess

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given
from hypothesis import strategies as st

from dtrace.bpf.linker import Linked
from dtrace.bpf.object_file import object_file
from dtrace.run.values import typed
from dwarf.types import Enumeration, Float, Integer, Member, Structure
from tests.dtrace.programs import command, run


def objects(program, *words):
    status, out, said = run("--json", "-n", program, *words)
    return status, [json.loads(line) for line in out.splitlines()], said


def test_each_record_is_one_json_object_with_its_actions():
    status, rows, _said = objects("""
        struct s { int a; char b[4]; enum { RED, BLUE } c; int f : 3; int *p; };
        struct s s;
        BEGIN { s.a = -1; s.b[0] = 'h'; s.b[1] = 'i'; s.c = BLUE; s.f = -2; s.p = (int *)4096;
                trace(-7); print(s); printf("%d%s", 3, "x");
                this->m = (int *)alloca(4); *this->m = -1; tracemem(this->m, 4); exit(5); }""")
    assert status == 5
    assert rows == [{"probe": "dtrace:::BEGIN", "id": 1, "cpu": 0, "actions": [
        {"action": "trace", "value": -7},
        {"action": "print", "type": "struct s", "value": {
            "a": -1, "b": "hi", "c": "BLUE", "f": -2, "p": 4096}},
        {"action": "printf", "text": "3x", "arguments": [3, "x"]},
        {"action": "tracemem", "value": "ffffffff"}, {"action": "exit", "value": 5}]}]


def test_each_unprinted_aggregation_is_one_json_object():
    _status, rows, _said = objects("""
        BEGIN { @n["k", -3] = count(); @avg[1] = avg(4); @avg[1] = avg(7);
                @l = lquantize(3, 0, 10, 2); @l = lquantize(-3, 0, 10, 2); @q = quantize(9);
                @shown = sum(4); printa("%@d", @shown); exit(0); }""")
    assert rows[1:] == [
        {"printa": ["@shown"], "text": ["4"], "rows": [{"keys": [], "values": [4]}]},
        {"aggregation": "@n", "function": "count", "rows": [{"keys": ["k", -3], "value": 1}]},
        {"aggregation": "@avg", "function": "avg", "rows": [{"keys": [1], "value": 5}]},
        {"aggregation": "@l", "function": "lquantize", "rows": [
            {"keys": [], "value": [{"count": 1}, {"from": 2, "count": 1}]}]},
        {"aggregation": "@q", "function": "quantize", "rows": [
            {"keys": [], "value": [{"from": 8, "count": 1}]}]}]


def test_similar_aggregation_names_and_strings_stay_distinct():
    _status, rows, _said = objects(r"""
        BEGIN { @_a = count(); @a = sum(5); @a_ = sum(6); @__ = sum(7); @ = sum(8);
                printf("%s", "\xff"); exit(0); }""")
    assert rows[0]["actions"][0] == {
        "action": "printf", "text": "\\xff", "arguments": ["\\xff"]}
    assert [row["aggregation"] for row in rows[1:]] == ["@_a", "@a", "@a_", "@__", "@"]


def test_the_output_of_system_is_a_json_object(tmp_path):
    _status, rows, said = objects('BEGIN { system("echo hi"); freopen("%s"); exit(0); }'
                                  % (tmp_path / "file"), "-w")
    assert rows[0] == {"system": "echo hi", "output": "hi\n"}
    assert "freopen() has no effect" in said and not (tmp_path / "file").exists()


@pytest.mark.parametrize("content, kind, expected", [
    (b"\x09", ("enum", 2), {"a": "B", "b": "C"}),
    (struct.pack("<d", math.nan), Float("double", 8), "nan"),
    (struct.pack("<f", -math.inf), Float("float", 4), "-inf"),
])
def test_values_without_a_json_equivalent_are_written_as_text(content, kind, expected):
    if isinstance(kind, tuple):
        enum = Enumeration("e", 4, lambda: (("A", 0), ("B", 1), ("C", 2)))
        kind = Structure("struct", "s", 4, lambda: (
            Member("a", 0, 2, lambda: enum), Member("b", 2, 2, lambda: enum)))
    assert typed(content.ljust(4, b"\0"), kind) == expected


def test_members_of_unnamed_structures_join_the_enclosing_object():
    integer = Integer("int", 4, True)
    inner = Structure("union", "", 4, lambda: (
        Member("b", 0, None, lambda: integer), Member("c", 0, None, lambda: integer)))
    kind = Structure("struct", "s", 8, lambda: (
        Member("a", 0, None, lambda: integer), Member("", 32, None, lambda: inner)))
    assert typed(struct.pack("<ii", 1, 2), kind) == {"a": 1, "b": 2, "c": 2}


def test_a_fault_is_written_as_an_object_and_as_a_message():
    _status, rows, said = objects("BEGIN { trace(*(int *)64); } BEGIN { exit(0); }")
    assert rows[0] == {"error": "invalid address (0x40)", "probe": "dtrace:::BEGIN"}
    assert "invalid address (0x40)" in said


def test_results_and_digests_are_json_objects(image):
    status, out, said = command("-k", str(image.path), "--json", "--digest", "-n",
                                "fbt::strlen:entry { trace(arg0 != 0); }", "-c", 'strlen("abc")')
    rows = [json.loads(line) for line in out.splitlines()]
    assert status == 0, said
    assert {"call": 'strlen("abc")', "value": 3, "type": "size_t"} in rows
    assert any(row.get("probe", "").startswith("fbt:kernel:strlen") for row in rows)
    assert list(rows[-1]) == ["digest"]


@pytest.mark.skipif(shutil.which("llvm-objdump") is None, reason="llvm-objdump is not installed")
def test_llvm_objdump_reads_the_object_file(tmp_path):
    path = tmp_path / "program.o"
    status, out, said = run("-e", "--emit-elf", str(path), "-n",
                            'BEGIN { @[strlen("a")] = count(); }')
    assert (status, out, said) == (
        0, "", "dtrace: description 'BEGIN ' matched 1 probe\n")
    shown = subprocess.run(["llvm-objdump", "-d", "-t", path], capture_output=True, text=True,
                           check=True).stdout
    assert "<clause_1>:" in shown and "<probe_0>:" in shown and "exit" in shown
    assert "<unknown>" not in shown


def test_an_object_file_that_cannot_be_written_is_reported(tmp_path):
    path = tmp_path / "no" / "x.o"
    status, _out, said = command("--emit-elf", str(path), "-n", "BEGIN { exit(0); }")
    assert status == 1 and str(path) in said and "Traceback" not in said


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.binary(max_size=50))
def test_object_files_contain_the_code_constants_and_symbols(sizes, constants):
    offsets, at = {}, 0
    for number, size in enumerate(sizes):
        offsets[f"function_{number}"] = at
        at += size + 1
    code = bytes(range(256)) * (at * 8 // 256 + 1)
    elf = ELFFile(io.BytesIO(object_file(Linked(code[: at * 8], offsets, []), constants)))
    assert elf["e_machine"] == "EM_BPF" and elf.get_section_by_name(".rodata").data() == constants
    assert elf.get_section_by_name(".text").data() == code[: at * 8]
    found = {s.name: (s["st_value"], s["st_size"])
             for s in elf.get_section_by_name(".symtab").iter_symbols() if s.name.startswith("f")}
    assert found == {f"function_{n}": (offsets[f"function_{n}"] * 8, (size + 1) * 8)
                     for n, size in enumerate(sizes)}


def test_timestamp_and_walltimestamp_advance_together_with_each_firing(image):
    status, out, said = command(
        "-k", str(image.path), "--json", "-n", """fbt::strlen: {
            trace(timestamp); trace(walltimestamp); }""",
        "-c", 'strlen("a longer string than that")')
    assert status == 0, said
    first, second = ([action["value"] for action in row["actions"]]
                     for row in map(json.loads, out.splitlines()) if "actions" in row)
    assert second[0] > first[0]
    assert len({b - a for a, b in zip(first, second, strict=True)}) == 1
