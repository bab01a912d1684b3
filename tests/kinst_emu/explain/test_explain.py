"""Tests that explanations agree with what the machine did."""

import html
import json
import random
from dataclasses import replace

import pytest

from dtrace.calls.calls import Evaluation, parse
from emu.host.errors import KinstError
from emu.machine.call import Caller
from emu.machine.machine import StopReason, Until
from images import catalog
from images.boots import booted
from kinst.code.listing import image_code, instructions
from kinst.relocation.trap import TRAPS
from kinst.relocation.verdict import Refuse, summary
from kinst_emu.explain.record.chosen import ChosenPlace
from kinst_emu.explain.record.instruction import SeenInstruction
from kinst_emu.explain.record.recorder import FiringRecorder
from kinst_emu.explain.steps.explained import words_of
from kinst_emu.explain.steps.firing_steps import steps
from kinst_emu.explain.steps.step import Table
from kinst_emu.explain.view.page import page
from kinst_emu.explain.view.text import text
from kinst_emu.learn.quiz.experiment import Experimenter
from tests.conftest import ARCHES, MEMORY
from tests.kinst_emu.commands.test_front import refused, run

CALL = 'strtoul("-0x12zz", 0, 16)'
FUNCTION = "strtoul"


def machine_of(arch):
    return booted(catalog.find(f"teaching/{arch}"), MEMORY)


def call(machine, what=CALL):
    return Evaluation(Caller(machine, 1_000_000)).run(parse(what))


def executed(arch):
    """Return the executed offsets of FUNCTION, with the registers before and after each."""
    machine = machine_of(arch)
    function = machine.symbol(FUNCTION)
    addresses = {function.address + i.offset: i.offset
                 for i in FiringRecorder(machine, ChosenPlace(function, 0, 1)).table}
    found = {}

    def workload():
        caller = Caller(machine, 1_000_000)
        run_until = machine.run

        def stepped(until):
            while machine.pc not in until.addresses or machine.pc in addresses:
                offset, before = addresses.get(machine.pc), registers(machine)
                run_until(Until(instructions=machine.instructions + 1))
                if offset is not None and offset not in found:
                    found[offset] = before, registers(machine)
            return type("Stop", (), {"reason": StopReason.ADDRESS, "pc": machine.pc})()

        machine.run = stepped
        try:
            Evaluation(caller).run(parse(CALL))
        finally:
            del machine.run

    workload()
    return found


def registers(machine):
    return {name: machine.read_register(name) for name in machine.arch.registers}


@pytest.mark.parametrize("arch", ARCHES)
def test_each_instruction_has_the_same_effect_as_without_a_probe(arch):
    truth = executed(arch)
    assert len(truth) > 10
    machine = machine_of(arch)
    function, base = machine.symbol(FUNCTION), machine.snapshot()
    words, kinds = words_of(machine.image), set()
    for offset, (before, after) in truth.items():
        machine.restore(base)
        recorder = FiringRecorder(machine, ChosenPlace(function, offset, 1))
        verdict = next(i.verdict for i in recorder.table if i.offset == offset)
        kinds.add(summary(verdict))
        firing = recorder.record(lambda: call(machine))
        assert (firing.rows[0].registers, firing.rows[-1].registers) == (before, after), offset
        trap = TRAPS[arch]
        size = len(firing.original)
        assert firing.original == firing.instruction.code
        written = trap.breakpoint(size)
        assert firing.patched == written + firing.original[len(written) :]
        assert firing.frames[0].breakpoint == function.address + offset
        assert bool(firing.slot) == (summary(verdict) in ("copy", "rewrite"))
        assert bool(firing.second) == (bool(firing.slot) and trap.second_breakpoint)
        told = steps(firing, recorder.table, words)
        assert [step.name for step in told][:3] == ["function", "patch", "exception"]
        assert all(part.rows for step in told for part in step.parts if isinstance(part, Table))
    assert {"copy", "emulate"} <= kinds


@pytest.fixture(scope="module", params=ARCHES)
def recorded(request):
    machine = machine_of(request.param)
    recorder = FiringRecorder(machine, ChosenPlace(machine.symbol(FUNCTION), 0, 1))
    firing = recorder.record(lambda: call(machine))
    return firing, recorder.table, words_of(machine.image)


def changed(recorded, **fields):
    """Return the names of the steps that change when fields of the recording change."""
    firing, table, words = recorded
    before = {step.name: step for step in steps(firing, table, words)}
    after = {step.name: step for step in steps(replace(firing, **fields), table, words)}
    assert set(before) == set(after)
    return {name for name in before if before[name] != after[name]}


def test_a_changed_trampoline_byte_changes_the_explanation(recorded):
    firing = recorded[0]
    at = next(i for i, row in enumerate(firing.rows) if row.address == firing.slot)
    row = firing.rows[at]
    other = SeenInstruction(row.address, bytes((row.code[0] ^ 1, *row.code[1:])), row.registers)
    rows = [*firing.rows[:at], other, *firing.rows[at + 1 :]]
    assert "trampoline" in changed(recorded, rows=rows)


def test_a_changed_trap_frame_word_changes_the_explanation(recorded):
    firing = recorded[0]
    frame = firing.frames[0]
    layout = recorded[2].guest.traps.trap_frame
    for name, (offset, _size) in layout.fields.items():
        content = bytearray(frame.before)
        content[offset] ^= 1
        names = changed(recorded, frames=[replace(frame, before=bytes(content)),
                                         *firing.frames[1:]])
        assert "frame" in names, name
        assert ("exception" in names) == (name in TRAPS[firing.architecture].saved), name


