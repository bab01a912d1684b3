from copy import copy
from dataclasses import replace

import pytest

from emu.arch.architectures import ARCHITECTURES
from kinst.amd64.instructions import Amd64Instructions
from kinst.arm64 import classify as arm64_classify
from kinst.arm64.instructions import Arm64Instructions
from kinst.code.survey import survey
from kinst.relocation.trap import TRAPS
from kinst.relocation.verdict import Copy, Jump, Rewrite, SetRegister
from kinst.riscv64.instructions import Riscv64Instructions
from kinst.verify.laboratory.architecture import LABORATORIES
from kinst.verify.laboratory.encodings import relocate
from kinst.verify.laboratory.flat_cpu import FlatCpu
from kinst.verify.laboratory.laboratory import MIXED, Laboratory, mixed
from kinst.verify.laboratory.memory_map import CODE
from kinst.verify.sweep.workers import Here, Processes


def encodings(arch, image):
    functions = list(image.symbols.functions())
    return list(survey(ARCHITECTURES[arch], TRAPS[arch], image, functions).places)


def laboratory(arch, instructions=None, seed=1):
    trap = copy(TRAPS[arch])
    trap.instructions = instructions or trap.instructions
    return Laboratory(LABORATORIES[arch](), trap, seed)


def test_every_encoding_of_the_teaching_kernels_relocates_correctly(image, arch):
    codes = encodings(arch, image)
    report = relocate(arch, codes, 7, 2, Here(), lambda done: None)
    assert not report.mismatches, [m.differences() for m in report.mismatches]
    assert sum(report.verdicts.values()) == len(codes) > 500
    assert "refuse: is unknown" not in report.verdicts


CORNERS = {
    "amd64": """e210 e110 e010 e310 67e210 67e310 f3a4 f348ab f2ae ff2500100000 ff1500100000
        ff14c500000050 41ff5500 64488b042500000000 65488b0425f0000000 0f8410000000 7410 c3 c20800
        48f7f1 f7f9 488d0510000000 c70510000000efbeadde 0fae3d00100000 f30f6f0510000000
        660f3a0f0d1000000001 f00fb10d10000000 480fc70d10000000 55 9c 50 58 c9 e800000000
        eb10 e900010000 ff20 ffd0 ff6208 8f4018 50 ff30""",
    "arm64": """10000080 30000080 90000000 b0000013 18000080 58000080 98000080 d8000080 14000004
        94000004 54000080 5400008e 34000085 b5000085 37f80085 b6000085 d61f0060 d63f0060 d63f03c0
        d65f03c0 d65f0060 a9bf7bfd a8c17bfd d10083ff 08a07c41 48207c82 885ffc41 f8408c41 1e604000
        4cdf7000 9b017c00 d4200000 f9400000 dac00400""",
    "riscv64": """17150000 97020000 17010000 ef000001 6f000001 e7800500 67800500 e7804000 67804500
        63085000 63485000 63685000 63f85000 01a8 01c9 01e9 8280 8295 2f25b500 2f250510 0345 1c61
        1ce1 22e4 a260 0111 3a95 0100 73001000 53752500 07b50500""",
}


def test_corner_cases_of_the_tables_relocate_correctly(arch):
    lab = laboratory(arch)
    executed = 0
    for text in CORNERS[arch].split():
        code = bytes.fromhex(text)
        if arch == "arm64":
            code = code[::-1]
        verdict, mismatch = lab.test(code, 6)
        assert mismatch is None, (text, verdict, mismatch.differences())
        executed += verdict in ("copy", "rewrite", "emulate")
    assert executed > 20


class WrongDisplacement(Amd64Instructions):
    """Instruction table that copies RIP-relative operands without adjusting them."""

    def classify(self, code, address):
        length, verdict = super().classify(code, address)
        return length, Copy() if isinstance(verdict, Rewrite) else verdict


class WrongTarget(Arm64Instructions):
    """Instruction table whose jumps go one instruction too far."""

    def classify(self, code, address):
        length, verdict = super().classify(code, address)
        return length, Jump(verdict.target + 4) if isinstance(verdict, Jump) else verdict


class WrongWidth(Arm64Instructions):
    """Instruction table whose emulation of CBZ's W form tests the whole register."""

    def classify(self, code, address):
        length, verdict = super().classify(code, address)
        condition = getattr(verdict, "condition", None)
        if isinstance(condition, arm64_classify.Zero):
            wide = arm64_classify.Zero(condition.register, 64, condition.wanted)
            verdict = replace(verdict, condition=wide)
        return length, verdict


class WrongRegister(Riscv64Instructions):
    """Instruction table whose verdict on AUIPC sets the wrong register."""

    def classify(self, code, address):
        length, verdict = super().classify(code, address)
        if isinstance(verdict, SetRegister):
            verdict = SetRegister("a7", verdict.value, verdict.after)
        return length, verdict


