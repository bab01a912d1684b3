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
    """Only amd64: elsewhere the compiler computes the result in strtoul()'s last line."""
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
    (("--sleep",), "the threads of this kernel do not sleep"),
    (("--sleep", "x.rec"), "--sleep x.rec: must be a number; write WHAT before it"),
])
def test_a_question_that_has_no_answer_is_one_clear_line(calls, arch, words, says):
    refused(run("kinst", "why", str(calls[arch]), *words), says, "kinst")


def test_a_workload_needs_a_kernel():
    refused(run("kinst", "why", "$ ls"), "give a kernel with -k")


def recorded(arch, folder, call):
    path = folder / f"{arch}.rec"
    run("kinst", "record", "-k", f"teaching/{arch}", "-q", "-o", str(path), call)
    return str(path)


def test_every_reason_is_before_the_question(arch, tmp_path):
    path = recorded(arch, tmp_path, 'strlen("hello")')
    for percent in range(0, 100, 7):
        found = answered(path, "--value", f"{RESULT[arch]}@{percent}%")
        asked = int(found["question"].rpartition(" ")[2])
        counts = [reason[part]["count"] for reason in found["reasons"]
                  for part in ("test", "branch")]
        assert all(count < asked for count in counts), (found["question"], counts)


def test_a_long_loop_is_searched_in_bounded_time(arch, tmp_path):
    path = recorded(arch, tmp_path, f'strtoul("{"1" * 900}", 0, 2)')
    found = answered(path, "--value", RESULT[arch])
    assert found["made"]["function"] == "strtoul" and len(found["reasons"]) <= 4


def test_a_part_of_a_variable_is_not_shown_as_the_whole(arch, tmp_path):
    path = recorded(arch, tmp_path, "tail_even(0x1234)")
    text = run("kinst", "why", path, "--line", "lesson.c:109").stdout
    assert "n is 0x34\n" not in text, text


def test_a_call_that_panics_is_explained_and_counted(arch):
    result = run("kinst", "why", "-k", f"teaching/{arch}", 'panic("x")')
    assert result.returncode == 0 and "guest panic" in result.stdout, result.stderr
    result = run("kinst", "coverage", "-k", f"teaching/{arch}", 'panic("x")')
    assert result.returncode == 0 and "functions" in result.stdout, result.stderr


def test_a_long_command_is_not_taken_for_a_file():
    refused(run("kinst", "why", "$ echo " + "a" * 300), "give a kernel with -k")


def test_variables_of_a_caller_are_not_read_from_registers_of_its_callee(arch, tmp_path):
    path = recorded(arch, tmp_path, 'panic("x")')
    result = run("kinst", "replay", path, "-q", "--json", "--locals", "5")
    values = {(row["function"], one["name"]): one for row in json.loads(result.stdout)["locals"]
              for one in row["variables"]}
    why = values["panic", "why"]
    assert why["unknown"].startswith("optimized out") or '"x"' in why["value"] or (
        "0x" in why["value"] and int(why["value"].rpartition(" ")[2], 16) > 0x10000), why


def test_the_recording_is_not_overwritten_by_the_answer(calls, arch, tmp_path):
    copy = tmp_path / "x.rec"
    copy.write_bytes(calls[arch].read_bytes())
    for words in (("why", str(copy), "--html"), ("locks", str(copy), "--html"),
                  ("path", str(copy), "--of", "strtoul", "--html"), ("coverage", str(copy), "-o"),
                  ("coverage", str(copy), "--html")):
        refused(run("kinst", *words, str(copy)), "is named twice on the command line")
    assert copy.read_bytes() == calls[arch].read_bytes()


def test_an_error_about_a_workload_names_the_workload(arch):
    refused(run("kinst", "why", "-k", f"teaching/{arch}", 'strlen("a")', "--line", "strtoul"),
            'kinst: strlen("a"): strtoul is not executed')
