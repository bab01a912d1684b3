"""What kdtrace prints: for people, for programs, into files."""

import json

import pytest

from tests.kinst_emu.test_commands import refused, run


def objects(result):
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_trace_is_one_object_a_line_for_programs(arch):
    rows = objects(run("kdtrace", "--json", "-k", f"teaching/{arch}", "-n", "fbt::cnputs:", "-c",
                       'cnputs("one\\ntwo"); strlen("abc")'))
    assert rows[0]["probe"] == "fbt:kernel:cnputs:entry" and rows[0]["instructions"] > 1000
    assert rows[0]["arguments"][0] > 1 << 12 and len(rows[0]["arguments"]) == 5
    assert {"console": "one"} in rows and {"console": "two"} in rows
    assert rows[-1] == {"call": 'cnputs("one\\ntwo"); strlen("abc")', "value": 3, "type": "size_t"}


def test_stacks_and_lists_are_objects_too():
    (row, *_rest) = objects(run("kdtrace", "--json", "--stack", "-k", "teaching/amd64", "-n",
                                "fbt::fibonacci:entry", "-c", "fibonacci(1)"))
    assert row["lines"][0].startswith("kernel`fibonacci+0x0")
    listed = objects(run("kdtrace", "--json", "-l", "-v", "-k", "teaching/amd64", "-n",
                         "kinst::machine_idle:"))
    assert listed[0] == {"id": 1, "provider": "kinst", "module": "kernel",
                         "function": "machine_idle", "name": "0"}
    assert {row["instruction"] for row in listed if "not_probed" in row} == {"hlt"}


def test_without_a_description_every_probe_is_listed(arch):
    every = run("kdtrace", "-l", "-k", f"teaching/{arch}").stdout
    assert every == run("kdtrace", "-l", "-k", f"teaching/{arch}", "-P", "fbt").stdout
    assert len(every.splitlines()) > 60
    refused(run("kdtrace", "-k", f"teaching/{arch}", "-c", "boot"), "no probes specified", "dtrace")


@pytest.mark.parametrize("path", ["guest", "direct"])
def test_the_digest_of_a_traced_boot_is_that_of_the_boot(arch, path):
    plain = json.loads(run("kinst", "boot", "--json", "--digest", "-k", f"teaching/{arch}").stdout)
    traced = run("kdtrace", "-q", "--digest", "--trap-path", path, "-k", f"teaching/{arch}", "-n",
                 "fbt:::", "-c", "boot")
    assert traced.stdout.splitlines()[-1] == f"digest {plain['digest']}"


def test_what_is_printed_is_appended_to_a_file(tmp_path):
    words = ["-k", "teaching/amd64", "-n", "kinst::strlen:0", "-c", 'strlen("ab")']
    plain = run("kdtrace", *words).stdout
    for _ in range(2):
        result = run("kdtrace", "-o", str(tmp_path / "trace"), *words)
        assert result.returncode == 0 and result.stdout == ""
    assert (tmp_path / "trace").read_text() == 2 * plain
    refused(run("kdtrace", "-o", str(tmp_path / "none" / "trace"), *words),
            "cannot be written: No such file", "dtrace")


def test_qemu_gives_no_digest():
    refused(run("kdtrace", "--machine", "qemu", "--digest", "-k", "teaching/amd64", "-n",
                "kinst::strlen:0", "-c", 'strlen("ab")'), "no --digest", "dtrace")
