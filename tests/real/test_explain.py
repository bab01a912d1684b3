"""Tests that explanations of FreeBSD's instructions and system calls match the recorded runs."""

import json
import random
import subprocess
import sys
from collections import Counter

import pytest

from emu.host.errors import KinstError
from images.boots import booted
from kinst.relocation.trap import TRAPS
from kinst.relocation.verdict import summary
from kinst_emu.explain.record.chosen import ChosenPlace
from kinst_emu.explain.record.recorder import FiringRecorder
from kinst_emu.explain.steps.explained import words_of
from kinst_emu.explain.steps.firing_steps import steps
from kinst_emu.explain.steps.step import Table
from kinst_emu.explain.view.page import page
from kinst_emu.explain.view.text import text
from kinst_emu.learn.quiz.experiment import Experimenter
from tests.conftest import ARCHES, real_kernel

PAIRS = 100
MEMORY = 512 << 20
SEED = 15
LARGEST = 400 << 10  # maximum size of a page in bytes


def tables(step):
    return [part for part in step.parts if isinstance(part, Table)]


def missing(step, *wanted):
    """Return the wanted texts that a step's paragraphs and cells do not contain."""
    cells = {cell for table in tables(step) for row in table.rows for cell in row}
    words = " ".join(part for part in step.parts if isinstance(part, str))
    return [one for one in wanted if one not in cells and one not in words]


def check(firing, table, words):
    """Compare an explanation with the recorded firing, and return the explanation's steps."""
    arch, trap = words.arch, TRAPS[firing.architecture]
    explanation = steps(firing, table, words)
    by_name = {step.name: step for step in explanation}
    first, last = firing.rows[0], firing.rows[-1]
    instruction, code = firing.instruction, firing.instruction.code
    absent = missing(by_name["function"], f"{instruction.address:#x}", code.hex(" "),
                  arch.disassemble(code, instruction.address), summary(instruction.verdict))
    absent += missing(by_name["patch"], firing.original.hex(" "), firing.patched.hex(" "))
    absent += missing(by_name["exception"], f"{first.address:#x}", f"{firing.rows[1].address:#x}")
    frame = firing.frames[0]
    for name in trap.saved:
        offset, size = words.guest.traps.trap_frame.fields[name]
        value = int.from_bytes(frame.before[offset : offset + size], "little")
        absent += missing(by_name["exception"], f"{value:#x}")
    (vector,) = tables(by_name["vector"])
    assert [row[0] for row in vector.rows] == [
        words.where(row.address) for row in firing.rows[1 : frame.row]]
    (fields,) = tables(by_name["frame"])
    assert len(fields.rows) == len(words.guest.traps.trap_frame.fields)
    for name, (offset, size) in words.guest.traps.trap_frame.fields.items():
        before = int.from_bytes(frame.before[offset : offset + size], "little")
        row = next(row for row in fields.rows if row[1] == name)
        assert row[:3] == (f"{frame.address + offset:#x}", name, f"{before:#x}")
        if frame.after:
            after = int.from_bytes(frame.after[offset : offset + size], "little")
            assert row[3] == f"{after:#x}"
            assert (fields.rows.index(row) in fields.marked) == (after != before)
    absent += missing(by_name["lookup"], f"{frame.breakpoint:#x}")
    if firing.slot:
        rows = tables(by_name["trampoline"])[0].rows
        assert rows[0][0] == f"{firing.slot:#x}"
        content = bytes.fromhex("".join(row[1] for row in rows).replace(" ", ""))
        assert firing.trampoline.startswith(content) and len(content) > 0
    after, *pushed = tables(by_name["after"])
    for table in pushed:  # each table shows memory that an emulated instruction wrote
        assert not firing.slot
        (store,) = firing.memory.stores[len(firing.rows) - 1]
        (number,) = table.marked
        assert table.rows[number][0] == f"{store.address:#x}"
        assert table.rows[number][3] == f"{int.from_bytes(store.after, 'little'):#x}"
    assert [row[1:] for row in after.rows] == [
        (f"{value:#x}", f"{last.registers[name]:#x}") for name, value in first.registers.items()]
    assert {after.rows[n][0] for n in after.marked} == {
        name for name, value in first.registers.items() if last.registers[name] != value}
    assert not absent, absent
    return explanation


@pytest.mark.parametrize("arch", ARCHES)
def test_explanations_of_100_random_instructions_match_the_recording(arch):
    image = real_kernel(arch)
    machine = booted(image, MEMORY)
    experimenter, generator = Experimenter(machine), random.Random(SEED)
    words, kinds, largest = words_of(image), Counter(), 0
    verdicts = ["copy", "emulate"] + ["rewrite"] * (arch != "riscv64")
    while (done := sum(kinds[word] for word in verdicts)) < PAIRS:
        word = verdicts[done % len(verdicts)]
        function, instruction = experimenter.instruction(generator, word)
        experiment = experimenter.run(generator, function, instruction)
        if experiment is None:
            kinds[f"{word}, not to its end"] += 1
            assert kinds[f"{word}, not to its end"] < PAIRS // 10
            continue
        firing = experiment.firing
        explanation = check(firing, experiment.table, words)
        lines = list(text(explanation))
        assert all(f"{n}. {step.title}" in lines for n, step in enumerate(explanation, 1))
        largest = max(largest, len(page("title", "about", explanation).encode()))
        kinds[word] += 1
    assert set(verdicts) <= set(kinds) and largest < LARGEST, (kinds, largest)


