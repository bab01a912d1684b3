"""Tests of ``kinst path`` on the teaching kernels."""

import json

import pytest

from images import catalog
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


def test_two_calls_are_compared_with_the_values_on_which_they_part(recordings, arch):
    text = shown(recordings[arch], "--of", "strtoul#1", "--against-of", "strtoul#2")
    lines = text.splitlines()
    assert lines[0].startswith("- strtoul() of the kernel, call 1: ")
    assert lines[1].startswith("+ strtoul() of the kernel, call 2: ")
    assert any(line.startswith("1. ") and " parts at " in line for line in lines)
    tops = [line for line in lines if line.endswith("~ strtoul")]
    assert len(tops) == 1 and len(tops[0].split()) == 4
    found = json.loads(shown(recordings[arch], "--of", "strtoul#1", "--against-of", "strtoul#2",
                             "--json"))
    assert [path["ns"] for path in found["paths"]] == [int(one) for one in tops[0].split()[:2]]
    assert found["calls"][0]["match"] == "different"
    parting = found["partings"][0]
    ours, theirs = ({(one["text"], one["value"]) for one in branch["compared"]}
                    for branch in parting["branches"])
    assert ours != theirs
    assert parting["next"][0]["pc"] != parting["next"][1]["pc"]


def test_a_path_is_the_same_as_itself(recordings):
    text = shown(recordings["amd64"], "--of", "strtoul", "--against", recordings["amd64"])
    assert "both execute the same instructions" in text and " parts " not in text


def test_a_changed_variable_is_compared_with_the_run_without_the_change():
    text = shown("-k", "teaching/arm64", 'note_keep("abc"); note_letters()', "--of",
                 "note_letters", "--against-set", "notes[7].next=1")
    assert "both execute the same instructions" in text
    other = catalog.find("teaching/arm64").symbols.named("notes")[0].address + 3 * 24
    text = shown("-k", "teaching/arm64", 'note_keep("abc"); note_letters()', "--of",
                 "note_letters", "--against-set", f"first={other:#x}")
    assert "1. note_letters parts at " in text
    assert any(line.split()[1:] == ["+", "strlen"] for line in text.splitlines()), text


@pytest.mark.parametrize(("words", "says"), [
    (("--window", "start:end", "--against-of", "strtoul"), "works only with --of"),
    (("--of", "strtoul", "--against", "nowhere.rec"), "cannot be read"),
    (("--of", "strtoul", "--against", "nowhere"), "give a kernel with -k"),
    (("--of", "strtoul", "--against-set", "ticks=1"), "--against-set: "),
    (("--of", "strtoul", "--against-of", "strtoul#9"), "it is called only 2 times"),
    (("--of", "strtoul", "--against-of", "strtoul#2", "--walk"),
     "--walk: cannot be used with --against"),
])
def test_what_cannot_be_compared_is_one_line(recordings, words, says):
    refused(run("kinst", "path", str(recordings["amd64"]), *words), says)


def test_runs_of_different_kernels_are_not_compared(recordings):
    refused(run("kinst", "path", str(recordings["amd64"]), "--of", "strtoul", "--against",
                str(recordings["arm64"])), "is not a run of the kernel of")
