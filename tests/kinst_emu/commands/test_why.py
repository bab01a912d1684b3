"""Tests of ``kinst why`` on the teaching kernels."""

import json

import pytest

from tests.conftest import ARCHES
from tests.kinst_emu.commands.test_commands import refused, run

RESULT = {"amd64": "rax", "arm64": "x0", "riscv64": "a0"}


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """Record a call on each architecture, and return the files."""
    folder, made = tmp_path_factory.mktemp("why"), {}
    for arch in ARCHES:
        made[arch] = folder / f"{arch}.rec"
        result = run("kinst", "record", "-k", f"teaching/{arch}", "-o", str(made[arch]),
                     'strtoul("12z", 0, 10)')
        assert result.returncode == 0, result.stderr
    return made


def answered(*words):
    result = run("kinst", "why", "--json", *words)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_value_is_traced_to_its_line_and_to_the_branches_that_led_there(calls):
    """On the other architectures, the last line of strtoul() computes the result anew."""
    found = answered(str(calls["amd64"]), "--value", "rax@fbt::strtoul:return")
    assert found["question"].startswith("rax is 0xc at instruction ")
    assert found["made"]["function"] == "strtoul" and found["made"]["line"].endswith("string.c:85")
    reasons = found["reasons"]
    assert all(one["test"]["function"] == "strtoul" for one in reasons)
    # The loop ended because the digit of 'z', 35, is not less than the base, 10.
    values = [{one["name"]: one["value"] for one in reason["compared"]} for reason in reasons]
    assert {"digit": 35, "base": 10} in values, values


def test_a_line_is_explained_by_the_last_branches_before_it(calls, arch):
    found = answered(str(calls[arch]), "--line", "string.c:85")
    (first, *_others) = found["reasons"]
    assert first["test"]["line"].endswith("string.c:84")
    assert {one["name"]: one["value"] for one in first["compared"]} == {"digit": 2, "base": 10}


def test_the_answer_as_text_quotes_the_source(calls, arch):
    result = run("kinst", "why", str(calls[arch]), "--line", "string.c:85", "--sources",
                 "images/teaching")
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert lines[0] == "string.c:85 was executed" and "because" in lines
    assert any(line.startswith("value = value * (u64)base") for line in lines), lines
    assert "digit is 2, base is 0xa" in lines


def test_a_workload_is_recorded_and_the_recording_can_be_kept(arch, tmp_path):
    path = tmp_path / "kept.rec"
    found = answered("-k", f"teaching/{arch}", "-o", str(path), 'strtoul("7", 0, 10)',
                     "--value", RESULT[arch])
    assert found["question"].startswith(f"{RESULT[arch]} is 7 ")
    again = answered(str(path), "--value", RESULT[arch])
    assert again == found


@pytest.mark.parametrize("words, says", [
    (("--call", "open"), "has no system calls"),
    (("--line", "string.c:1"), "string.c:1"),
    (("--line", "strlen"), "strlen is not executed"),
    (("--value", "nothing"), "nothing"),
    (("-o", "x.rec"), "is a recording already"),
])
def test_a_question_that_has_no_answer_is_one_clear_line(calls, arch, words, says):
    refused(run("kinst", "why", str(calls[arch]), *words), says, "kinst")


def test_a_workload_needs_a_kernel():
    refused(run("kinst", "why", "$ ls"), "give a kernel with -k")