def test_changed_registers_and_code_change_the_explanation(recorded):
    firing = recorded[0]
    last = firing.rows[-1]
    for name in last.registers:
        other = SeenInstruction(last.address, last.code,
                                last.registers | {name: last.registers[name] ^ 4})
        assert "after" in changed(recorded, rows=[*firing.rows[:-1], other]), name
    assert changed(recorded, patched=bytes(len(firing.patched))) == {
        "patch", "exception"}
    assert changed(recorded, original=bytes(len(firing.original))) == {"patch"}
    assert changed(recorded, asked=replace(recorded[0].asked, hit=2)) == {"function"}
    assert "trampoline" in changed(recorded, slot=firing.slot + 1)


def test_a_page_contains_everything_in_the_text(recorded):
    firing, table, words = recorded
    explained = steps(firing, table, words)
    made = page("<title>", "about & more", explained)
    shown = html.unescape(made)
    plain = "\n".join(text(explained))
    assert len(made.encode()) < 400 << 10
    assert "http:" not in made and "https:" not in made
    assert "&lt;title&gt;" in made and "about &amp; more" in made
    for step in explained:
        assert step.title in shown and step.title in plain
        for part in step.parts:
            for row in part.rows if isinstance(part, Table) else ():
                for cell in row:
                    assert cell in shown and cell in plain


@pytest.mark.parametrize("words, says", [
    (["strlen:x", "-c", 'strlen("a")'], "'strlen:x' is not a place in code"),
    (["nothing:0", "-c", 'strlen("a")'], "nothing"),
    (["strlen:1000", "-c", 'strlen("a")'], "strlen ends at offset"),
    (["strlen:0", "-c", 'strlen("a")', "--hit", "0"], "--hit must be a positive number"),
    (["strlen:0", "-c", 'strlen("a")', "--hit", "3"], "--hit 3: this call executes the"),
    (["strcmp:0", "-c", 'strlen("a")'], "this call executes the instruction only 0 times"),
    (["strlen:0", "-c", "strlen("], "strlen("),
    (["strlen:0", "-c", 'strlen("a")', "--html", "/nowhere/x.html"], "/nowhere"),
])
def test_invalid_requests_are_refused_with_one_line(words, says):
    refused(run("kinst", "explain", "-k", "teaching/amd64", *words), says)


def test_the_command_writes_text_json_or_a_page(tmp_path):
    words = ("kinst", "explain", "-k", "teaching/riscv64", "strlen:0", "-c", 'strlen("abc")')
    plain = run(*words)
    assert plain.returncode == 0 and "1. The instruction at strlen:0" in plain.stdout
    found = json.loads(run(*words, "--json").stdout)
    assert found["firing"]["rows"][0]["address"] == found["firing"]["address"]
    assert [step["name"] for step in found["steps"]][-1] == "after"
    path = tmp_path / "page.html"
    assert run(*words, "--html", str(path)).stdout == ""
    assert path.read_text().startswith("<!DOCTYPE html>")


def test_an_instruction_that_cannot_be_probed_is_refused():
    machine = machine_of("amd64")
    trap = TRAPS["amd64"]
    function, offset = next(
        (f, i.offset) for f in machine.image.symbols.functions() if f.size
        for i in instructions(trap, image_code(machine.image, f), f)
        if isinstance(i.verdict, Refuse))
    with pytest.raises(KinstError, match=rf"{function.name}:{offset}: cannot be probed: it "):
        FiringRecorder(machine, ChosenPlace(function, offset, 1))


def test_a_firing_is_explained_even_if_the_call_fails_later():
    done = run("kinst", "explain", "-k", "teaching/amd64", "panic:0", "-c", 'panic("x")')
    assert done.returncode == 0 and "The call failed later" in done.stdout


def test_undecodable_bytes_are_escaped_in_pages(tmp_path):
    path = tmp_path / "page.html"
    done = run("kinst", "explain", "-k", "teaching/arm64", "strlen:4", "-c", 'strlen("\udcff")',
               "--html", str(path))
    assert done.returncode == 0 and b"udcff" in path.read_bytes()
    done = run("kdtrace", "-k", "teaching/arm64", "-q", "-n", "fbt::strlen:", "-c",
               'strlen("\udcff")', "--report", str(path))
    assert done.returncode == 0 and b"udcff" in path.read_bytes()


def test_a_comparison_names_the_architecture_that_fails():
    words = ["kinst", "explain", "--arch", "all", "-c", 'strlen("a")']
    result = run(*words, "strlen:16")
    refused(result, "on riscv64, strlen:16: no instruction begins there; the nearest are at ")
    assert "on amd64 and arm64, it works" in result.stderr
    assert "sets an offset for each of amd64, arm64, riscv64" in result.stderr
    result = run(*words, "Xbpt:0")
    refused(result, "kinst: on amd64, Xbpt:0: --hit 1: this call executes the instruction only 0 "
            "times;")
    assert "arm64/kernel has no function 'Xbpt'" in result.stderr
    assert "; on riscv64, " in result.stderr
    result = run(*words, "strlen:x")  # this place fails on all architectures with the same message
    refused(result, "not a place in code")
    assert "riscv64" not in result.stderr


def test_an_impossible_quiz_question_names_its_architecture(monkeypatch, arch):
    monkeypatch.setattr("kinst_emu.learn.quiz.experiment.TRIES", 3)
    with pytest.raises(KinstError, match=f"for {arch}: no instruction in 3 functions"):
        Experimenter(machine_of(arch)).instruction(random.Random(1), "nothing")
