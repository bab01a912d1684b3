"""Tests that the search for the last write to memory agrees with single-stepping."""

import random

import pytest

from emu.machine.machine import Until
from emu.replay import recording as recording_module
from emu.replay.inputs import ReplayError
from emu.replay.player import Player
from emu.replay.recording import Recorder, Recording
from emu.replay.starts import BOOT
from emu.replay.writes import last_write, physical_of
from emu.unicorn._watch import WriteWatch
from tests.emu.replay.test_recording import started, use

PAGE = 4096


@pytest.fixture
def recorded(image, tmp_path, monkeypatch):
    monkeypatch.setattr(recording_module, "MARK_EVERY", 2500)
    monkeypatch.setattr(recording_module, "FIRST", 5000)
    machine, path = started(image), tmp_path / "file.rec"
    with Recorder(machine, path, BOOT, "all of it"):
        use(machine)
    return path, machine


def changes(played, places):
    """Single-step a recording and return the changes to some words in time order.

    :return: by address, rows of (position, pc or None, old content, new content).
    """
    machine, found = played.machine, {place: [] for place in places}
    while not played.at_end:
        now = {place: machine.read_physical(place, 8) for place in places}
        before = played.position
        played.give()
        for place in places:
            content = machine.read_physical(place, 8)
            if content != now[place]:
                found[place].append((before, None, now[place], content))
                now[place] = content
        pc = machine.pc
        if played.run(Until(instructions=before.instructions + 1)) is None:
            break
        for place in places:
            content = machine.read_physical(place, 8)
            if content != now[place]:
                found[place].append((before, pc, now[place], content))
    return found


def test_the_last_writes_match_a_single_stepped_run(image, recorded):
    reference, played = (Player(Recording(recorded[0]), started(image)) for _ in range(2))
    view, base = recorded[1].memory_part.view, recorded[1].board.ram_base
    words = [base + at for first, count in recorded[1].memory_part.used()
             for at in range(first * PAGE, (first + count) * PAGE, 8)
             if view[at : at + 8] != reference.machine.memory_part.view[at : at + 8]]
    places = random.Random(4).sample(words, min(len(words), 15))
    known = changes(reference, places)
    assert any(len(rows) > 2 for rows in known.values())
    for place in places:
        before, rows = played.recording.last, list(known[place])
        for _ in range(300):
            found = last_write(played, place, 8, before)
            if found is None or not rows:
                break
            before = found.position
            assert played.position == before
            if found.new != found.old:
                assert rows.pop() == (before, found.pc, found.old, found.new)
        assert not rows
    played.advance_to_end()
    assert played.difference() == ""


def test_a_write_by_a_recorded_input_is_found(image, recorded):
    played = Player(Recording(recorded[0]), started(image))
    memory = [one for one in played.recording.inputs if one.kind == "memory"]
    assert memory
    one = memory[-1]
    played.seek(one.position.instructions + 1)
    found = last_write(played, int(one.name, 16), 1, played.position)
    assert (found.pc, found.position, found.new) == (None, one.position, one.value[:1])


def test_memory_that_was_never_written_has_no_last_write(image, recorded):
    played = Player(Recording(recorded[0]), started(image))
    code = physical_of_code(played, image)
    assert last_write(played, code, 4, played.recording.last) is None
    assert played.position == played.recording.start.position


def physical_of_code(played, image):
    played.advance_to_end()
    return physical_of(played, image.symbols.find("strlen").address)


@pytest.mark.parametrize("size, at", [(0, 0), (65, 0), (8, 4092)])
def test_invalid_ranges_are_refused(image, recorded, size, at):
    played = Player(Recording(recorded[0]), started(image))
    with pytest.raises(ReplayError, match="within one page"):
        last_write(played, played.machine.board.ram_base + at, size, played.recording.last)
    with pytest.raises(ReplayError, match="is not RAM"):
        last_write(played, (1 << 63) + 0x1000, 8, played.recording.last)


def test_misuse_of_a_write_watch_raises_errors(fresh):
    base = fresh.board.ram_base
    for physical, size in ((base, 0), (base, 65), (base + 4095, 2), (1 << 62, 8),
                           ((1 << 64) - 8, 8), (base + fresh.memory, 1)):
        with pytest.raises(ValueError):
            WriteWatch(fresh.engine, physical, size)
    with pytest.raises(RuntimeError):
        WriteWatch.__new__(WriteWatch).look()
    watch = WriteWatch(fresh.engine, base, 8)
    with pytest.raises(RuntimeError):
        watch.__init__(fresh.engine, base, 8)
    fresh.run(Until(instructions=1000))
    watch.look()
    watch.close()
    watch.close()
    del watch
    fresh.run(Until(instructions=2000))
