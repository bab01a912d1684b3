"""Tests of ``kinst coverage`` and ``kinst disas --counts`` on the teaching kernels."""

import json
import re
import shutil
import subprocess
from collections import Counter

import pytest

from tests.conftest import ARCHES
from tests.kinst_emu.commands.test_commands import refused, run

SOURCES = "images/teaching"
WORKLOAD = 'strlen("hello"); fibonacci(6); strlen("")'


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Record calls on each architecture; return the recordings and their coverage files."""
    folder, found = tmp_path_factory.mktemp("coverage"), {}
    for arch in ARCHES:
        recording, info = folder / f"{arch}.rec", folder / f"{arch}.info"
        result = run("kinst", "record", "-k", f"teaching/{arch}", "-q", "-o", str(recording),
                     WORKLOAD)
        assert result.returncode == 0, result.stderr
        result = run("kinst", "coverage", str(recording), "-o", str(info), "--sources", SOURCES)
        assert result.returncode == 0, result.stderr
        found[arch] = recording, info
    return found


def records(path):
    """Return {file: {line: count}} and {file: {(line, block): [jumped, did not jump]}}."""
    lines, branches, file = {}, {}, ""
    for row in path.read_text().splitlines():
        kind, _colon, rest = row.partition(":")
        if kind == "SF":
            file = rest.rpartition("/")[2]
        elif kind == "DA":
            line, count = map(int, rest.split(","))
            lines.setdefault(file, {})[line] = count
        elif kind == "BRDA":
            line, block, _way, count = rest.split(",")
            branches.setdefault(file, {}).setdefault((int(line), int(block)), []).append(
                0 if count == "-" else int(count))
    return lines, branches


def disassembled(arch, recording, *functions):
    result = run("kinst", "disas", "-k", f"teaching/{arch}", "--json", "--counts", str(recording),
                 *functions)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def line_of(row):
    """Return the number of an instruction's source line; 0 if it has none."""
    return int((row["source"] or ":0").partition("  ")[0].rpartition(":")[2])


def test_counts_of_instructions_equal_those_of_kinst_probes(made, arch):
    recording, _info = made[arch]
    rows = disassembled(arch, recording, "strlen", "fibonacci", "strtoul", "memcpy")
    counted = {(row["function"], row["offset"]): row["count"] for row in rows}
    result = run("kdtrace", "--replay", str(recording), "-qn",
                 'kinst::strlen:, kinst::fibonacci:, kinst::memcpy: '
                 '{ @[probefunc, probename] = count(); }')
    fired = {(name, int(offset)): int(count) for name, offset, count in
             re.findall(r"^\s+(\w+)\s+(\d+)\s+(\d+)$", result.stdout, re.M)}
    assert fired, result.stderr
    assert {place: counted[place] for place in fired} == fired
    assert all(count == 0 for (name, _offset), count in counted.items() if name == "strtoul")


def test_a_line_has_the_sum_of_the_counts_of_its_blocks(made, arch):
    """strlen()'s loop is in lines of their own, and each line has one basic block or two."""
    recording, info = made[arch]
    lines, branches = records(info)
    rows = disassembled(arch, recording, "strlen")
    by_line = Counter()
    for row in rows:
        line = line_of(row)
        by_line[line] = max(by_line[line], row["count"])
    found = lines["string.c"]
    del by_line[0]
    assert found.keys() >= by_line.keys()
    assert all(found[line] >= count for line, count in by_line.items())
    assert sum(map(sum, branches["string.c"].values())) > 0


def test_the_ways_of_a_branch_add_up_to_its_executions(made, arch):
    recording, info = made[arch]
    _lines, branches = records(info)
    rows = disassembled(arch, recording, "strlen")
    lines = {line_of(row) for row in rows}
    loops = {place: ways for place, ways in branches["string.c"].items() if place[0] in lines}
    counts = Counter(row["count"] for row in rows)
    assert loops and all(sum(ways) in counts and min(ways) > 0 for ways in loops.values()), loops


def test_what_another_run_executes_anew_is_listed(made, arch):
    _recording, info = made[arch]
    result = run("kinst", "coverage", "-k", f"teaching/{arch}", "--json", "--against", str(info),
                 "--sources", SOURCES, 'strtoul("7", 0, 10)')
    assert result.returncode == 0, result.stderr
    new = json.loads(result.stdout)["new"]
    assert any(file.endswith("string.c") and line == 85 for file, line in new), new
    again = run("kinst", "coverage", str(made[arch][0]), "--json", "--against", str(info),
                "--sources", SOURCES)
    assert json.loads(again.stdout)["new"] == []
    elsewhere = run("kinst", "coverage", str(made[arch][0]), "--json", "--against", str(info))
    assert json.loads(elsewhere.stdout)["new"] == []


def test_genhtml_accepts_the_file(made, arch, tmp_path):
    if shutil.which("genhtml") is None:
        pytest.skip("genhtml is not installed (package lcov)")
    done = subprocess.run(["genhtml", "--ignore-errors", "source", "--branch-coverage", "-o",
                           str(tmp_path / "html"), str(made[arch][1])],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "lines......" in done.stdout, done.stderr


def test_bad_input_is_one_clear_line(made, tmp_path):
    recording, info = made["amd64"]
    other = tmp_path / "other.info"
    other.write_text("SF:a.c\nDA:x,1\n")
    refused(run("kinst", "coverage", str(recording), "--against", str(other)),
            f"{other}:2: not a coverage file")
    other.write_text("SF:a.c\nDA:1," + "5" * 5000 + "\n")
    refused(run("kinst", "coverage", str(recording), "--against", str(other)), f"{other}:2")
    other.write_text("hello")
    refused(run("kinst", "coverage", str(recording), "--against", str(other)), "kinst coverage -o")
    refused(run("kinst", "coverage", str(recording), str(made["arm64"][0])), "another kernel")
    refused(run("kinst", "coverage", "$ ls"), "give a kernel with -k")
    refused(run("kinst", "disas", "-k", "teaching/amd64", "--counts", str(recording)),
            "works only with functions")
    assert info.exists()


def test_workloads_of_one_kernel_are_added(made, arch):
    recording, _info = made[arch]
    one, two = (json.loads(run("kinst", "coverage", "--json", *words).stdout) for words in (
        (str(recording),), ("-k", f"teaching/{arch}", str(recording), "boot")))
    assert two["lines"][0] > one["lines"][0]


def test_a_function_is_listed_with_the_counts_of_a_workload(made, arch):
    assert disassembled(arch, WORKLOAD, "strlen") == disassembled(arch, made[arch][0], "strlen")
