"""Tests that explained page faults and context switches match the recorded runs."""

import json
import re
import subprocess
import sys

import pytest

from emu.host.errors import KinstError
from images.boots import booted
from images.shell import with_userland
from kinst_emu.explain.record.context_switch import SwitchRecorder
from kinst_emu.explain.record.page_fault import FaultRecorder
from kinst_emu.explain.record.running import RunningThread
from kinst_emu.explain.steps.context_switch_steps import loading, saved
from kinst_emu.explain.steps.explained import CONTEXT_SWITCH, PAGE_FAULT, explain_way, words_of
from kinst_emu.explain.view.film import film
from kinst_emu.explain.view.pictures import way_pictures
from tests.conftest import ARCHES, real_kernel
from tests.kinst_emu.commands.test_commands import run
from tests.kinst_emu.explain.pictured import values_in, whole

MEMORY = 512 << 20
LIMIT = 4_000_000_000
LARGEST = 400 << 10
COMMAND = "cat /etc/motd"
SIZES = {"amd64": 16, "arm64": 16, "riscv64": 15}  # minimum number of saved general registers


@pytest.fixture(params=ARCHES, scope="module")
def kernel(request):
    return real_kernel(request.param)


@pytest.fixture
def machine(kernel):
    return booted(with_userland(kernel), MEMORY)


def operands(arch, row):
    """Compute, from an instruction's text and registers, the addresses that it may access.

    They include 32 bytes on each side of an operand, for pairs and pre-indexed addresses.
    """
    text = arch.disassemble(row.code, row.address)
    registers = dict(row.registers) | {f"e{name[1:]}": value & 0xFFFFFFFF
                                       for name, value in row.registers.items()}
    inside = re.search(r"\[(.*?)\]|(-?\w+)\((\w+)\)", text)
    if inside is None:  # a push or a string instruction
        places = [registers.get(name, 0) for name in (arch.sp, "rdi", "rsi")]
    elif inside.group(1) is not None:
        total = 0
        for sign, term in re.findall(r"([-+]?)\s*([^-+,]+)", inside.group(1)):
            value = 1
            for factor in re.split(r"\*", term.strip().removeprefix("#")):
                value *= registers.get(factor.strip(), None) if factor.strip() in registers else (
                    int(factor, 0) if re.fullmatch(r"-?(0x)?[0-9a-f]+", factor.strip()) else 0)
            total += -value if sign == "-" else value
        places = [total]
        if "rip" in inside.group(1):
            places.append(total + len(row.code))
    else:
        places = [registers[inside.group(3)] + int(inside.group(2), 0)]
    return {place + near & (1 << 64) - 1 for place in places for near in range(-32, 33)}


@pytest.mark.parametrize("hit", [1, 2])
def test_a_page_fault_returns_to_its_instruction_with_the_page_mapped(machine, hit):
    arch = machine.arch
    recorder = FaultRecorder(machine, COMMAND, hit, LIMIT, RunningThread(machine))
    seen = recorder.record()
    first, last = seen.entry.rows[0], seen.leaving.rows[-1]
    assert first.address == last.address and first.code == last.code
    # The program cannot see the fault: no general register has changed.
    same = {name: value for name, value in first.registers.items() if name != "pstate"}
    assert {name: last.registers[name] for name in same} == same
    need = {0: 0, 1: 0, 2: 1, 4: 0}[recorder.access & ~1 or recorder.access]
    before, after = recorder.before, recorder.after
    assert before is None or (need and not before.writable)
    assert after is not None and (after.writable or not need)
    # The recorded address is that of the operand, not that of its page, and is now mapped.
    assert arch.translate(machine, recorder.address) == after.physical
    if recorder.access & ~1 <= 2 and recorder.access != 4:
        assert recorder.address in operands(arch, first)
    # The fault occurs in user mode and enters the kernel at its vectors.  C code runs between the
    # assembly code on the way in and that on the way out.
    assert not first.address >> 63 and seen.entry.rows[1].address >> 63
    assert 0 < seen.entry.boundary < len(seen.entry.rows)
    assert 0 < seen.leaving.boundary < len(seen.leaving.rows) - 1


def test_the_trap_frame_of_a_fault_has_the_programs_registers(machine):
    recorder = FaultRecorder(machine, COMMAND, 1, LIMIT, RunningThread(machine))
    seen = recorder.record()
    first, layout = seen.entry.rows[0], machine.guest.traps.trap_frame.fields
    frame = {name: int.from_bytes(seen.before[at : at + size], "little")
            for name, (at, size) in layout.items()}
    names = [name for name in first.registers if name in frame]
    assert len(names) >= SIZES[machine.arch.name]
    assert {name: first.registers[name] for name in names if name != "rflags"} == {
        name: frame[name] for name in names if name != "rflags"}
    # The picture shows the same frame when the handler begins.
    words: dict[int, int] = {}
    for stored in seen.entry.stored[: seen.entry.boundary + 1]:
        words |= stored
    content = b"".join(words[at].to_bytes(8, "little") for at in sorted(words))
    assert content == seen.before


