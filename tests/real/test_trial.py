"""Tests that ``kinst trial`` finds instructions that FreeBSD's kinst module mishandles."""

import json

import pytest

from tests.conftest import ARCHES, real_kernel
from tests.kinst_emu.commands.test_front import run

# Encodings that the module mishandles, found by reading or executing them, and similar
# encodings that the module handles correctly.
WRONG = {
    "amd64": "41ff542408 ff542408 e205 e0fe e105 ff142510000000",
    "arm64": "88008037 0800f837 8800c0b7 88000058 41000018 00013fd6 c0035fd6 88000034",
    "riscv64": "",
}
GOOD = {
    "amd64": "90 55 e810000000 0f8400010000 7402 eb05 488b0510000000 ff10 ffd0 4889d8 "
             "65488b042500000000 f3a4 f3aa",
    "arm64": "1f2003d5 0000008b e00740f9 01000014 40000054 880000b4 0800a836",
    "riscv64": "13000000 0545 6f004000 97020000 e7800500 8280 63f45501 23b0a500 99e8",
}


def kernel(arch):
    image = real_kernel(arch)
    if not (image.path.parent / "kinst.ko").is_file():
        pytest.skip(f"no kinst.ko beside {image.path}")
    return str(image.path)


def judged(arch, codes, tmp_path, *more):
    path = tmp_path / "codes"
    path.write_text("\n".join(codes.split()))
    result = run("kinst", "trial", "-k", kernel(arch), "--encodings", str(path), "--json", *more)
    return json.loads(result.stdout)


@pytest.mark.parametrize("arch", ARCHES)
def test_instructions_that_the_module_mishandles_are_found_and_located(arch, tmp_path):
    if not WRONG[arch]:
        pytest.skip(f"no encoding is known that {arch}'s module mishandles in kernel states")
    report = judged(arch, WRONG[arch], tmp_path)
    assert not report["unproven"]
    assert {row["bytes"] for row in report["mishandled"]} == set(WRONG[arch].split()) - {"88008037"}
    for row in report["mishandled"]:
        assert "kinst_" in row["source"] and ".c:" in row["source"] and row["differences"]
        assert " written by kinst_" in row["source"]  # the module's copy of the instruction


@pytest.mark.parametrize("arch", ARCHES)
def test_instructions_that_the_module_handles_correctly_are_not_reported(arch, tmp_path):
    report = judged(arch, GOOD[arch], tmp_path, "--states", "8")
    assert not report["mishandled"] and not report["unproven"]
    assert sum(report["executed"].values()) == len(GOOD[arch].split())


def test_a_misread_instruction_is_found_with_any_states(tmp_path):
    """In ``call *0x10(%r12)``, SIB index 4 means no index, but the module mistakes it for %rsp."""
    for seed in range(1, 5):
        report = judged("amd64", "41ff542410", tmp_path, "--states", "1", "--seed", str(seed))
        assert [row["bytes"] for row in report["mishandled"]] == ["41ff542410"]


def test_writes_near_code_and_jumps_to_the_next_instruction_are_proven(tmp_path):
    """The instructions are an ``orb`` to data near code and a ``jne`` to the next instruction."""
    report = judged("amd64", "800d5c8effff10 7500", tmp_path)
    assert not report["mishandled"] and not report["unproven"]


@pytest.mark.parametrize("arch", ARCHES)
def test_emulated_and_rewritten_instructions_are_proven(arch):
    """The random instructions include PC-relative operands and jumps to unmapped addresses."""
    result = run("kinst", "trial", "-k", kernel(arch), "--random", "1500", "--part", "execution",
                 "--json")
    report = json.loads(result.stdout)
    assert report["executed"]["emulate"] > 100
    assert report["executed"].get("rewrite", 0) > 100 or arch != "amd64"
    assert not [row for row in report["unproven"] if row["verdict"] != "copy"]


@pytest.mark.parametrize("arch", ARCHES)
def test_the_verdicts_on_functions_are_compared(arch):
    result = run("kinst", "trial", "-k", kernel(arch), "malloc", "strlen", "vm_fault", "--part",
                 "verdicts", "--json")
    report = json.loads(result.stdout)["verdicts"]
    assert report["functions"] == 3 and report["agreed"]["copy"] > 100
    assert not [d for d in report["differences"]
                if d["kind"] in ("different length", "different target", "different operands",
                                 "probe where kinst-emu finds no instruction")]
