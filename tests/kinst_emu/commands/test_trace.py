"""Tests of kdtrace's output as text and JSON, on the terminal and in files."""

import json
import re
import subprocess
import sys

import pytest

from tests.kinst_emu.commands.test_commands import refused, run


def objects(result):
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_json_output_has_one_object_per_line(arch):
    rows = objects(run("kdtrace", "--json", "-k", f"teaching/{arch}", "-n", "fbt::cnputs:", "-c",
                       'cnputs("one\\ntwo"); strlen("abc")'))
    assert rows[0] == {"probe": "fbt:kernel:cnputs:entry", "id": 100, "cpu": 0, "actions": []}
    assert rows[1:4] == [{"console": "one"}, {"console": "two"}, rows[0] | {
        "probe": "fbt:kernel:cnputs:return", "id": 101}]
    assert rows[-1] == {"call": 'cnputs("one\\ntwo"); strlen("abc")', "value": 3, "type": "size_t"}


def test_json_output_includes_stacks_and_listings():
    (row, *_rest) = objects(run("kdtrace", "--json", "--stack", "-k", "teaching/amd64", "-n",
                                "fbt::fibonacci:entry /arg0 == 1/ {}", "-c", "fibonacci(2)"))
    ((action,),) = [row["actions"]]
    assert action["action"] == "stack" and action["value"][0].startswith("kernel`fibonacci+0x")
    listed = objects(run("kdtrace", "--json", "-l", "-v", "-k", "teaching/amd64", "-n",
                         "kinst::machine_idle:"))
    assert listed[0] == {"id": 100, "provider": "kinst", "module": "kernel",
                         "function": "machine_idle", "name": "0", "arguments": []}
    assert {row["instruction"] for row in listed if "not_probed" in row} == {"hlt"}


def test_without_a_description_every_probe_is_listed(arch):
    every = run("kdtrace", "-l", "-k", f"teaching/{arch}").stdout.splitlines()
    assert every[1].split() == ["1", "dtrace", "BEGIN"]
    fbt = run("kdtrace", "-l", "-k", f"teaching/{arch}", "-P", "fbt").stdout.splitlines()
    assert [row for row in every if " fbt " in row] == fbt[1:] and len(fbt) > 60
    refused(run("kdtrace", "-k", f"teaching/{arch}", "-c", "boot"), "no probes specified", "dtrace")


@pytest.mark.parametrize("path", ["guest", "direct"])
def test_a_traced_boot_has_the_digest_of_an_untraced_boot(arch, path):
    plain = json.loads(run("kinst", "boot", "--json", "--digest", "-k", f"teaching/{arch}").stdout)
    traced = run("kdtrace", "-q", "--digest", "--trap-path", path, "-k", f"teaching/{arch}", "-n",
                 "fbt:::", "-c", "boot")
    assert f"digest {plain['digest']}" in traced.stdout.splitlines()


def test_output_is_appended_to_a_file(tmp_path):
    words = ["-k", "teaching/amd64", "-n", "kinst::strlen:0", "-c", 'strlen("ab")']
    plain = run("kdtrace", *words).stdout
    for _ in range(2):
        result = run("kdtrace", "-o", str(tmp_path / "trace"), *words)
        assert result.returncode == 0 and result.stdout == ""
    assert (tmp_path / "trace").read_text() == 2 * plain
    refused(run("kdtrace", "-o", str(tmp_path / "none" / "trace"), *words),
            "failed to open output file '", "dtrace")


def test_qemu_does_not_support_digests():
    refused(run("kdtrace", "--machine", "qemu", "--digest", "-k", "teaching/amd64", "-n",
                "kinst::strlen:0", "-c", 'strlen("ab")'), "with --digest", "dtrace")


def test_a_brace_in_a_workload_is_not_parsed_as_d():
    result = run("kdtrace", "-k", "teaching/amd64", "-n", "fbt::strlen:entry", "-c", 'strlen("{")')
    assert 'strlen("{") = 1 (0x1)' in result.stdout.splitlines()


