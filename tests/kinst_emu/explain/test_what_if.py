"""Tests that what-if explanations execute the mistake and report its real consequences."""

import json
import re

import pytest
import unicorn

from dtrace.calls.calls import Evaluation, parse
from emu.machine.call import Caller
from images import catalog
from images.boots import booted
from kinst.relocation.verdict import Copy, Rewrite
from kinst_emu.explain.record.chosen import ChosenPlace
from kinst_emu.explain.record.recorder import FiringRecorder
from kinst_emu.explain.steps.explained import Asked, explain
from kinst_emu.explain.steps.step import Table
from kinst_emu.explain.view.firing_moments import Station, moments
from kinst_emu.explain.view.firing_page import firing_page
from kinst_emu.explain.view.text import text
from tests.browser import CHROMIUM, Shown
from tests.conftest import ARCHES, MEMORY
from tests.kinst_emu.commands.test_commands import refused, run

CALL = 'strtoul(" -0x12zz", 0, 16)'
browsing = pytest.mark.skipif(CHROMIUM is None,
                              reason="Chromium is not installed: apt-get install chromium")


def last_step(explained):
    """Return the text of the last step in one line."""
    return " ".join(" ".join(text(explained.steps[-1:])).split())


def done_wrong(arch, place, how):
    return explain(catalog.find(f"teaching/{arch}"), Asked(place, CALL, what_if=how))


def offsets(arch, kind):
    """Return the offsets of strtoul's instructions whose verdict satisfies a predicate."""
    machine = booted(catalog.find(f"teaching/{arch}"), MEMORY)
    table = FiringRecorder(machine, ChosenPlace(machine.symbol("strtoul"), 0, 1)).table
    return [i.offset for i in table if kind(i.verdict)]


def test_a_copied_adr_computes_an_address_of_the_trampoline():
    (offset, *_rest) = offsets("arm64", lambda verdict: isinstance(verdict, Rewrite))
    explained = done_wrong("arm64", f"strtoul:{offset}", "copy")
    right, wrong = explained.firing, explained.wrong
    assert wrong.complete and wrong.rows[0].registers == right.rows[0].registers
    assert wrong.trampoline.startswith(right.instruction.code)
    different = {name for name, value in right.rows[-1].registers.items()
                 if wrong.rows[-1].registers[name] != value}
    (name,) = different
    moved = wrong.rows[-1].registers[name] - right.rows[-1].registers[name]
    assert moved % (1 << 64) == (wrong.slot - right.instruction.address) % (1 << 64)
    explanation = last_step(explained)
    assert explained.steps[-1].name == "what-if"
    assert f"{right.rows[-1].registers[name]:#x}" in explanation
    assert f"{wrong.rows[-1].registers[name]:#x}" in explanation


def test_a_copied_return_leaves_the_trampoline_unnoticed():
    emulated = offsets("amd64", lambda verdict: not isinstance(verdict, Copy | Rewrite))
    explained = done_wrong("amd64", f"strtoul:{emulated[-1]}", "copy")
    wrong = explained.wrong
    assert wrong.mistake.strayed and not wrong.complete
    assert wrong.rows[wrong.mistake.strayed].address == explained.firing.rows[-1].address


@pytest.mark.parametrize("arch", ARCHES)
def test_a_shared_trampoline_executes_the_instruction_of_another_probe(arch):
    explained = done_wrong(arch, "strtoul:0", "share")
    right, wrong = explained.firing, explained.wrong
    inside = [row for row in wrong.rows if wrong.slot <= row.address < wrong.slot + 32]
    assert inside[0].code != right.instruction.code
    if isinstance(wrong.mistake.other.verdict, Copy):
        assert inside[0].code == wrong.mistake.other.code
    assert wrong.rows[0].registers == right.rows[0].registers
    last = wrong.rows[wrong.mistake.strayed or -1]
    assert last.registers != right.rows[-1].registers
    explanation = last_step(explained)
    assert inside[0].code.hex(" ") in explanation and f"{wrong.slot:#x}" in explanation


def content(machine):
    return machine.read_physical(machine.ram_base, MEMORY)


@pytest.mark.parametrize(("place", "call"), [
    ("tail_even:23", "tail_even(4)"), ("audit:71", "audit(4)"), ("fibonacci:35", "fibonacci(4)")])
