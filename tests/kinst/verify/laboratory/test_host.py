"""Tests of relocated amd64 instructions that are checked by executing them on the host CPU."""

import os
import signal
import threading
from pathlib import Path

import pytest

from emu.host.errors import KinstError
from kinst.amd64.host import Host, HostError
from kinst.relocation.trap import TRAPS
from kinst.relocation.verdict import Copy
from kinst.verify.laboratory.architecture import LABORATORIES
from kinst.verify.laboratory.laboratory import EXECUTED, Laboratory
from kinst.verify.laboratory.memory_map import CODE, DATA
from tests.mutation import OffByOne, is_emulation, is_rewrite, mutated


@pytest.fixture
def laboratory():
    def make(trap=TRAPS["amd64"]):
        try:
            made.append(Laboratory(LABORATORIES["amd64"](), trap, 1, True))
        except HostError as error:
            pytest.skip(str(error))
        return made[-1]

    made = []
    yield make
    for one in made:
        one.close()


CODES = [
    "4889c8", "488b0510000000", "0f6f0510000000", "d90510000000", "48890510000000",  # MOV MOVQ FLD
    "e800000000", "7405", "eb10", "ff142500000050", "c3", "c20800", "e302", "e2fe", "50", "5b",
    "f3a4", "f348ab", "660fef c1", "0fae5d00", "f00fb10f", "48f7f1", "d9c1", "dfe0",
]


@pytest.mark.parametrize("code", CODES)
def test_our_relocations_are_correct_on_the_host_cpu(laboratory, code):
    lab = laboratory()
    word, mismatch = lab.test(bytes.fromhex(code), 8)
    assert mismatch is None or pytest.fail("\n".join(mismatch.differences()))
    assert word in ("copy", "rewrite", "emulate") and lab.judged[EXECUTED] == 1


@pytest.mark.parametrize("code", ["c5fc28c1", "c5fa6f0510000000", "c4e27d58c1"])
def test_the_host_executes_instructions_unknown_to_the_model(laboratory, code):
    if " avx2 " not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        pytest.skip("the host's CPU has no AVX2")
    lab = laboratory()
    word, mismatch = lab.test(bytes.fromhex(code), 8)
    assert mismatch is None and word in ("copy", "rewrite") and lab.judged[EXECUTED] == 1


@pytest.mark.parametrize("code", ["488b0510000000", "c5fa6f0510000000", "48890510000000", "7405"])
def test_the_host_detects_a_wrong_relocation(laboratory, code):
    trap = TRAPS["amd64"]
    lab = laboratory(mutated(trap, lambda v: Copy() if is_rewrite(v) else
                             OffByOne(v) if is_emulation(v) else v))
    code = bytes.fromhex(code)
    length, verdict = lab.trap.instructions.classify(code, CODE)
    assert length == len(code)
    how, mismatch = lab._by_host(code, verdict, 8)
    assert how == EXECUTED and mismatch.how == "on the host" and mismatch.differences()


def test_system_calls_do_not_reach_the_host_kernel(laboratory):
    """The system call instructions are skipped: exit_group does not end the host process."""
    host = laboratory().judge
    values, vectors = laboratory().state(0)
    values = host.prepare(values | {"rax": 231}, vectors)
    for code in (b"\x0f\x05", b"\xcd\x80"):
        host.run(values, code, 0, b"", False)
        assert Path(f"/proc/{host._pid}").exists()
    assert host.run(values, b"\x90", 0, b"", False).pc == CODE + 1


def test_the_host_process_maps_only_laboratory_memory(laboratory):
    host = laboratory().judge
    maps = Path(f"/proc/{host._pid}/maps").read_text(encoding="utf-8").splitlines()
    assert all("kinst-host" in line or "[vsyscall]" in line for line in maps)
    assert {CODE, DATA} <= host.pages.keys()


def test_the_host_process_ends_with_its_judge(laboratory):
    values, vectors = laboratory().state(0)
    host = Host(1)
    pid = host._pid
    host.close()
    assert not Path(f"/proc/{pid}").exists() and host._pid == 0
    with Host(1) as other:
        os.kill(other._pid, 9)
        with pytest.raises(HostError):
            other.run(other.prepare(values, vectors), b"\x90", 0, b"", False)