def test_the_stack_option_adds_a_stack_to_each_clause(arch):
    result = run("kdtrace", "-q", "-k", f"teaching/{arch}", "--stack", "-n",
                 'BEGIN { trace("began"); } kinst::charge:entry { if (1) { printf("x"); } }',
                 "-c", "account(5)")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("began") and result.stdout.count("kernel`charge [inlined]") == 1


def test_a_printed_program_lists_the_copies_of_inline_functions():
    result = run("kdtrace", "-d", "-e", "-k", "teaching/amd64", "-n",
                 "kinst::charge:entry /arg0/ {\n\ttrace(arg0); }", "-n", "fbt::strlen:entry")
    copies, rest = result.stdout.split(" /arg0/" if " /arg0/" in result.stdout else "\n/arg0/", 1)
    assert copies.count("kinst::") > 2 and ":entry" not in copies
    assert rest == " {\n\ttrace(arg0); }\n\nfbt::strlen:entry\n{\n}\n\n"


def test_options_that_need_a_kernel_are_named():
    refused(run("kdtrace", "-n", "BEGIN", "-c", "strlen(0)"), "-c: needs a kernel", "dtrace")
    refused(run("kdtrace", "-p", "1", "-n", "BEGIN"), "-p: needs a kernel", "dtrace")


PROGRAM = """fbt::strlen:entry { self->began = timestamp; trace(stringof(arg0)); }
kinst::strlen: { @[probename, stack(1)] = count(); }
fbt::strlen:return /self->began && curthread/ { trace(arg1); }"""


def test_programs_print_the_same_on_qemu(arch):
    words = ("-k", f"teaching/{arch}", "-n", PROGRAM, "-c", 'strlen("hello")')
    ours, theirs = run("kdtrace", *words), run("kdtrace", "--machine", "qemu", *words)
    assert ours.returncode == 0, ours.stderr
    assert "hello" in ours.stdout and ours.stdout.count("kernel`strlen+") > 4
    assert (ours.stdout, ours.stderr) == (theirs.stdout, theirs.stderr)


def test_exit_ends_a_program_on_qemu():
    words = ("-k", "teaching/amd64", "--machine", "qemu")
    ended = run("kdtrace", *words, "-q", "-n", 'fbt::fibonacci:entry { n++; trace(n); exit(3); }',
                "-c", "fibonacci(12)")
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (3, "1", "")
    refused(run("kdtrace", *words, "-q", "-n", "tick-1 { n++; }", "-c", "strlen(0)"),
            "need virtual time", "dtrace")


def test_the_prompt_that_ends_a_boot_is_a_json_object():
    rows = objects(run("kdtrace", "--json", "-k", "teaching/amd64", "-n", "fbt::cngetc:entry", "-c",
                       "boot"))
    assert {"console": "teaching> "} in rows


def test_an_oversized_or_missing_script_is_refused_with_one_line(tmp_path):
    path = tmp_path / "long.d"
    path.write_text("BEGIN { trace(1); exit(0); }" + " " * (1 << 22) + "END { trace(2); }")
    refused(run("kdtrace", "-s", str(path)), "it is larger than", "dtrace")
    closed = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-m",
                             "kinst_emu.commands.kdtrace", "-s", "-"], capture_output=True,
                            text=True, check=False, timeout=60)
    refused(closed, "standard input is closed", "dtrace")


def test_a_closed_pipe_ends_the_trace_without_an_error():
    result = subprocess.run(
        ["bash", "-c", '"$@" | head -n 3000 >/dev/null; exit ${PIPESTATUS[0]}', "bash",
         sys.executable, "-m", "kinst_emu.commands.kdtrace", "--json", "-k", "teaching/amd64", "-n",
         "kinst::fibonacci:", "-c", "fibonacci(24)"], capture_output=True, text=True, check=False,
        timeout=120)
    assert result.returncode == 141, result
    assert re.fullmatch("dtrace: description 'kinst::fibonacci:' matched \\d+ probes\n",
                        result.stderr), result