def test_the_memory_changed_by_a_copied_store_is_reported(place, call):
    image = catalog.find("teaching/amd64")
    explained = explain(image, Asked(place, call, what_if="copy"))
    right = explained.firing
    explanation = last_step(explained)
    assert "makes no difference" not in explanation
    # Compare with the memory before and after the instruction on a machine without probes.
    machine = booted(image, MEMORY)
    at = right.instruction.address
    truth = {}
    caller = Caller(machine, 100_000)

    def step(_uc, address, _size, _data):
        if address == at and not truth:
            truth["begun"] = content(machine)
        elif "begun" in truth and "left" not in truth:
            truth["left"] = content(machine)

    hook = machine.uc.hook_add(unicorn.UC_HOOK_CODE, step, begin=1, end=0)
    Evaluation(caller).run(parse(call))
    machine.engine.unhook(hook)
    begun, left = truth["begun"], truth["left"]
    stored = [n for n in range(0, len(begun), 8) if begun[n : n + 8] != left[n : n + 8]]
    (changed,) = stored
    (table,) = [part for part in explained.steps[-1].parts
                if isinstance(part, Table) and part.heads[0] == "address"]
    (row,) = [row for row in table.rows if row[1] != "the trampolines"]
    assert machine.translate(int(row[0], 16)) == machine.ram_base + changed
    assert int(row[2], 16) == int.from_bytes(begun[changed : changed + 8], "little")
    assert int(row[3], 16) == int.from_bytes(left[changed : changed + 8], "little")
    assert row[3] != row[4]
    page = firing_page(explained)
    if "rip" in explained.words.arch.disassemble(right.instruction.code, at):
        other = next(row for row in table.rows if row[1] == "the trampolines")
        text = page.replace('","', " ")  # join the text lines of the pictures
        assert f"leads to {other[0]} instead of {row[0]}" in text


@pytest.mark.parametrize(("arch", "place"), [("arm64", "uart_put:20"), ("riscv64", "uart_put:28")])
def test_a_store_to_a_device_is_explained_without_reading_the_device(arch, place):
    explained = explain(catalog.find(f"teaching/{arch}"), Asked(place, "uart_put(65)"))
    ((_address, size, value),) = explained.firing.memory.devices
    assert (size, value) in ((1, 65), (4, 65)) and not any(explained.firing.memory.stores.values())


@pytest.mark.parametrize(("place", "how", "said"), [
    ("strtoul:0", "copy", "copied unchanged anyway"), ("strlen:12", "share", "no trampoline")])
def test_a_what_if_without_any_effect_is_refused(place, how, said):
    refused(run("kinst", "explain", "-k", "teaching/arm64", place, "-c",
                CALL if place.startswith("strtoul") else 'strlen("hello")', "--what-if", how), said)


@pytest.mark.parametrize(("arch", "place", "how"), [
    ("amd64", "strtoul:25", "copy"), ("arm64", "strtoul:0", "share"),
    ("riscv64", "strtoul:0", "share")])
def test_the_page_shows_the_wrong_and_the_right_firing_side_by_side(arch, place, how):
    explained = done_wrong(arch, place, how)
    text = firing_page(explained)
    data = json.loads(re.search(r'id="film">(.*?)</script>', text).group(1))
    right, wrong = data["films"]
    assert len(wrong["changes"]) == len(moments(explained.wrong))
    assert len(right["changes"]) == len(moments(explained.firing))
    names = {name for _at, name, _own in wrong["steps"]}
    assert {"exception", "frame", "trampoline", "what-if"} <= names and "after" not in names
    # Up to the trampoline, both runs are the same.
    begin = next(at for at, name, _own in wrong["steps"] if name == "trampoline")
    assert [(one.row, one.pc, one.registers) for one in moments(explained.wrong)[:begin]] == [
        (one.row, one.pc, one.registers) for one in moments(explained.firing)[:begin]]


def test_the_place_of_a_strayed_run_is_shown():
    emulated = offsets("amd64", lambda verdict: not isinstance(verdict, Copy | Rewrite))
    explained = done_wrong("amd64", f"strtoul:{emulated[-1]}", "copy")
    assert moments(explained.wrong)[-1].place is Station.ELSEWHERE
    assert "elsewhere" in firing_page(explained)


@browsing
def test_differing_registers_are_visible_in_both_runs_at_their_steps(tmp_path):
    """The browser window has room for only a third of each picture."""
    path = tmp_path / "page.html"
    made = run("kinst", "explain", "-k", "teaching/amd64", "tail_even:23", "-c", "tail_even(4)",
               "--what-if", "copy", "--html", str(path))
    assert made.returncode == 0, made.stderr
    seen = """Array.from(document.querySelectorAll('#player svg.picture')).map(function (svg) {
      var one = svg.querySelector('[data-register=rflags]');
      var box = one.getBoundingClientRect(), all = svg.getBoundingClientRect();
      return [box.left >= all.left && box.right <= all.right && box.top >= all.top
              && box.bottom <= all.bottom, svg.dataset.view, one.dataset.value]; })"""
    with Shown(path, 1280) as page:
        for _ in range(30):  # more clicks than there are steps
            page.click("#next")
        assert "What if" in page.value("document.getElementById('player').textContent")
        found = page.value(seen)
        assert [one[:2] for one in found] == [[True, "machine"]] * 2
        assert found[0][2] != found[1][2]
