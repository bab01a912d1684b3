"""Tests that each picture shows the state that was recorded at its instruction."""

import random
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from emu.host.errors import KinstError
from images import catalog
from kinst.relocation.verdict import Refuse
from kinst_emu.explain.record.seen_firing import SeenFiring
from kinst_emu.explain.steps.explained import Asked, explain
from kinst_emu.explain.view.animation import write_animation
from kinst_emu.explain.view.firing_moments import Station, moments
from kinst_emu.explain.view.pictures import firing_pictures
from tests.conftest import MEMORY
from tests.kinst_emu.commands.test_front import refused, run

CALL = 'strtoul("-0x12zz", 0, 16)'
SVG = "{http://www.w3.org/2000/svg}"


def explained(arch, offset, clause=""):
    return explain(catalog.find(f"teaching/{arch}"),
                   Asked(f"strtoul:{offset}", CALL, clause=clause, memory=MEMORY))


def pictures_of(one, firing=None):
    return firing_pictures(firing or one.firing, one.table, one.words, one.steps)


def offsets(arch, count):
    """Return explanations of randomly chosen instructions that the call executes."""
    first = explained(arch, 0)
    reached, chosen = [], random.Random(7)
    for one in chosen.sample(first.table, len(first.table)):
        if isinstance(one.verdict, Refuse):
            continue
        try:
            reached.append(explained(arch, one.offset))
        except KinstError as error:
            assert "executes the instruction only 0 times" in str(error), error
        if len(reached) == count:
            break
    return reached


def drawn(svg):
    """Return the pc, registers, stack words and code bytes in a picture's data attributes."""
    root = ElementTree.fromstring(svg)
    groups = list(root.iter(f"{SVG}g"))
    registers = {g.get("data-register"): int(g.get("data-value"), 16) for g in groups
                 if g.get("data-register")}
    words = {int(g.get("data-address"), 16): int(g.get("data-value"), 16) for g in groups
             if g.get("class", "").startswith("word") and g.get("data-value")}
    code = {int(g.get("data-address"), 16): bytes.fromhex(g.get("data-bytes")) for g in groups
            if g.get("class", "").startswith("code") and g.get("data-address")}
    return int(root.get("data-pc"), 16), registers, words, code


def held_to_the_recording(firing: SeenFiring, svg, moment):
    """Assert that a picture agrees with the recording, and return the number of words compared.

    The recording has the registers of the row, the bytes at the stack pointer, and the trap frame
    that the handler received.
    """
    pc, registers, words, code = drawn(svg)
    frame = None if moment.handles is None else firing.frames[moment.handles]
    row = firing.rows[moment.row] if frame is None else frame.called
    assert (pc, registers) == (row.address, row.registers)
    stack = firing.memory.stacks[moment.row] if frame is None else frame.stack
    seen = 0
    for at in range(0, len(stack.content) - 7, 8):
        if stack.address + at in words:
            seen += 1
            assert words[stack.address + at] == int.from_bytes(stack.content[at : at + 8], "little")
    if frame is not None:
        for at in range(-frame.address % 8, len(frame.before) - 7, 8):
            assert words[frame.address + at] == int.from_bytes(frame.before[at : at + 8], "little")
            seen += 1
    at = firing.instruction.address
    assert code[at] == (firing.patched if moment.patched else firing.original)
    for executed in firing.rows:
        if firing.slot and moment.patched and (
                firing.slot <= executed.address < firing.slot + len(firing.trampoline)):
            assert code[executed.address] == executed.code
    return seen


def test_every_word_byte_and_register_agrees_with_the_recording(arch):
    places = set()
    for one in offsets(arch, 3):
        pictures, seen = pictures_of(one), 0
        for number, moment in enumerate(pictures.moments):
            seen += held_to_the_recording(one.firing, pictures.svg(number), moment)
            places.add(moment.place)
        assert seen > len(pictures.moments), "too few stack words were compared"
    assert {Station.FUNCTION, Station.VECTOR, Station.HANDLER} <= places


def test_trap_frame_words_appear_as_they_are_stored(arch):
    one = explained(arch, 0)
    frame, named = one.firing.frames[0], set()
    for moment in moments(one.firing):
        if moment.row >= frame.row or moment.handles is not None:
            break
        named |= {name for word in moment.stack if word.changed for name in word.fields}
    assert len(named) >= 8
    changed = [sum(word.changed for word in moment.stack) for moment in moments(one.firing)
               if 2 < moment.row < frame.row]
    assert max(changed) <= 2, "an instruction stores at most a pair of words"


def test_a_changed_recording_changes_the_picture(arch):
    one = explained(arch, 0)
    firing, pictures = one.firing, pictures_of(one)
    number = next(n for n, moment in enumerate(pictures.moments) if moment.handles == 0)
    right, row = pictures.svg(number - 1), pictures.moments[number - 1].row
    assert pictures_of(one, replace(firing)).svg(number - 1) == right
    name = one.words.arch.arguments[0]
    registers = {**firing.rows[row].registers, name: firing.rows[row].registers[name] ^ 1}
    rows = [*firing.rows]
    rows[row] = replace(rows[row], registers=registers)
    assert pictures_of(one, replace(firing, rows=rows)).svg(number - 1) != right
    at = next(at for at, found in firing.memory.words.items() if found and 0 < at <= row)
    words = {**firing.memory.words, at: {a: w ^ 1 for a, w in firing.memory.words[at].items()}}
    assert pictures_of(one, replace(
        firing, memory=replace(firing.memory, words=words))).svg(number - 1) != right
    assert pictures_of(one, replace(firing, patched=b"\xff" * len(firing.patched))
                       ).svg(number - 1) != right