@pytest.mark.parametrize("hit", [1, 2, 5])
def test_a_context_switch_saves_the_old_threads_registers_and_loads_the_new_ones(machine, hit):
    recorder = SwitchRecorder(machine, COMMAND, hit, LIMIT, RunningThread(machine))
    seen = recorder.record()
    arch, first, last = machine.arch, seen.rows[0].registers, seen.rows[-1].registers
    kept = {at: word for words in seen.words for at, word in words.items()}
    link = arch.link or "rip"
    for name, at in seen.before.kept.items():
        if name in first and name not in (arch.pc, link, "gp", "tp"):
            assert kept[at] == first[name], name
            assert machine.read_u64(at) == first[name]
    for name, at in seen.after.kept.items():
        if name in last and name not in (arch.pc, arch.sp, link, "gp", "tp"):
            assert kept[at] == last[name], name
    assert last[arch.pc] == kept[seen.after.kept[arch.pc]]
    assert last[arch.sp] - kept[seen.after.kept[arch.sp]] in (0, 8)
    assert RunningThread(machine).address == seen.after.address != seen.before.address
    assert 0 < saved(seen) <= loading(seen) <= seen.loaded < len(seen.rows) - 1
    # The stacks contain the first and the last recorded instruction.
    words = words_of(machine.image)
    for stack, row in ((seen.before.stack, seen.rows[0]), (seen.after.stack, seen.rows[-1])):
        assert any(words.where(row.address) in line for line in stack[:3]), (stack[:3], row)
    assert {"amd64": 7, "arm64": 13, "riscv64": 14}[arch.name] <= len(seen.names)
    assert not {"gp", "tp"} & set(seen.names)


@pytest.mark.parametrize("command, hits", [("check memory", 6), ("check fault", 3)])
def test_faults_of_the_kernel_itself_are_not_counted(kernel, command, hits):
    """The kernel itself may fault when it creates programs or copies data to or from them."""
    for hit in range(1, hits + 1):
        machine = booted(with_userland(kernel), MEMORY)
        recorder = FaultRecorder(machine, command, hit, LIMIT, RunningThread(machine))
        try:
            seen = recorder.record()
        except KinstError as error:
            assert "too few " in str(error) or "with --hit" in str(error)
            assert hit > 1
            break
        first, last = seen.entry.rows[0], seen.leaving.rows[-1]
        assert not first.address >> 63 and first.address == last.address, hit
        assert first.code != machine.guest.programs.system_calls.instruction, hit
        assert recorder.after is not None and len(seen.leaving.rows) < 2000, hit


@pytest.mark.parametrize("name", ["open", "execve", PAGE_FAULT, CONTEXT_SWITCH])
def test_the_animation_matches_the_still_pictures_and_the_page_is_small(kernel, name, tmp_path):
    result = explain_way(kernel, name, COMMAND, 1, LIMIT, MEMORY)
    pictures = way_pictures(result)
    animation = film(pictures)
    values = values_in(animation.first)
    for number, change in enumerate(animation.changes):
        for place, string in zip(change[::2], change[1::2], strict=True):
            values[animation.places[place]] = animation.strings[string]
        if number % 7 == 0:
            assert values == values_in(whole(pictures, number))
    assert [step for _moment, step, _own in animation.steps] == [step.name for step in result.steps]
    numbers = [moment for moment, _step in pictures.steps]
    assert numbers == sorted(numbers) and numbers[-1] == len(pictures.moments) - 1
    path = tmp_path / "way.html"
    done = subprocess.run(
        [sys.executable, "-m", "kinst_emu.commands.kinst", "explain", "-k", str(kernel.path), name,
         "-c", f"$ {COMMAND}", "--html", str(path), "--json"], capture_output=True, text=True,
        timeout=300, check=True)
    assert path.stat().st_size < LARGEST and path.read_text().count("<svg") == len(result.steps) + 1
    assert [step["name"] for step in json.loads(done.stdout)["steps"]] == [
        step.name for step in result.steps]


@pytest.mark.parametrize("what", ["open", "page-fault"])
@pytest.mark.parametrize("arch", ARCHES)
def test_a_trap_frame_field_has_a_value_only_after_this_entry_has_stored_it(arch, what, tmp_path):
    """Before an entry stores a field, the field's word is part of an earlier entry's frame."""
    kernel, path = real_kernel(arch), tmp_path / "way.svg"
    unwritten = {}
    for at in ("2", "frame"):
        drawn = run("kinst", "explain", "-k", str(kernel.path), what, "-c", "$ cat /etc/motd",
                    "--svg", str(path), "--at", at)
        assert drawn.returncode == 0, drawn.stderr
        text = path.read_text()
        assert 'data-fields="' in text
        unwritten[at] = text.count("not written yet")
    assert unwritten["2"] > 10 and unwritten["frame"] < unwritten["2"] / 2, unwritten
