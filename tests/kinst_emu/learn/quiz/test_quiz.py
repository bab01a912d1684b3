"""Tests that QEMU and llvm-mc confirm the answers of quiz questions.

QEMU executes the instruction in place and takes the breakpoint; llvm-mc disassembles the
trampoline.
"""

import html
import itertools
import re
import shutil
import subprocess

import pytest

from emu.host.errors import KinstError
from emu.qemu.machine import QemuMachine
from images import catalog
from images.boots import booted
from kinst.relocation.trap import TRAPS
from kinst.relocation.verdict import summary
from kinst_emu.explain.record.chosen import ChosenPlace
from kinst_emu.explain.record.recorder import FiringRecorder
from kinst_emu.learn.quiz.marking import mark
from kinst_emu.learn.quiz.questions import TURN, questions
from kinst_emu.learn.quiz.sheet import sheet
from tests.conftest import ARCHES, MEMORY
from tests.kinst_emu.commands.test_commands import refused, run

COUNT = 200  # number of questions for each teaching kernel, and for each level on a real kernel
TRIPLES = {"amd64": "x86_64", "arm64": "aarch64", "riscv64": "riscv64"}
BACK = {"amd64": "jmp", "arm64": "brk", "riscv64": "ebreak"}
SAVED_PC = {"arm64": "elr_el1", "riscv64": "sepc"}
NAMES = ("llvm-mc", *(f"llvm-mc-{n}" for n in range(22, 13, -1)))
MC = next(filter(None, map(shutil.which, NAMES)), None)


def asked(image, count, seed, level=None):
    machine = booted(image, MEMORY)
    return machine, list(itertools.islice(questions(machine, seed, level), count))


@pytest.fixture(scope="module", params=ARCHES)
def teaching(request):
    return asked(catalog.find(f"teaching/{request.param}"), COUNT, 7)


def placed(other, question):
    """Prepare QEMU to execute a question's instruction next."""
    for name, value in question.experiment.registers.items():
        if name not in ("zero", other.arch.pc) and other.knows(name):
            other.write_register(name, value)
    other.pc = question.experiment.instruction.address


def saved_pc(other, arch):
    """Return the pc that the CPU saved before it entered its vector."""
    if arch == "amd64":
        return other.read_u64(other.sp)
    return other.read_register(SAVED_PC[arch])


def checked_by_qemu(machine, found):
    """Check answers of levels 2, 4 and 5 with QEMU; return (number of answers, wrong answers)."""
    arch = machine.arch.name
    wrong, seen = [], 0
    with QemuMachine.carry(machine) as other:
        for question in found:
            one = question.experiment
            if question.level not in (2, 4, 5):
                continue
            seen += 1
            placed(other, question)
            if question.level == 2:
                code = TRAPS[arch].breakpoint(len(one.instruction.code))
                kept = other.read(one.instruction.address, len(code))
                other.write_code(one.instruction.address, code)
                other.step()
                answer = saved_pc(other, arch)
                other.write_code(one.instruction.address, kept)
            else:
                other.step()
                register = machine.arch.pc
                if question.level == 5:
                    register = re.search(r"What is (\w+) where", question.text[-1]).group(1)
                answer = other.read_register(register)
            if answer != question.answer:
                wrong.append((question.text, question.shown, hex(answer)))
    return seen, wrong


def check_levels(machine, found):
    kinds = {question.level for question in found}
    assert kinds == set(TURN)
    for question in found:
        one = question.experiment
        if question.level == 1 and one is not None:
            assert question.answer == summary(one.instruction.verdict)
        elif question.level == 1:
            name, offset = re.match(r"(\S+):(\d+), at", question.text[0]).groups()
            with pytest.raises(KinstError, match="cannot be probed"):
                place = int(re.search(r"at (0x[0-9a-f]+):", question.text[0])[1], 0) - int(offset)
                FiringRecorder(machine, ChosenPlace(next(
                    f for f in machine.image.symbols.named(name) if f.address == place),
                    int(offset), 1))
    seen, wrong = checked_by_qemu(machine, found)
    assert seen >= COUNT // 2 and not wrong, wrong[:3]


@pytest.mark.skipif(shutil.which("qemu-system-x86_64") is None, reason="QEMU is not installed")
def test_qemu_confirms_the_answers_on_the_teaching_kernels(teaching):
    check_levels(*teaching)


def by_llvm(arch, code):
    """Return llvm-mc's disassembly of an instruction."""
    text = subprocess.run(
        [MC, "--disassemble", f"--triple={TRIPLES[arch]}", "--output-asm-variant=1"],
        input=" ".join(f"0x{b:02x}" for b in code), capture_output=True, text=True, check=True,
        timeout=60).stdout
    return text


