"""Tests of ``kinst trial`` with invalid options and with results that cannot be proven."""

import json
import sys
from xml.etree import ElementTree

import pytest

from kinst.verify.laboratory.comparing import compare
from kinst.verify.laboratory.finding import Finding, unproven
from kinst_emu.cli.assembler import assemble
from tests.kinst_emu.commands.test_front import refused, run

K = ["-k", "teaching/amd64"]


@pytest.mark.parametrize("words, says", [
    ([*K], "choose exactly one of"),
    ([*K, "--all", "memcpy"], "choose exactly one of"),
    ([*K, "memcpy", "--copies", "5"], "--copies: works only with --all"),
    ([*K, "--all", "--part", "verdicts", "--store", "x.db"], "--store: keeps only the results"),
    ([*K, "memcpy"], "kinst.ko: no such module"),
    (["memcpy"], "give a kernel"),
    ([*K, "memcpy", "--arch", "amd64"], "--arch: works only with --relocator"),
    (["--arch", "amd64", "--relocator", "x", "--assemble", "nop", "--memory", "1G"],
     "--memory: cannot be used with --relocator"),
    (["--arch", "amd64", "--relocator", "/nowhere/x", "--assemble", "nop"], "cannot be run"),
    (["--arch", "amd64", "--relocator", "'", "--assemble", "nop"], "--relocator '"),
])
def test_invalid_options_are_refused_with_one_line(words, says):
    refused(run("kinst", "trial", *words), says)


EMULATES = """import json, sys
for line in sys.stdin:
    row = json.loads(line)
    print(json.dumps({"id": row["id"], "emulate": True}), flush=True)
"""


def test_an_instruction_that_faults_in_every_state_is_unproven(tmp_path):
    """Test INT 3: it faults in place in every state, so its emulation is never compared."""
    program, codes, report = tmp_path / "emulates.py", tmp_path / "codes", tmp_path / "report.xml"
    program.write_text(EMULATES)
    codes.write_text("cd03\n")
    words = ["trial", "--arch", "amd64", "--encodings", str(codes), "--relocator",
             f"{sys.executable} {program}"]
    result = run("kinst", *words, "--junit", str(report))
    assert result.returncode == 3 and "0 mismatches, 1 unproven" in result.stdout
    assert "unproven: emulate, which faults in every state" in result.stdout
    suite = ElementTree.parse(report).getroot()[0]
    assert suite.get("skipped") == "1" and suite.find("testcase/skipped") is not None
    found = json.loads(run("kinst", *words, "--json").stdout)
    assert [(one["bytes"], one["verdict"]) for one in found["unproven"]] == [("cd03", "emulate")]


def test_json_output_has_a_verdict_and_a_result_for_each_encoding(tmp_path):
    codes = tmp_path / "codes"
    codes.write_text("90\n6c\n0f0b\n")
    result = run("kinst", "relocate", "--arch", "amd64", "--encodings", str(codes), "--json")
    verdicts = {one["bytes"]: (one["verdict"], one["result"].partition(":")[0])
                for one in json.loads(result.stdout)["encodings"]}
    assert verdicts == {"90": ("copy", "copy"), "6c": ("copy", "not executed"),
                        "0f0b": ("refuse: raises an exception", "refuse")}


def test_a_mismatch_that_became_unproven_is_not_fixed():
    wrong = Finding(b"\xc3", "copy", 0, "copy", "displaced", ("rax: 0 in place, 1 displaced",))
    later = Finding(b"\xc3", unproven("copy", "which faults in every state"))
    found = compare([("f", wrong)], [("f", later)])
    assert not found.fixed and sum(found.changed.values()) == 1


@pytest.mark.parametrize(("text", "code"), [
    ("adr x0, #16", "80000010"), ("adr x0, #-16", "80ffff10"), ("adrp x1, #0x1000", "010000b0"),
    ("b #16", "04000014"), ("ldr x0, #16", "80000058"), ("cbz x1, #8", "410000b4")])
def test_immediates_of_arm64_are_distances_when_assembled(text, code):
    assert assemble("arm64", text) == [(text, bytes.fromhex(code))]
