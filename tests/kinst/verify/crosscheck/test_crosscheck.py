"""Tests that QEMU cross-checks agree on the teaching kernels and find injected faults."""

import random
import re
from collections import Counter

import pytest

from dtrace.calls.calls import Evaluation, parse
from emu.host.errors import KinstError
from emu.machine.call import Caller, PatienceError
from emu.qemu.machine import QemuMachine
from kinst.probes.breakpoints import Breakpoints
from kinst.probes.seam_breakpoints import SeamBreakpoints
from kinst.providers import kinst_provider
from kinst.relocation.verdict import Refuse
from kinst.verify.crosscheck import call_table
from kinst.verify.crosscheck.agreement import Agreement
from kinst.verify.crosscheck.crosscheck import Crosscheck
from kinst.verify.crosscheck.difference import (
    MODELS,
    Difference,
    Model,
    StateDifference,
    destination,
)
from kinst.verify.crosscheck.faults import FaultyCrosscheck
from kinst.verify.crosscheck.lockstep import Divergence, TooLongError, follow, model_points, record


def workload_of(call):
    program = parse(call)
    return lambda machine: Evaluation(Caller(machine, 1_000_000)).run(program)


@pytest.fixture
def few_firings(monkeypatch):
    """Lower the limits on firings, since each firing takes a dozen replies from QEMU's gdb stub."""
    monkeypatch.setattr("kinst.verify.crosscheck.crosscheck.MAX_FIRINGS", 120)
    monkeypatch.setattr("kinst.verify.crosscheck.crosscheck.MOST_FIRINGS", 240)


def test_calls_agree_in_lockstep_with_probes_and_in_their_effects(booted, few_firings):
    crosscheck, agreed, generator = Crosscheck(booted), Agreement(), random.Random(1)
    for entry in call_table.available(booted.image):
        agreed.add(crosscheck.check(workload_of(call_table.call(entry, generator))))
    assert agreed.calls >= 12 and agreed.firings > 700 and agreed.distinct() > 200
    assert {"copy", "emulate"} <= agreed.encodings.keys()
    assert set(agreed.lengths) == {"amd64": {1}, "arm64": {4}, "riscv64": {2, 4}}[booted.arch.name]


@pytest.mark.parametrize("fault", ["delivery", "trampoline", "emulation"])
def test_an_injected_fault_is_found_at_its_instruction(booted, fault):
    crosscheck = FaultyCrosscheck(booted, fault)
    with pytest.raises(Divergence) as found:
        crosscheck.check(workload_of('strtoul("1234zz", 0, 10)'))
    assert crosscheck.faulty and found.value.address == crosscheck.faulty
    assert found.value.ours != found.value.theirs
    assert found.value.what.startswith("the trap frames") == (fault == "delivery")


@pytest.mark.parametrize("call", ["fibonacci(3)", 'strlen("")'])
def test_a_fault_in_the_last_emulation_is_found_in_the_result(booted, call):
    crosscheck = FaultyCrosscheck(booted, "emulation")
    with pytest.raises(Divergence) as found:
        crosscheck.check(workload_of(call))
    assert crosscheck.faulty and found.value.address == crosscheck.faulty
    assert re.fullmatch(rf"{booted.arch.result} differs at firing \d+, after this instruction:",
                        found.value.what)


REGISTERS = {
    "amd64": ("xmm0", "cr2", "fs_base", "kernel_gs_base", "mxcsr"),
    "arm64": ("v7", "v31"), "riscv64": ("f3", "sscratch", "scause", "sie"),
}


def test_vector_and_system_registers_are_compared_at_the_end(booted, monkeypatch):
    """Give QEMU a different initial value for one register at a time."""
    enter = QemuMachine.enter
    for name in REGISTERS[booted.arch.name]:
        crosscheck = Crosscheck(booted)

        def altered(machine, source, name=name):
            enter(machine, source)
            machine.write_register(name, machine.read_register(name) ^ 0x20)

        monkeypatch.setattr(QemuMachine, "enter", altered)
        with pytest.raises(Divergence, match=name):
            crosscheck.check(workload_of('strlen("ab")'))


def test_a_hot_function_is_probed_at_its_rarest_instruction_or_refused(booted, few_firings):
    crosscheck = Crosscheck(booted)
    checked = crosscheck.check(workload_of("fibonacci(13)"))
    recording, _end = record(booted, workload_of("fibonacci(13)"))
    probes = {i.address for i in Breakpoints(booted).instructions(booted.symbol("fibonacci"))
              if not isinstance(i.verdict, Refuse)}
    counts = Counter(step[recording.pc] for step in recording.steps)
    assert checked.firings == min(counts[at] for at in probes if at in counts) > 120
    with pytest.raises(TooLongError, match="is executed more than 240 times"):
        crosscheck.check(workload_of("fibonacci(15)"))