@pytest.mark.parametrize("arch", ARCHES)
def test_a_refused_instruction_is_refused_with_the_reason(arch):
    image = real_kernel(arch)
    machine = booted(image, MEMORY)
    experimenter = Experimenter(machine)
    for seed in range(10):
        function, instruction = experimenter.instruction(random.Random(seed), "refuse")
        with pytest.raises(KinstError, match="cannot be probed") as error:
            FiringRecorder(machine, ChosenPlace(function, instruction.offset, 1))
        assert instruction.verdict.reason in str(error.value)
        assert f"{function.name}:{instruction.offset}" in str(error.value)


def explained(kernel, *words):
    done = subprocess.run([sys.executable, "-m", "kinst_emu.commands.kinst", "explain", "-k",
                           str(kernel.path), *words], capture_output=True, text=True, timeout=300)
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize("arch", ARCHES)
def test_a_system_call_is_explained_from_the_program_into_the_kernel_and_back(arch, tmp_path):
    """The numbers in the explanation agree with each other and with the output of a D program."""
    kernel, page_file = real_kernel(arch), tmp_path / "page.html"
    command = "$ cat /etc/motd /nothing"
    done = explained(kernel, "open", "-c", command, "--hit", "2", "--json", "--html",
                     str(page_file))
    assert done.returncode == 0, done.stderr
    chapter = {step["name"]: step for step in json.loads(done.stdout)["steps"]}
    assert list(chapter) == ["instruction", "exception", "entry", "frame", "dispatch", "work",
                           "result", "leaving", "after"]
    arguments, code = (part for part in chapter["instruction"]["parts"] if isinstance(part, dict))
    number, path = arguments["rows"][0][1], arguments["rows"][1][1]
    assert number == "0x5"
    (at,) = code["marked"]
    before, following = code["rows"][at][0], code["rows"][at + 1][0]
    frame = {row[1]: row[2] for row in chapter["frame"]["parts"][1]["rows"]}
    pc = {"amd64": "rip", "arm64": "elr", "riscv64": "sepc"}[arch]
    assert frame[pc] == following and path in frame.values()
    after = {row[0]: row[1:] for row in chapter["after"]["parts"][1]["rows"]}
    counter = {"amd64": "rip"}.get(arch, "pc")
    assert after[counter] == [before, following]
    result = {"amd64": "rax", "arm64": "x0", "riscv64": "a0"}[arch]
    assert after[result][1] == "0x2" and "the error number, 2" in chapter["after"]["parts"][0]
    assert "returns 2" in chapter["work"]["parts"][-1]
    assert "copyinstr" in str(chapter["work"]["parts"]) and "namei" in str(chapter["work"]["parts"])
    assert chapter["exception"]["title"] in page_file.read_text()
    # D sees the same path at the same call in a run without a recorder.
    traced = subprocess.run(
        [sys.executable, "-m", "kinst_emu.commands.kdtrace", "-k", str(kernel.path), "-qn",
         'fbt::sys_open:entry { printf("%x %s\\n", (uintptr_t)args[1]->path, execname); }',
         "-c", command], capture_output=True, text=True, timeout=300)
    paths = [line.split() for line in traced.stdout.splitlines() if line.endswith(" cat")]
    assert paths[1] == [path.removeprefix("0x"), "cat"]


@pytest.mark.parametrize("words, says", [
    (["strlen", "-c", "$ cat /etc/motd"], "not a system call of this kernel"),
    (["open", "-c", "$ cat /etc/motd", "--hit", "3"],
     "too few calls to sys_open in 'cat /etc/motd': 1"),
    (["open", "-c", "$ sleep 100", "--limit", "1000"],
     "occurrence 1 of the calls to sys_open was not reached"),
    (["open", "-c", "$ cat", "--what-if", "copy"], "works only when a probe"),
    (["page-fault", "-c", "$ sleep 1", "--hit", "9999"], "too few user-mode page faults in"),
    (["context-switch", "-c", "$ sleep 100", "--limit", "9"], "1 of the context switches"),
    (["open", "-c", "$ "], "a command must be one line"),
])
def test_a_system_call_that_cannot_be_explained_causes_a_one_line_error(words, says):
    done = explained(real_kernel("amd64"), *words)
    assert done.returncode == 1 and says in done.stderr and done.stderr.count("\n") == 1
