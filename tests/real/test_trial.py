"""FreeBSD's own kinst in real kernels, judged by execution."""

import json

import pytest

from tests.conftest import ARCHES, real_kernel
from tests.kinst_emu.commands.test_front import run

# Encodings that the module mishandles, by reading or by execution; and good neighbours of them.
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
def test_what_the_module_mishandles_is_found_and_located(arch, tmp_path):
    if not WRONG[arch]:
        pytest.skip(f"nothing that {arch}'s module mishandles in states of a kernel is known")
    found = judged(arch, WRONG[arch], tmp_path)
    assert not found["unproven"]
    assert {one["bytes"] for one in found["mishandled"]} == set(WRONG[arch].split()) - {"88008037"}
    for one in found["mishandled"]:
        assert "kinst_" in one["source"] and ".c:" in one["source"] and one["differences"]
        assert " written by kinst_" in one["source"]  # what it keeps of the instruction


@pytest.mark.parametrize("arch", ARCHES)
def test_what_the_module_does_right_is_no_alarm(arch, tmp_path):
    found = judged(arch, GOOD[arch], tmp_path, "--states", "8")
    assert not found["mishandled"] and not found["unproven"]
    assert sum(found["executed"].values()) == len(GOOD[arch].split())


def test_what_the_module_reads_otherwise_is_found_whatever_the_states(tmp_path):
    """saparamsetlist calls through 0x10(%r12), for which the module takes an index of %rsp."""
    for seed in range(1, 5):
        found = judged("amd64", "41ff542410", tmp_path, "--states", "1", "--seed", str(seed))
        assert [one["bytes"] for one in found["mishandled"]] == ["41ff542410"]


def test_what_writes_to_what_may_only_be_read_and_jumps_that_lead_to_one_place_are_shown(tmp_path):
    """orb relative to itself, near code; jne to the next instruction."""
    found = judged("amd64", "800d5c8effff10 7500", tmp_path)
    assert not found["mishandled"] and not found["unproven"]


@pytest.mark.parametrize("arch", ARCHES)
def test_what_is_emulated_or_rewritten_is_shown(arch):
    """Also what reads and writes relative to itself, and jumps to where nothing is from there."""
    result = run("kinst", "trial", "-k", kernel(arch), "--random", "1500", "--part", "execution",
                 "--json")
    found = json.loads(result.stdout)
    assert found["executed"]["emulate"] > 100
    assert found["executed"].get("rewrite", 0) > 100 or arch != "amd64"
    assert not [one for one in found["unproven"] if one["verdict"] != "copy"]


@pytest.mark.parametrize("arch", ARCHES)
def test_the_verdicts_on_functions_are_compared(arch):
    result = run("kinst", "trial", "-k", kernel(arch), "malloc", "strlen", "vm_fault", "--part",
                 "verdicts", "--json")
    found = json.loads(result.stdout)["verdicts"]
    assert found["functions"] == 3 and found["agreed"]["copy"] > 100
    assert not [d for d in found["differences"]
                if d["kind"] in ("different length", "different target", "different operands",
                                 "probe where kinst-emu finds no instruction")]
