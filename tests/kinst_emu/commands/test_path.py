"""Tests of ``kinst path`` on the teaching kernels."""

import json

import pytest

from tests.conftest import ARCHES
from tests.kinst_emu.commands.test_commands import refused, run

CALL = 'strtoul("12z", 0, 10); strtoul("7", 0, 10)'


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("path"), {}
    for arch in ARCHES:
        made[arch] = folder / f"{arch}.rec"
        result = run("kinst", "record", "-k", f"teaching/{arch}", "-o", str(made[arch]), CALL)
        assert result.returncode == 0, result.stderr
    return made


def shown(*words):
    result = run("kinst", "path", *map(str, words))
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_last_call_is_shown_with_its_times(recordings, arch):
    lines = shown(recordings[arch], "--of", "strtoul").splitlines()
    assert lines[0].startswith("strtoul() of the kernel, call 2 of 2: ")
    assert lines[1].split() == ["ns", "self"]
    total, own, name = lines[2].split()
    assert name == "strtoul" and f": {total} instructions, {total} ns" in lines[0]
    rest = [line.split() for line in lines[3:]]
    assert any(row[2] == "digit_of" for row in rest)
    assert int(own) + sum(int(row[1]) for row in rest) == int(total)


def test_the_nth_call_and_its_depth_can_be_chosen(recordings):
    whole = shown(recordings["amd64"], "--of", "strtoul#1")
    assert "call 1" in whole and "digit_of" in whole
    assert whole != shown(recordings["amd64"], "--of", "strtoul#2")


def test_depth_leaves_out_deeper_calls():
    boot = ("-k", "teaching/amd64", "boot", "--window", "start:end")
    deep, shallow = shown(*boot).splitlines(), shown(*boot, "--depth", "1").splitlines()
    assert len(shallow) < len(deep)
    assert all(len(line) - len(line.lstrip()) < 60 for line in shallow)
    indent = "  " * 2
    assert any(line[23:].startswith(indent) for line in deep)
    assert not any(line[23:].startswith(indent) for line in shallow)


def test_json_has_the_functions_with_their_positions(recordings, arch):
    found = json.loads(shown(recordings[arch], "--of", "strtoul#1", "--json"))
    assert found["end"] - found["begin"] == found["instructions"] + found["other_instructions"]
    own = [one for one in found["functions"] if one["name"] == "strtoul"]
    assert len(own) == 1 and own[0]["end"] == found["end"]
    assert sum(one["own"] for one in found["functions"]) == found["instructions"]


def test_a_window_is_what_the_thread_does_between_two_positions(recordings):
    lines = shown(recordings["arm64"], "--window", "strtoul#1:strtoul#2").splitlines()
    assert lines[0].startswith("From strtoul#1:strtoul#2: ")
    assert any(line.split()[2:] == ["strtoul"] for line in lines[2:])


@pytest.mark.parametrize(("words", "says"), [
    (("--of", "strtuol"), "similar names: strtoul"),
    (("--of", "strtoul#3"), "it is called only 2 times"),
    (("--of", "strtoul#0"), "must be at least 1"),
    (("--of", "memset"), "memset is not called in"),
    (("--window", "strtoul"), "give two positions as FROM:TO"),
    (("--of", "strtoul", "--depth", "x"), "--depth must be a positive number, not 'x'"),
    (("--of", "strtoul", "--html", "p.html", "--json"), "--html: cannot be used with --json"),
    (("--of", "strtoul", "--html", "/nowhere/p.html"), "/nowhere"),
    (("--of", "strtoul", "-o", "again.rec"), "is a recording already"),
    (("--of", "strtoul", "--set", "ticks=1"), "is a recording already; see kinst replay --set"),
    (("--of", "strtoul", "--sources", "/nowhere"), "no such directory"),
])
def test_what_cannot_be_shown_is_one_line(recordings, words, says):
    refused(run("kinst", "path", str(recordings["amd64"]), *words), says)


def test_a_workload_needs_a_kernel():
    refused(run("kinst", "path", "strlen(1)", "--of", "strlen"), "give a kernel with -k")
