"""Tests of recordings of the teaching kernels: replay, seeking and truncated files."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emu.host.errors import KinstError, MachineError
from emu.machine.call import Caller
from emu.machine.machine import StopReason, Until
from emu.replay import recording as recording_module
from emu.replay.inputs import MEMORY as TO_MEMORY
from emu.replay.inputs import (
    TYPE,
    Input,
    Position,
    ReplayError,
    position_from_json,
    position_to_json,
)
from emu.replay.parts import FORMAT, HEAD, MAX_ROW, PartReader
from emu.replay.player import Player
from emu.replay.recording import Recorder, Recording, _start_from_json, _start_to_json
from emu.replay.starts import BOOT, PLACED, STATE
from emu.unicorn.machine import UnicornMachine
from images import catalog
from images.boots import boot_to_prompt
from kinst.probes.breakpoints import DIRECT, GUEST, Breakpoints
from kinst.providers.kinst_provider import create
from tests.conftest import MEMORY


def started(image):
    machine = UnicornMachine(image, MEMORY)
    machine.boot()
    return machine


@pytest.fixture
def short(monkeypatch):
    """Shorten the intervals between marks and between checkpoints to suit short runs."""
    monkeypatch.setattr(recording_module, "MARK_EVERY", 3000)
    monkeypatch.setattr(recording_module, "FIRST", 5000)


def use(machine):
    """Boot the machine, type keys, call functions and write memory."""
    boot_to_prompt(machine)
    machine.type(b"strings\r")
    machine.run(Until(console="teaching> "))
    caller = Caller(machine)
    text = caller.place(b"some text\0")
    assert caller.call_symbol(machine.symbol("strlen"), [text]) == 9
    machine.write(text, b"end\0")
    assert caller.call_symbol(machine.symbol("strlen"), [text]) == 3
    machine.type(b"x")
    machine.run(Until(instructions=machine.instructions + 500))


@pytest.fixture
def recorded(image, short, tmp_path):
    """Record a run and return (path of the recording, machine at the end of the run)."""
    machine, path = started(image), tmp_path / "file.rec"
    with Recorder(machine, path, BOOT, "all of it"):
        use(machine)
    return path, machine


def player(path, image):
    return Player(Recording(path), started(image))


def test_recording_does_not_change_a_run(image, recorded):
    plain = started(image)
    use(plain)
    assert recorded[1].digest() == plain.digest()


def test_replay_ends_in_the_recorded_state(image, recorded):
    played = player(recorded[0], image)
    assert played.advance_to_end() is None
    assert played.at_end and played.difference() == ""
    assert played.machine.digest() == recorded[1].digest()
    played.machine.write_physical(played.machine.board.ram_base, b"changed")
    assert "recorded" in played.difference()


def test_replay_can_seek_between_any_two_positions(image, recorded):
    played, reference = player(recorded[0], image), player(recorded[0], image)
    assert played.recording.checkpoints
    choose = random.Random(3)
    places = [choose.randrange(played.recording.last.instructions) for _ in range(12)]
    known = {}
    for place in sorted(places):
        reference.seek(place)
        known[place] = reference.position, reference.machine.digest()
    for place in places:
        assert played.seek(place) is None
        assert (played.position, played.machine.digest()) == known[place]
        played.seek(played.position.instructions - 1)
        assert played.position.instructions == place - 1
        played.seek(known[place][0])
        assert played.machine.digest() == known[place][1]
    played.advance_to_end()
    assert played.difference() == ""


@pytest.mark.parametrize("path", [GUEST, DIRECT])
def test_probes_do_not_change_a_replay(image, recorded, path):
    played = player(recorded[0], image)
    played.run(Until(addresses=[image.symbols.find("machine_thread").address]))
    breakpoints = Breakpoints(played.machine, path=path)
    create(breakpoints, "strlen", "")
    breakpoints.enable()
    played.advance_to_end()
    breakpoints.disable()
    assert played.difference() == "" and breakpoints.dispatcher.probe(0)[4] >= 2


def test_replay_stops_at_injected_calls(image, recorded):
    played = player(recorded[0], image)
    address = image.symbols.find("strlen").address
    seen = []
    while (stop := played.run(Until(addresses=[address]))) is not None:
        assert stop.reason is StopReason.ADDRESS and played.machine.pc == address
        seen.append(played.position)
    assert len(seen) == len(set(seen)) >= 2 and played.at_end


def test_replay_stops_at_instruction_counts_times_and_console_text(image, recorded):
    played = player(recorded[0], image)
    assert played.run(Until(instructions=1234)).reason is StopReason.INSTRUCTIONS
    assert played.position.instructions == 1234
    time = played.recording.last.time // 2
    assert played.seek_time(time) is None
    assert played.position.time >= time
    played.seek_time(time // 2)
    assert time // 2 <= played.position.time < time
    assert played.run(Until(console="teaching> ")).reason is StopReason.CONSOLE


@pytest.mark.parametrize("place", [-1, 1 << 40])
def test_seeking_outside_the_recording_is_refused(image, recorded, place):
    played = player(recorded[0], image)
    with pytest.raises(ReplayError, match=r"before the start|after the end"):
        played.seek(place)
    with pytest.raises(ReplayError, match="virtual time"):
        played.seek_time(1 << 62)


def test_a_recording_can_start_from_a_saved_state(image, booted, short, tmp_path):
    path = tmp_path / "file.rec"
    booted.type(b"stri")
    booted.run(Until(instructions=booted.instructions + 777))
    with Recorder(booted, path, STATE, "keys"):
        booted.type(b"ngs\r")
        booted.run(Until(console="teaching> "))
    played = Player(Recording(path), UnicornMachine(image, MEMORY))
    played.advance_to_end()
    assert played.machine.digest() == booted.digest()
    played.seek(played.recording.start.position)
    played.advance_to_end()
    assert played.difference() == ""


def test_calls_in_an_unbooted_image_are_recorded(image, tmp_path):
    machine, path = UnicornMachine(image, MEMORY), tmp_path / "file.rec"
    machine.place_image()
    with Recorder(machine, path, PLACED, "a call"):
        Caller(machine).call_symbol(machine.symbol("fibonacci"), [6])
    again = UnicornMachine(image, MEMORY)
    again.place_image()
    played = Player(Recording(path), again)
    played.advance_to_end()
    assert played.difference() == ""


def test_calls_on_a_waiting_cpu_are_recorded(image, tmp_path):
    machine, path = started(image), tmp_path / "file.rec"
    boot_to_prompt(machine)
    with Recorder(machine, path, STATE, "calls"):
        for _ in range(2):
            for _ in range(200):
                machine.run(Until(time=machine.now + 100_000))
                if machine.waiting:
                    break
            pc = machine.pc
            machine.pc = pc + 4
            machine.pc = pc
            caller = Caller(machine)
            assert caller.call_symbol(machine.symbol("strlen"), [caller.place(b"four\0")]) == 4
            machine.type(b"strings\r")
            machine.run(Until(console="teaching> "))
    played = Player(Recording(path), UnicornMachine(image, MEMORY))
    played.advance_to_end()
    assert played.difference() == "" and played.machine.digest() == machine.digest()


def test_keys_typed_at_a_function_entry_do_not_replay_it_twice(image, tmp_path):
    machine, path = started(image), tmp_path / "file.rec"
    address = image.symbols.find("strlen").address
    with Recorder(machine, path, BOOT, "keys"):
        boot_to_prompt(machine)
        machine.type(b"strings\r")
        machine.run(Until(addresses=[address]))
        machine.type(b"x")
        machine.run(Until(console="teaching> "))
    played, seen = player(path, image), set()
    while played.run(Until(addresses=[address])) is not None:
        assert played.position not in seen
        seen.add(played.position)
    assert seen and played.difference() == ""


def test_keys_typed_by_a_handler_are_refused(image, tmp_path):
    machine = started(image)
    boot_to_prompt(machine)
    with Recorder(machine, tmp_path / "file.rec", STATE, ""):
        machine.handle(image.symbols.find("strlen").address, lambda: machine.type(b"z"))
        machine.type(b"strings\r")
        with pytest.raises(MachineError, match="type keys only while"):
            machine.run(Until(console="teaching> "))


def test_an_interrupted_run_is_recorded_up_to_its_last_mark(image, short, tmp_path):
    machine, path = started(image), tmp_path / "file.rec"

    def trouble():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Recorder(machine, path, BOOT, ""):
        machine.run(Until(instructions=7000))
        machine.handle(image.symbols.find("strlen").address, trouble)
        machine.run(Until(instructions=7100))
        machine.type(b"strings\r")
        machine.run(Until(console="nothing"))
    found = Recording(path)
    assert found.end is None and found.problem == "the file is truncated"
    Player(found, started(image)).advance_to_end()


def test_a_full_disk_is_reported_at_once(image, short, tmp_path, monkeypatch):
    machine, path = started(image), tmp_path / "file.rec"
    recorder = Recorder(machine, path, BOOT, "")
    size = path.stat().st_size
    monkeypatch.setattr("emu.replay.parts.os.write", full)
    with pytest.raises(ReplayError, match="No space left"):
        boot_to_prompt(machine)
    with pytest.raises(ReplayError, match="No space left"):
        recorder.end()
    assert recorder.size == size == path.stat().st_size


def full(_file, _data):
    raise OSError(28, "No space left on device")


# -- truncated, damaged and foreign files ---------------------------------------------------------


def test_a_truncated_recording_replays_as_far_as_it_goes(image, recorded, tmp_path):
    whole = recorded[0].read_bytes()
    borders = [end for _kind, _begin, end in PartReader(recorded[0]).parts]
    choose = random.Random(5)
    cut = tmp_path / "cut.rec"
    played_to = set()
    for at in [*borders[:-1], *(choose.randrange(borders[0], len(whole)) for _ in range(20))]:
        cut.write_bytes(whole[:at])
        found = Recording(cut)
        assert found.end is None and found.problem == "the file is truncated"
        if found.last in played_to:
            continue
        played_to.add(found.last)
        played = Player(found, started(image))
        assert played.advance_to_end() is None and played.position == found.last
    assert len(played_to) > 4


def test_a_recording_can_be_replayed_while_it_is_written(image, short, tmp_path):
    machine, path = started(image), tmp_path / "file.rec"
    with Recorder(machine, path, BOOT, "half of it"):
        machine.run(Until(instructions=10_000))
        found = Recording(path)
        assert found.problem and found.last.instructions == 9000
        played = Player(found, started(image))
        played.advance_to_end()
        assert played.position.instructions == 9000


@pytest.mark.parametrize("content, says", [
    (b"", "is empty"), (b"KINSTREC", "not a recording"), (b"x" * 100, "not a recording"),
    (HEAD.pack(b"KINSTREC", 99), "format 99"), (HEAD.pack(b"KINSTREC", FORMAT), "first part"),
    (HEAD.pack(b"KINSTREC", FORMAT) + b"STRT" + bytes(40), ": the file is truncated|damaged"),
])
def test_a_file_that_is_not_a_recording_is_refused(tmp_path, content, says):
    path = tmp_path / "file.rec"
    path.write_bytes(content)
    with pytest.raises(ReplayError, match=says):
        Recording(path)


def test_missing_files_and_directories_are_reported(tmp_path):
    with pytest.raises(ReplayError, match="cannot be read"):
        Recording(tmp_path / "file.rec")
    with pytest.raises(ReplayError, match="cannot be written"):
        Recorder(started(catalog.find("teaching/amd64")), tmp_path / "no" / "file.rec", BOOT, "")


def test_a_changed_byte_is_detected(image, recorded):
    whole = bytearray(recorded[0].read_bytes())
    borders = [end for _kind, _begin, end in PartReader(recorded[0]).parts]
    whole[borders[3] + 40] ^= 1
    recorded[0].write_bytes(whole)
    found = Recording(recorded[0])
    assert "damaged" in found.problem and found.end is None
    Player(found, started(image)).advance_to_end()


def test_reordered_parts_are_detected(recorded):
    whole = recorded[0].read_bytes()
    parts = PartReader(recorded[0]).parts
    (_k, _b, first), (_k, _b, second), (_k, _b, third) = parts[1], parts[2], parts[3]
    recorded[0].write_bytes(whole[:first] + whole[second:third] + whole[first:second]
                            + whole[third:])
    assert "damaged" in Recording(recorded[0]).problem


def written(path, *parts):
    """Write a recording file that consists of the given parts, whose contents need not be valid."""
    from emu.replay.parts import PartWriter

    writer = PartWriter(path, [(b"STRT", parts[0])])
    for kind, content in parts[1:]:
        writer.write(kind, content)
    writer.close()
    return path


START = {"kind": "boot", "architecture": "amd64", "build_id": "1", "memory": 64 << 20,
         "workload": "", "digest": None, "position": [0, 0, True]}


@pytest.mark.parametrize("start, parts", [
    ([], []), ({**START, "kind": "x"}, []), ({**START, "position": [0]}, []),
    ({**START, "memory": "1"}, []), (START, [(b"WHAT", b"[]")]), (START, [(b"MARK", b"{}")]),
    (START, [(b"INPT", b"[[%d, 1, true, \"type\", \"\", \"\"]]" % 10**30)]),
    ({**START, "build_id": "\x1b[31m"}, []), ({**START, "kernel": 1}, []),
    ({**START, "kernel": "k" * 4097}, []),
    (START, [(b"INPT", b"[[1, 1, true, \"memory\", \"-5\", \"\"]]")]),
    (START, [(b"INPT", b"[[1, 1, true, \"memory\", \"%s\", \"\"]]" % (b"f" * 17))]),
    (START, [(b"MARK", b"[1, 2]")]), (START, [(b"MARK", b"[-1, 2, true]")]),
    (START, [(b"MARK", b"[5, 5, true]"), (b"MARK", b"[4, 4, true]")]),
    (START, [(b"INPT", b"[[1, 1, true, \"memory\", \"x\", \"\"]]")]),
    (START, [(b"INPT", b"[[1, 1, true, \"keys\", \"\", \"\"]]")]), (START, [(b"INPT", b"[1")]),
    (START, [(b"CHCK", b"")]), (START, [(b"CHCK", b"\xff\xff\xff\xff{}")]),
    (START, [(b"DONE", b"[]")]),
    (START, [(b"DONE", b'{"position": [1, 1, true], "stop": "", "digest": null}'),
             (b"MARK", b"[2, 2, true]")]),
])
def test_parts_with_invalid_content_are_refused(tmp_path, start, parts):
    path = written(tmp_path / "file.rec", json.dumps(start).encode(), *parts)
    with pytest.raises(ReplayError, match="damaged"):
        Recording(path)


@pytest.mark.parametrize("head", [
    {}, {"position": [0, 0, True], "pages": [1 << 40], "state": {}},
    {"position": [0, 0, True], "pages": [], "state": {"cpu": {}}}])
def test_a_checkpoint_with_invalid_content_is_refused(tmp_path, head):
    text = json.dumps({"position": [0, 0, True], **head}).encode()
    path = written(tmp_path / "file.rec", json.dumps(START).encode(),
                   (b"CHCK", len(text).to_bytes(4, "little") + text))
    with pytest.raises(ReplayError, match="damaged"):
        Recording(path).checkpoint(0)


def test_a_part_that_expands_too_much_is_refused(tmp_path):
    path = written(tmp_path / "file.rec", json.dumps({**START, "workload": "x" * MAX_ROW}).encode())
    with pytest.raises(ReplayError, match="damaged"):
        Recording(path)


@settings(max_examples=60)
@given(st.data())
def test_arbitrary_parts_are_read_or_refused(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("any") / "file.rec"
    content = data.draw(st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
            st.sampled_from(["position", "pages", "state", "stop", "digest"]), inner, max_size=5)))
    kind = data.draw(st.sampled_from([b"INPT", b"MARK", b"CHCK", b"DONE"]))
    raw = json.dumps(content).encode()
    if kind == b"CHCK":
        raw = len(raw).to_bytes(4, "little") + raw
    written(path, json.dumps(START).encode(), (kind, raw))
    whole = bytearray(path.read_bytes())
    for at in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=3)):
        whole[at] ^= data.draw(st.integers(0, 255))
    path.write_bytes(whole)
    try:
        found = Recording(path)
        for number in range(len(found.checkpoints)):
            found.checkpoint(number)
    except ReplayError:
        pass


def test_a_recording_of_another_kernel_or_memory_size_is_refused(image, recorded):
    other = catalog.find("teaching/amd64" if "amd64" not in str(image.path) else "teaching/arm64")
    with pytest.raises(ReplayError, match="made with another kernel"):
        Player(Recording(recorded[0]), started(other))
    with pytest.raises(ReplayError, match="made on a machine with"):
        Player(Recording(recorded[0]), UnicornMachine(image, 2 * MEMORY))


def test_a_replay_that_diverges_is_reported(image, recorded):
    played = player(recorded[0], image)
    played.machine.write_physical(played.machine.board.ram_base, bytes(4 << 20))
    with pytest.raises(KinstError, match="it reached instruction 0 "):
        played.advance_to_end()


@pytest.mark.parametrize("kind, name", [
    (TO_MEMORY, "f" * 16), ("register", "foo"), ("vector", "foo")])
def test_an_invalid_input_is_refused(image, recorded, kind, name):
    played = player(recorded[0], image)
    played.recording.inputs.insert(0, Input(Position(0, 0), kind, name, b"1"))
    played.recording.ends[:] = [1, *(end + 1 for end in played.recording.ends)]
    with pytest.raises(ReplayError, match="invalid input"):
        played.advance_to_end()


# -- operations that cannot be recorded -----------------------------------------------------------


def test_a_machine_that_is_being_recorded_cannot_be_restored(image, tmp_path):
    machine = started(image)
    before = machine.snapshot()
    with Recorder(machine, tmp_path / "file.rec", BOOT, "") as recorder:
        with pytest.raises(MachineError, match="cannot return to a saved state"):
            machine.restore(before)
        with pytest.raises(ReplayError, match="already being recorded"):
            Recorder(machine, tmp_path / "other.rec", BOOT, "")
        assert recorder.end() is not None and recorder.end() is None
    machine.restore(before)


def test_probes_are_not_recorded_as_inputs(image, booted, short, tmp_path):
    path = tmp_path / "file.rec"
    with Recorder(booted, path, STATE, ""):
        breakpoints = Breakpoints(booted)
        create(breakpoints, "strlen", "")
        breakpoints.enable()
        booted.type(b"strings\r")
        booted.run(Until(console="teaching> "))
        breakpoints.disable()
    assert {one.kind for one in Recording(path).inputs} == {TYPE}
    played = Player(Recording(path), UnicornMachine(image, MEMORY))
    played.advance_to_end()
    assert played.difference() == "" and played.recording.end.digest


def test_the_schedule_is_stored_and_invalid_schedules_are_refused(image, tmp_path):
    """A recording of an older version has no schedule and is read with the schedule of one CPU."""
    path = tmp_path / "file.rec"
    with Recorder(started(image), path, BOOT, ""):
        pass
    assert Recording(path).start.schedule == ((0, 0),)
    row = json.loads(_start_to_json(Recording(path).start))
    del row["schedule"]
    assert _start_from_json(row).schedule == ((0, 0),)
    for schedule in ([[0, 1]], [[0, 0], [5, 1]]):
        assert _start_from_json({**row, "schedule": schedule}).schedule != ((0, 0),)
    for schedule in ([0], [[0]], [["0", 0]], 7, [[0, True]]):
        with pytest.raises((TypeError, ValueError)):
            _start_from_json({**row, "schedule": schedule})


@pytest.mark.parametrize("row", [[1, 2, True, -1], [1, 2, True, 64], [1, 2, True, 0, 0],
                                 [1, 2, True, "0"], [1, 2, True, True]])
def test_a_position_with_an_invalid_cpu_is_refused(row):
    with pytest.raises(ValueError, match="invalid position"):
        position_from_json(row)
    assert position_from_json([1, 2, True, 3]).cpu == 3
    assert position_to_json(position_from_json([1, 2, True])) == [1, 2, True]


def test_a_recording_appears_with_all_its_first_parts_or_not_at_all(tmp_path):
    """If the recorder is killed before the first parts are written, the old file remains."""
    from emu.replay.parts import PartReader, PartWriter

    path, seen = tmp_path / "a.rec", []

    def first():
        for number in range(3):
            seen.append(path.read_bytes())
            yield b"PRT%d" % number, b"content"

    path.write_bytes(b"before")
    PartWriter(path, first()).close()
    assert seen == [b"before"] * 3 and len(PartReader(path).parts) == 3

    def fails():
        yield b"STRT", b"{}"
        raise ReplayError("the writer failed")

    with pytest.raises(ReplayError, match="the writer failed"):
        PartWriter(path, fails())
    assert len(PartReader(path).parts) == 3 and len(list(tmp_path.iterdir())) == 1
