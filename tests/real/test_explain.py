"""Explanations of real kernels' instructions say what the machine recorded."""

import random
from collections import Counter

import pytest

from emu.errors import KinstError
from images.boots import booted
from kinst.code.verdict import summary
from kinst.trap import TRAPS
from kinst_emu.explain.explained import words_of
from kinst_emu.explain.page import page
from kinst_emu.explain.recorder import FiringRecorder
from kinst_emu.explain.steps import Table, steps
from kinst_emu.explain.text import text
from kinst_emu.quiz.experiment import Experimenter
from tests.conftest import ARCHES, real_kernel

PAIRS = 100
MEMORY = 512 << 20
SEED = 15
LARGEST = 400 << 10  # bytes of a page


def tables(step):
    return [part for part in step.parts if isinstance(part, Table)]


def told(step, *wanted):
    """Whether a step's paragraphs or cells have all of it."""
    cells = {cell for table in tables(step) for row in table.rows for cell in row}
    words = " ".join(part for part in step.parts if isinstance(part, str))
    return [one for one in wanted if one not in cells and one not in words]


def check(firing, table, words):
    """Hold what is told to what was recorded; the steps."""
    arch, trap = words.arch, TRAPS[firing.architecture]
    found = steps(firing, table, words)
    by_name = {step.name: step for step in found}
    first, last = firing.rows[0], firing.rows[-1]
    instruction, code = firing.instruction, firing.instruction.code
    absent = told(by_name["function"], f"{instruction.address:#x}", code.hex(" "),
                  arch.disassemble(code, instruction.address), summary(instruction.verdict))
    absent += told(by_name["patch"], firing.original.hex(" "), firing.patched.hex(" "))
    absent += told(by_name["exception"], f"{first.address:#x}", f"{firing.rows[1].address:#x}")
    frame = firing.frames[0]
    for name in trap.saved:
        offset, size = words.guest.trap_frame.fields[name]
        value = int.from_bytes(frame.before[offset : offset + size], "little")
        absent += told(by_name["exception"], f"{value:#x}")
    (vector,) = tables(by_name["vector"])
    assert [row[0] for row in vector.rows] == [
        words.where(row.address) for row in firing.rows[1 : frame.row]]
    (fields,) = tables(by_name["frame"])
    assert len(fields.rows) == len(words.guest.trap_frame.fields)
    for name, (offset, size) in words.guest.trap_frame.fields.items():
        before = int.from_bytes(frame.before[offset : offset + size], "little")
        row = next(row for row in fields.rows if row[1] == name)
        assert row[:3] == (f"{frame.address + offset:#x}", name, f"{before:#x}")
        if frame.after:
            after = int.from_bytes(frame.after[offset : offset + size], "little")
            assert row[3] == f"{after:#x}"
            assert (fields.rows.index(row) in fields.marked) == (after != before)
    absent += told(by_name["lookup"], f"{frame.breakpoint:#x}")
    if firing.slot:
        rows = tables(by_name["trampoline"])[0].rows
        assert rows[0][0] == f"{firing.slot:#x}"
        held = bytes.fromhex("".join(row[1] for row in rows).replace(" ", ""))
        assert firing.trampoline.startswith(held) and len(held) > 0
    (after,) = tables(by_name["after"])
    assert [row[1:] for row in after.rows] == [
        (f"{value:#x}", f"{last.registers[name]:#x}") for name, value in first.registers.items()]
    assert {after.rows[n][0] for n in after.marked} == {
        name for name, value in first.registers.items() if last.registers[name] != value}
    assert not absent, absent
    return found


@pytest.mark.parametrize("arch", ARCHES)
def test_100_seeded_instructions_are_told_as_they_were_recorded(arch):
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
        found = check(firing, experiment.table, words)
        lines = list(text(found))
        assert all(f"{n}. {step.title}" in lines for n, step in enumerate(found, 1))
        largest = max(largest, len(page("title", "about", found).encode()))
        kinds[word] += 1
    assert set(verdicts) <= set(kinds) and largest < LARGEST, (kinds, largest)


@pytest.mark.parametrize("arch", ARCHES)
def test_a_refused_instruction_is_refused_with_the_reason(arch):
    image = real_kernel(arch)
    machine = booted(image, MEMORY)
    experimenter = Experimenter(machine)
    for seed in range(10):
        function, instruction = experimenter.instruction(random.Random(seed), "refuse")
        with pytest.raises(KinstError, match="cannot be probed") as said:
            FiringRecorder(machine, function, instruction.offset)
        assert instruction.verdict.reason in str(said.value)
        assert f"{function.name}:{instruction.offset}" in str(said.value)
