"""Tests of explained kernel paths: context switches, stored words and refused requests."""

import html
import re

import pytest

from images import catalog
from kinst_emu.explain.record.context_switch import SeenSwitch, SwitchedThread
from kinst_emu.explain.record.instruction import SeenInstruction
from kinst_emu.explain.record.kept_words import KeptWords
from kinst_emu.explain.steps.context_switch_steps import loading, saved, switch_steps
from kinst_emu.explain.steps.explained import words_of
from kinst_emu.explain.steps.step import Table
from kinst_emu.explain.steps.way import switch_way
from kinst_emu.explain.view.film import film
from kinst_emu.explain.view.pictures import Pictures
from kinst_emu.explain.view.way_picture import way_layout
from kinst_emu.explain.view.way_scenes import WayScenes
from tests.conftest import ARCHES
from tests.kinst_emu.commands.test_commands import refused, run
from tests.kinst_emu.explain.pictured import values_in, whole

OLD, NEW = 0x1000, 0x2000  # addresses of saved registers


def switch(arch):
    """Return a context switch with three stores, four instructions elsewhere, and two loads."""
    image = catalog.find(f"teaching/{arch}")
    words = words_of(image)
    function, elsewhere = image.symbols.find("cpu_switch"), image.symbols.find("strlen")
    names = (words.arch.sp, words.arch.pc)
    before = SwitchedThread(1, "one", "shell", 7, {name: OLD + 8 * n
                                                   for n, name in enumerate(names)}, ("f+0x1",))
    after = SwitchedThread(2, "two", "cat", 8, {name: NEW + 8 * n for n, name in enumerate(names)},
                           ("g+0x2",))
    seen = SeenSwitch(function, before, after)
    other = [elsewhere.address + 4 * n for n in range(4)]
    places = [*[function.address] * 4, *other, function.address, function.address, 0x5000]
    stacks = [0x100] * 9 + [0x900] * 2
    for number, (address, sp) in enumerate(zip(places, stacks, strict=True)):
        registers = dict.fromkeys(words.arch.registers, number) | {
            words.arch.sp: sp, words.arch.pc: address}
        seen.rows.append(SeenInstruction(address, b"", registers))
        seen.roots.append(0xA000 if number < 6 else 0xB000)
        seen.words.append({})
    seen.words[0] = {OLD: 1, OLD + 8: 2, NEW: 0x900, NEW + 8: 0x5000}
    seen.words[1], seen.words[3] = {OLD: 0x100}, {OLD + 8: 0x77}
    seen.loaded = 9
    return seen, words


@pytest.mark.parametrize("arch", ARCHES)
def test_the_recording_separates_three_parts_of_a_context_switch(arch):
    seen, words = switch(arch)
    assert (saved(seen), loading(seen)) == (3, 8)
    steps = switch_steps(seen, words)
    assert [step.name for step in steps] == ["call", "save", "space", "load", "after"]
    texts = [" ".join(part for part in step.parts if isinstance(part, str)) for step in steps]
    assert "0xa000" in texts[2] and "0xb000" in texts[2]
    assert steps[2].title == "The address space changes"
    assert "shell/one (process 7)" in texts[0] and "cat/two (process 8)" in texts[3]
    kept = [part for part in steps[1].parts if isinstance(part, Table)][-1]
    assert kept.rows == ((f"{OLD:#x}", words.arch.sp, "0x1", "0x100"),
                         (f"{OLD + 8:#x}", words.arch.pc, "0x2", "0x77"))
    assert kept.marked == {0, 1}


@pytest.mark.parametrize("arch", ARCHES)
def test_a_visit_to_another_function_is_one_moment_of_the_film(arch):
    seen, words = switch(arch)
    steps = switch_steps(seen, words)
    way = switch_way(seen, steps, words)
    pictures = Pictures(WayScenes(way, words), way_layout(way))
    assert [one.seen.address for one in pictures.moments] == [
        row.address for number, row in enumerate(seen.rows) if number not in (5, 6, 7)]
    found = film(pictures)
    values = values_in(found.first)
    for number, change in enumerate(found.changes):
        for place, string in zip(change[::2], change[1::2], strict=True):
            values[found.places[place]] = found.strings[string]
        assert values == values_in(whole(pictures, number))
    last = pictures.svg(len(pictures.moments) - 1)
    held = {int(at, 16): int(value, 16) for at, value in re.findall(
        r'data-address="(\w+)" data-value="(\w+)"', last)}
    assert held == {OLD: 0x100, OLD + 8: 0x77, NEW: 0x900, NEW + 8: 0x5000}
    step = pictures.svg(*next((at, one.name) for at, one in pictures.steps if one.name == "load"))
    assert 'class="pane about" data-pane="registers"' in step
    assert "load the saved registers of" in html.unescape(re.sub(r"<[^>]*>\s*", " ", step))


class Machine:
    """Stand-in for a machine that reports stores as Unicorn does."""

    def __init__(self, words):
        self.words, self.engine, self.uc = words, self, self

    def hook_add(self, _kind, called, begin, end):
        self.called = called
        return 1

    def unhook(self, hook):
        self.called = None

    def translate(self, address):
        return address + 0x70000

    def read_u64(self, address):
        return self.words[address]

    def stores(self, address, size):
        self.called(None, 0, address + 0x70000, size, 0, None)


def test_stored_words_are_reported_even_if_they_keep_their_value():
    machine = Machine({8: 1, 16: 2, 24: 3})
    kept = KeptWords(machine, [8, 16])
    assert kept.stored() == {8: 1, 16: 2}
    assert kept.stored() == {}
    machine.stores(20, 4)
    machine.stores(24, 8)
    assert kept.stored() == {16: 2}
    machine.words[8] = 5  # a store by the CPU itself, which Unicorn does not report
    assert kept.stored() == {8: 5}
    kept.again()
    assert kept.stored() == {8: 5, 16: 2}
    kept.close()
    assert machine.called is None


def test_impossible_requests_are_refused_with_one_line():
    explain = ["kinst", "explain", "-k", "teaching/amd64"]
    refused(run(*explain, "page-fault", "-c", "$ x"), "cannot run programs")
    refused(run(*explain, "context-switch", "-c", "$ x", "-n", "{ }"), "-n: works only when a")