@pytest.mark.parametrize("arch, instructions, code, says", [
    ("amd64", WrongDisplacement(), "488d0510000000", "rax: 0x40000017 in place"),
    ("arm64", WrongTarget(), "04000014", "next pc: 0x40000010 in place, 0x40000014 by the verdict"),
    ("arm64", WrongWidth(), "85000034", "next pc"),
    ("riscv64", WrongRegister(), "17150000", "a0: 0x40001000 in place"),
])
def test_a_wrong_relocation_is_found_and_described(arch, instructions, code, says):
    lab = laboratory(arch, instructions)
    _verdict, mismatch = lab.test(bytes.fromhex(code), 60)
    assert mismatch is not None
    assert any(says in line for line in mismatch.differences())
    assert mismatch.address == CODE


def test_the_same_seed_gives_the_same_states(arch):
    one, two, other = (laboratory(arch, seed=s) for s in (3, 3, 4))
    assert one.state(5) == two.state(5) != other.state(5)


def test_several_processes_produce_the_same_report(image, arch):
    codes = encodings(arch, image)[:450]
    reports = [relocate(arch, codes, 1, 1, jobs, lambda done: None)
               for jobs in (Here(), Processes(2))]
    assert reports[0] == reports[1]


class RewritesBecomeCopies(Amd64Instructions):
    """Instruction table that copies RIP-relative instructions instead of rewriting them."""

    def classify(self, code, address):
        length, verdict = super().classify(code, address)
        return length, Copy() if isinstance(verdict, Rewrite) else verdict


@pytest.mark.parametrize("text", [
    "660f6f0510000000", "f30f6f0510000000",  # MOVDQA, MOVDQU: SSE must be enabled
    "0f6f0510000000", "d90510000000", "dd0510000000",  # MMX and x87 state must be compared
    # stores to the page that contains the instruction
    "48890510000000", "c70510000000efbeadde", "660f7f0510000000",
])
def test_the_laboratory_detects_rewrites_that_became_copies(text):
    lab = laboratory("amd64", RewritesBecomeCopies())
    assert any(lab.test(bytes.fromhex(text), 1)[1] is not None for _ in range(3)), text
    assert laboratory("amd64").test(bytes.fromhex(text), 6) == ("rewrite", None)


@pytest.mark.parametrize(("arch", "text"), [
    ("amd64", "0f38c8c1"), ("amd64", "8fe878c0c101"), ("amd64", "643eff10"),
    ("riscv64", "c881"), ("riscv64", "57000002"), ("arm64", "00e02004"),
])
def test_instructions_unknown_to_the_model_are_not_executed(arch, text):
    verdict, mismatch = laboratory(arch).test(bytes.fromhex(text), 4)
    assert verdict.startswith("not executed"), verdict
    assert mismatch is None


def test_floating_point_state_does_not_leak_into_the_next_encoding():
    lab = laboratory("amd64")
    codes = [bytes.fromhex(text) for text in ("d9e8", "dbe3", "d9c0", "d9f7", "0f77", "d9e1")]
    for _ in range(2):
        for code in codes:
            verdict, mismatch = lab.test(code, 4)
            assert (verdict, mismatch) == ("copy", None), (code.hex(), mismatch)


def test_memory_is_not_mapped_while_the_cpu_runs(arch, monkeypatch):
    """Pages may be mapped only between runs, since Unicorn keeps stale address lookups."""
    lab = Laboratory(LABORATORIES[arch](), TRAPS[arch], 3)
    running = []
    mapped = FlatCpu.map
    monkeypatch.setattr(FlatCpu, "map", lambda cpu, address: (
        running.append(cpu.engine.running), mapped(cpu, address))[1])
    store = {"amd64": "488903", "arm64": "410000f9", "riscv64": "23b0b500"}[arch]
    for _ in range(2):
        assert lab.test(bytes.fromhex(store), 6) == ("copy", None)
    assert len(lab.plain.pages) > 3 and running and not any(running)
    assert lab.plain.pages.keys() == lab.probed.pages.keys()


@pytest.mark.parametrize("count", [2, 15, 16, 31])
def test_every_register_pair_is_tried_with_each_as_the_address(count):
    names = [f"r{i}" for i in range(count)]
    states = [mixed(k, names, lambda: 1, lambda: 0) for k in range(len(MIXED))]
    pairs = {(a, b) for state in states for a in names for b in names if state[a] > state[b]}
    assert pairs == {(a, b) for a in names for b in names if a != b}


@pytest.mark.parametrize("code", ["48f7f1", "41f7f8", "f6f1", "660f6f00", "660f28445900"])
def test_divisions_and_aligned_vectors_are_proven_with_any_seed(code):
    for seed in range(6):
        word, mismatch = laboratory("amd64", seed=seed).test(bytes.fromhex(code), 1)
        assert word == "copy" and mismatch is None