def check_displacements(machine, found):
    arch, seen = machine.arch.name, 0
    for question in found:
        one = question.experiment
        if question.level != 3:
            continue
        verdict, firing = one.instruction.verdict, one.firing
        seen += 1
        code = one.instruction.code
        if question.kind == "end":  # the answer is the address of the final jump or breakpoint
            behind = firing.trampoline[question.answer - firing.slot :]
            length = machine.arch.instruction_length(behind)
            assert BACK[arch] in by_llvm(arch, behind[:length]), question
            continue
        if question.kind == "word":  # the trampoline begins with the same instruction
            word = question.answer.to_bytes(4, "little")
            assert by_llvm(arch, word[: len(code)]) == by_llvm(arch, code)
            continue
        if question.kind == "target":  # a jump of 6 bytes to the address after the instruction
            assert question.answer == one.instruction.address + len(code)
            assert len(by_llvm(arch, code).strip().splitlines()) == 2
            continue
        if verdict.displacement is None:
            # The rewritten instruction loads the constant into a register.
            assert question.answer in one.after.values() or len(verdict.data) != 8
            continue
        size, at = len(verdict.code), verdict.displacement[0]
        displaced = firing.trampoline[:size]
        own, other = (re.search(r"\[rip ([+-]) (0x[0-9a-f]+|\d+)\]|(-?\d+)$", t.strip())
                      for t in (by_llvm(arch, one.instruction.code), by_llvm(arch, displaced)))
        assert own and other, (by_llvm(arch, one.instruction.code), by_llvm(arch, displaced))

        def distance(match):
            if match.group(3):
                return int(match.group(3), 0)
            return int(match.group(2), 0) * (1 if match.group(1) == "+" else -1)

        target = one.instruction.address + size + distance(own)
        assert firing.slot + size + distance(other) == target
        assert distance(other) & 0xFFFFFFFF == question.answer
        assert displaced[at : at + 4] == question.answer.to_bytes(4, "little")
    return seen


@pytest.mark.skipif(MC is None, reason="llvm-mc is not installed: apt-get install llvm")
def test_llvm_confirms_trampoline_answers_on_the_teaching_kernels(teaching):
    assert check_displacements(*teaching)


@pytest.mark.parametrize("arch", ARCHES)
def test_equal_seeds_ask_equal_questions(arch):
    image = catalog.find(f"teaching/{arch}")
    texts = [[q.text for q in asked(image, 10, seed)[1]] for seed in (3, 3, 4)]
    assert texts[0] == texts[1] != texts[2]


def test_right_answers_are_accepted_in_any_spelling(teaching):
    _machine, found = teaching
    for question in found[:50]:
        spelled = [question.shown]
        if isinstance(question.answer, int):
            spelled += [str(question.answer), question.shown.upper().replace("X", "x")]
            if question.answer >> question.bits - 1:
                spelled.append(str(question.answer - (1 << question.bits)))
            assert not mark(question, hex(question.answer + (1 << question.bits))).right
        else:
            spelled += [question.answer[:3], question.answer.upper()]
        assert all(mark(question, text).right for text in spelled), (question, spelled)
        for other, why in question.mistakes.items():
            marked = mark(question, other if isinstance(other, str) else hex(other))
            assert not marked.right and why in marked.said and question.shown in marked.said
        for none in ("", "pear", "0xg", "re", "1.5", "9" * 500):
            marked = mark(question, none)
            assert not marked.right and question.shown in marked.said


def test_a_sheet_has_questions_followed_by_answers(teaching):
    _machine, found = teaching
    page = sheet("<Title>", "about", found[:10])
    questions_part, answers = map(html.unescape, page.split('<section class="answers"'))
    for question in found[:10]:
        assert all(line in questions_part for line in question.text)
        assert question.why in answers
    assert "&lt;Title&gt;" in page and "<script" not in page


def test_the_command_asks_questions_and_counts_right_answers():
    _machine, found = asked(catalog.find("teaching/riscv64"), 3, 5)
    given = [found[0].shown, "1", found[2].shown]
    done = run("kinst", "quiz", "--arch", "riscv64", "--questions", "3", "--seed", "5",
               stdin="\n".join(given) + "\n")
    assert done.returncode == 0 and "2 of 3 right" in done.stdout and "3/3" in done.stdout
    assert "0 of 0 right" in run("kinst", "quiz", "--arch", "arm64", stdin="").stdout


@pytest.mark.parametrize(("options", "said"), [
    (["--level", "7"], "must be 1 to 6"), (["--questions", "0"], "--questions"),
    (["--sheet", "2000"], "1000"), (["--html", "x.html"], "--sheet"),
    (["--arch", "arm64", "-k", "teaching/arm64"], "-k"), (["--seed", "x"], "--seed"),
    (["--sheet", "2", "--questions", "2"], "--questions")])
def test_invalid_options_are_refused_with_one_line(options, said):
    refused(run("kinst", "quiz", *options), said)