def test_signals_from_other_processes_change_nothing(laboratory):
    lab = laboratory()
    stop = threading.Event()

    def disturb():
        while not stop.wait(0.001):
            os.kill(lab.judge._pid, signal.SIGWINCH)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(40):
            assert lab.test(bytes.fromhex("4889c8"), 8) == ("copy", None)
        assert lab.judge.map(0x60000000)
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("code", ["0f0100", "0f00c8", "0f00c0", "0f01e0"])
def test_instructions_that_the_host_kernel_emulates_are_not_judged(laboratory, code):
    lab = laboratory()
    _word, mismatch = lab.test(bytes.fromhex(code), 4)
    assert mismatch is None and not lab.judged[EXECUTED]


def test_changed_segment_registers_are_restored(laboratory):
    host = laboratory().judge
    values, vectors = laboratory().state(0)
    values = host.prepare(values | {"rax": 0}, vectors)
    first = host.run(values, b"\x90", 0, b"", False).registers
    changed = host.run(values, b"\x8e\xe8", 0, b"", False).registers  # mov gs, eax
    assert host.run(values, b"\x90", 0, b"", False).registers == first
    assert {k for k in first if first[k] != changed[k]} <= {"gs", "gs_base"}


# Correctly relocated instructions that are easily judged wrong: masked AVX-512 (XSAVE's in-use
# bits), gathers (a single step can stop inside them), a return whose count the model treats as
# negative, and a null selector that an interrupt changes.
FALSE_ALARMS = ["62e1ad0f5864d908", "62d1654ffefb", "62f2054139771b", "c4e26d920408",
                "c4e2e9920408", "f248c23ae9", "65c21db5", "2e664b0fb58e7927ddd6"]


@pytest.mark.parametrize("code", FALSE_ALARMS)
def test_host_specific_behavior_is_not_a_mismatch(laboratory, code):
    _word, mismatch = laboratory().test(bytes.fromhex(code), 24)
    assert mismatch is None or pytest.fail("\n".join(mismatch.differences()))


def test_all_mask_and_vector_registers_are_in_use_on_the_host(laboratory):
    host = laboratory().judge
    if not host._parts:
        pytest.skip("the host's CPU has no AVX")
    values, vectors = laboratory().state(0)
    values = host.prepare(values, vectors)
    before = host.run(values, b"\x90", 0, b"", False).vectors
    area = b"".join(one.to_bytes(64, "little") for one in before)
    for begin, end in host._parts.values():
        assert all(any(area[at : at + 16]) for at in range(begin, end, 16))


def test_a_gather_is_executed_to_completion(laboratory):
    lab = laboratory()
    if 2 not in lab.judge._parts:
        pytest.skip("the host's CPU has no AVX2")
    code = bytes.fromhex("c4e269920408")  # vgatherdps xmm0, [rax + xmm1], xmm2
    values, vectors = lab.state(0)
    vectors[1], vectors[2] = 0, (1 << 128) - 1  # load every element from the same address
    values = lab.judge.prepare(values | {"rax": DATA}, vectors)
    outcome = lab.judge.run(values, code, 0, b"", lab.facts.repeats(code))
    area = b"".join(one.to_bytes(64, "little") for one in outcome.vectors)
    assert not outcome.fault and outcome.pc == CODE + len(code)
    assert not any(area[192:208])  # the mask is clear after every element is loaded


@pytest.mark.parametrize("code", ["f3e005", "f2e005", "f2e105", "f32ee105"])
def test_loops_with_cpu_dependent_prefixes_are_refused(code):
    length, verdict = TRAPS["amd64"].instructions.classify(bytes.fromhex(code), CODE)
    assert length == len(code) // 2 and "prefix" in verdict.reason


def test_a_lock_prefix_on_a_register_does_not_end_the_laboratory():
    lab = Laboratory(LABORATORIES["amd64"](), TRAPS["amd64"], 1)
    # This encoding makes the CPU model call abort().
    word, _mismatch = lab.test(bytes.fromhex("f0f2460fbaeac7"), 2)
    assert word.startswith(("not executed", "refuse"))


def test_x87_state_does_not_leak_into_the_next_encoding():
    lab = Laboratory(LABORATORIES["amd64"](), TRAPS["amd64"], 1)
    for code in ("d9c1", "dd00", "6441d9727b", "d930"):  # fnstenv after other x87 instructions
        assert lab.test(bytes.fromhex(code), 4)[1] is None


def test_other_architectures_have_no_host_judge():
    with pytest.raises(KinstError, match="cannot execute arm64 instructions"):
        Laboratory(LABORATORIES["arm64"](), TRAPS["arm64"], 1, True)