def test_waiting_too_long_for_qemu_is_not_a_divergence(booted, monkeypatch):
    monkeypatch.setattr("kinst.verify.crosscheck.crosscheck.PROBED_PATIENCE", 0.0)
    with pytest.raises(PatienceError,
                       match="fibonacci did not finish in the time allowed: QEMU neither"):
        # A shorter call might finish in time.
        Crosscheck(booted).check(workload_of("fibonacci(12)"))


def test_a_workload_that_executes_nothing_is_refused(booted):
    with pytest.raises(KinstError, match="executes no instruction"):
        Crosscheck(booted).check(workload_of("5"))


def test_an_allowed_state_difference_is_limited_to_its_mask():
    zero = StateDifference(0xFF, "a test", or_zero=True)
    assert zero.allows(0x112, 0x100) and not zero.allows(0x112, 0x113)
    assert not zero.allows(0x112, 0x200)


def test_lockstep_finds_a_wrong_instruction_at_its_address(booted):
    """Replace an instruction with a NOP on the second machine only."""
    work = workload_of('strlen("hello")')
    snapshot = booted.snapshot()
    recording, _value = record(booted, work)
    booted.restore(snapshot)
    place = recording.steps[len(recording.steps) // 2][recording.pc]
    with QemuMachine.carry(booted, snapshot) as machine:
        length = machine.arch.instruction_length(machine.read(place, 15))
        nop = {"amd64": b"\x90" * length, "arm64": b"\x1f\x20\x03\xd5",
               "riscv64": b"\x01\0" * (length // 2)}[machine.arch.name]
        machine.write_code(place, nop)
        with pytest.raises(Divergence) as found:
            follow(machine, recording, {}, work)
    assert found.value.address == place


def test_a_call_that_executes_too_many_instructions_is_refused(booted):
    with pytest.raises(TooLongError, match="more than 100 instructions"):
        record(booted, workload_of("fibonacci(12)"), 100)


def test_probes_fire_on_qemu_as_on_our_machine(booted):
    fired = []
    with QemuMachine.carry(booted) as machine:
        probes = SeamBreakpoints(machine, lambda probe, state: fired.append(
            (probe.instruction.offset, state.get(machine.arch.pc))))
        kinst_provider.create(probes, "strlen", "")
        patched = machine.read(booted.symbol("strlen").address, 16)
        probes.enable()
        assert machine.read(booted.symbol("strlen").address, 16) != patched
        assert Evaluation(Caller(machine)).run(parse('strlen("hello")')) == 5
        probes.disable()
        assert machine.read(booted.symbol("strlen").address, 16) == patched
        assert machine.read_u64(machine.symbol("dtrace_invop_jump_addr").address) == 0
    base = booted.symbol("strlen").address
    snapshot = booted.snapshot()
    recording, _value = record(booted, workload_of('strlen("hello")'))
    booted.restore(snapshot)
    assert [base + offset for offset, _pc in fired] == [pc for _offset, pc in fired] == [
        step[recording.pc] for step in recording.steps]


def test_model_specific_results_are_passed_to_the_second_machine(booted, monkeypatch):
    """Declare strlen's first instruction model-specific, so that QEMU is given its result."""
    work = workload_of('strlen("hello")')
    snapshot = booted.snapshot()
    recording, _value = record(booted, work)
    booted.restore(snapshot)
    first = recording.steps[0][recording.pc]
    code = booted.read(first, 4)
    monkeypatch.setattr(f"kinst.{booted.arch.name}.model.MODEL", Model((
        Difference(code, (booted.arch.result,), "a test"),), 0))
    points = model_points(booted, recording)
    assert points[first].reason == "a test" and len(points) == 1
    with QemuMachine.carry(booted, snapshot) as machine:
        assert follow(machine, recording, points, work) == 5


@pytest.mark.parametrize("arch, code, names", [
    ("amd64", "0f31", ("rax", "rdx")), ("amd64", "0fa2", ("rax", "rbx", "rcx", "rdx")),
    ("arm64", "40e03bd5", ("x0",)), ("arm64", "e30038d5", ("x3",)),
    ("riscv64", "732510c0", ("a0",)), ("riscv64", "f3720010", ("t0",)),
])
def test_known_differences_name_the_right_registers(arch, code, names):
    (found,) = (d for d in MODELS[arch].instructions if d.matches(bytes.fromhex(code)))
    assert found.names(bytes.fromhex(code)) == names and found.reason


def test_ordinary_instructions_are_not_known_differences():
    assert not [d for d in MODELS["arm64"].instructions if d.matches(bytes.fromhex("00d038d5"))]
    assert not [d for d in MODELS["riscv64"].instructions if d.matches(bytes.fromhex("73251014"))]
    assert destination(7, 31, "x")(bytes.fromhex("80000000")) == ("x1",)