def test_the_output_of_a_clause_appears_once_it_has_run(arch):
    one = explained(arch, 0, "{ trace(arg0); }")
    pictures = pictures_of(one)
    first = next(n for n, moment in enumerate(pictures.moments) if moment.handles == 0)
    for svg in (pictures.svg(first - 1), pictures.svg(first, "frame")):
        assert "trace(arg0)" in svg and "trace buffer:" not in svg
    assert "trace buffer:" in pictures.svg(first, "clause")
    assert "trace buffer:" in pictures.svg(first)
    assert "No D clause" in pictures_of(explained(arch, 0)).svg(first)


def test_a_picture_is_written_for_a_step_or_a_moment(tmp_path):
    path = tmp_path / "picture.svg"
    words = ("kinst", "explain", "-k", "teaching/arm64", "strlen:0", "-c", 'strlen("a<b&c")',
             "--memory", "64M", "--svg", str(path))
    ran = run(*words)
    assert ran.returncode == 0 and ran.stdout == "" and f"wrote {path}" in ran.stderr
    assert ElementTree.parse(path).getroot().get("data-place") == "handler"
    assert "The trap frame" in ElementTree.parse(path).getroot().get("aria-label")
    assert run(*words, "--at", "1").returncode == 0
    root = ElementTree.parse(path).getroot()
    assert root.get("data-moment") == "0" and root.find(f"{SVG}desc").text.startswith("Moment 1 of")
    before = path.read_bytes()
    refused(run(*words, "--at", "100000"), "no such moment; give a number from 1")
    refused(run(*words, "--at", "nowhere"), "no such step; give one of function, patch")
    refused(run(*words[:-2], "--at", "frame"), "--at: works only with --svg")
    refused(run(*words, "--steps"), "--steps: cannot be used with --svg")
    refused(run(*words, "--what-if", "share"), "--what-if: cannot be used with --svg")
    assert path.read_bytes() == before


@pytest.mark.parametrize("at", ["0", "-1", "1e3", "9" * 40])
def test_an_invalid_moment_is_refused_with_one_line(at, tmp_path):
    refused(run("kinst", "explain", "-k", "teaching/amd64", "strlen:0", "-c", 'strlen("a")',
                "--memory", "64M", "--svg", str(tmp_path / "x.svg"), f"--at={at}"), "--at")
    assert not (tmp_path / "x.svg").exists()


def test_an_animation_has_every_moment_and_shows_steps_longer(tmp_path):
    import PIL.Image
    import PIL.ImageSequence

    path = tmp_path / "firing.gif"
    words = ("kinst", "explain", "-k", "teaching/amd64", "strlen:0", "-c", 'strlen("a")',
             "--memory", "64M")
    pictures = pictures_of(explained("amd64", 0))
    del pictures.moments[8:]  # rendering a picture takes a quarter of a second
    pictures.scenes.steps = [one for one in pictures.steps if one[0] < 8]
    count = write_animation(pictures, path)
    with PIL.Image.open(path) as gif:
        times = [one.info["duration"] for one in PIL.ImageSequence.Iterator(gif)]
        assert gif.size == (1280, 720)
    assert len(times) == count == 8 and times[-1] == 5000
    assert {400, 2500} <= set(times) and times[0] == 2500
    refused(run(*words, "--gif", str(path), "--what-if", "share"),
            "--what-if: cannot be used with --gif")
    refused(run("kinst", "explain", "--arch", "all", "strlen:0", "-c", 'strlen("a")', "--gif",
                str(path)), "--gif: works with one kernel only")


def test_stale_words_on_another_stack_have_no_owner():
    found = pictures_of(explained("amd64-illumos", 0))
    assert all(not moment.owned(word.address) for moment in found.moments[-1:]
               for word in moment.stack)
    last = found.svg(len(found.moments) - 1)
    assert 'class="word below"' in last and 'class="word changed' not in last
    assert "Stored" not in found.scenes.scene(len(found.moments) - 1).about
    handled = next(n for n, moment in enumerate(found.moments) if moment.handles is not None)
    assert any(found.moments[handled].owned(word.address)
               for word in found.moments[handled].stack)


def test_a_clause_with_a_false_predicate_has_no_output(arch):
    found = pictures_of(explained(arch, 0, "/arg0 == 77777/ { trace(1); }"))
    nothing = ["no output" in found.scenes.clause(n)
               for n in range(len(found.moments))]
    handled = next(n for n, moment in enumerate(found.moments) if moment.handles is not None)
    assert nothing == [n >= handled for n in range(len(found.moments))]
