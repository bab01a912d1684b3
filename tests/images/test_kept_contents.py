"""Tests of recordings that refer to disks and states instead of containing them."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from emu.elf.boot_options import COPIED, BootOptions, disk_image
from emu.elf.image import load_image
from emu.host.errors import KinstError
from emu.host.fingerprint import computed_fingerprint
from emu.machine.machine import Until
from emu.replay.inputs import ReplayError
from emu.replay.kept import kept_from_json
from emu.replay.parts import PartReader
from emu.replay.player import Player
from emu.replay.recording import KEPT, Recorder, Recording
from emu.replay.starts import BOOT, STATE
from emu.unicorn import snapshot
from emu.unicorn.machine import UnicornMachine
from images import known_digests
from images.boots import boot_to_prompt
from images.kept_contents import KeptContents
from images.known_digests import with_known_digests, with_known_identity
from tests.conftest import MEMORY
from tests.elfwriter import Elf


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KINST_CACHE", str(tmp_path / "cache"))


def recorded_from_a_state(image, path, store):
    machine = UnicornMachine(image, MEMORY)
    machine.boot()
    boot_to_prompt(machine)
    with Recorder(machine, path, STATE, "keys", store):
        machine.type(b"strings\r")
        machine.run(Until(console="teaching> "))
    return machine


def test_a_recording_refers_to_the_state_that_it_starts_from(image, tmp_path):
    path, packed = tmp_path / "run.rec", tmp_path / "packed.rec"
    machine = recorded_from_a_state(image, path, KeptContents(path))
    recorded_from_a_state(image, packed, None)
    assert path.stat().st_size < 4096 < packed.stat().st_size
    for file in (path, packed):
        player = Player(Recording(file, KeptContents(file)), UnicornMachine(image, MEMORY))
        player.advance_to_end()
        assert not player.difference() and player.machine.digest() == machine.digest()


def test_a_state_that_is_missing_or_damaged_is_named(image, tmp_path):
    path = tmp_path / "run.rec"
    recorded_from_a_state(image, path, KeptContents(path))
    (state,) = (tmp_path / "cache/states").iterdir()
    content = state.read_bytes()
    for damaged in (content[:-9], content[:50] + bytes(1) + content[51:], b"", None):
        state.unlink()
        if damaged is not None:
            state.write_bytes(damaged)
        with pytest.raises(ReplayError, match=rf"starts from a state of .*{state.stem}.*"
                                              "--self-contained"):
            Player(Recording(path, KeptContents(path)), UnicornMachine(image, MEMORY))
        state.touch()
    state.write_bytes(content)
    Player(Recording(path, KeptContents(path)), UnicornMachine(image, MEMORY))


def with_large_disk(image, file):
    with file.open("wb") as disk:
        disk.truncate(COPIED + 512)
    return replace(image, options=with_known_digests(BootOptions(disks=(disk_image(file),))))


def test_a_recording_refers_to_a_large_disk_and_finds_it_next_to_itself(image, tmp_path):
    disk = tmp_path / "large.img"
    image = with_large_disk(image, disk)
    path = tmp_path / "moved/run.rec"
    path.parent.mkdir()
    machine = UnicornMachine(image, MEMORY)
    machine.boot()
    with Recorder(machine, path, BOOT, "boot", KeptContents(path)):
        machine.run(Until(instructions=2000))
    assert path.stat().st_size < 4096
    for place in (disk, path.parent / disk.name):
        if place != disk:
            disk.rename(place)
        recording = Recording(path, KeptContents(path))
        (found,) = recording.options.disks
        assert found.path == disk and len(found.content) == COPIED + 512
        assert recording.options.digest == image.options.digest
    with place.open("r+b") as changed:
        changed.seek(5000)
        changed.write(b"x")
    with pytest.raises(ReplayError, match=r"refers to a disk of \d+ bytes .*; it was "
                                          r".*large\.img.* neither there nor next to the"):
        _ = Recording(path, KeptContents(path)).options


def test_the_digest_of_a_large_disk_is_computed_once(image, tmp_path, monkeypatch):
    disk = tmp_path / "large.img"
    first = with_large_disk(image, disk).options
    monkeypatch.setattr("emu.elf.boot_options.pieces", lambda _content: pytest.fail("read again"))
    again = with_known_digests(BootOptions(disks=(disk_image(disk),)))
    assert again.disks[0].digest == first.disks[0].digest and again.digest == first.digest
    monkeypatch.undo()


def test_a_changed_disk_has_another_digest(image, tmp_path, monkeypatch):
    monkeypatch.setenv("KINST_CACHE", str(tmp_path / "cache"))
    disk = tmp_path / "large.img"
    before = with_large_disk(image, disk).options.digest
    with disk.open("r+b") as file:
        file.write(b"x")
    after = with_known_digests(BootOptions(disks=(disk_image(disk),))).digest
    assert before != after


def test_the_identity_of_a_kernel_is_kept_until_one_of_its_files_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("KINST_CACHE", str(tmp_path / "cache"))
    kernel = tmp_path / "kernel"
    kernel.write_bytes(Elf(symbols=[]).build())
    debug = tmp_path / "kernel.debug"
    debug.write_bytes(Elf().build())

    def known():
        image = load_image(kernel)
        assert with_known_identity(image).identity == image.identity
        return image.identity

    first = known()
    with monkeypatch.context() as patch:
        patch.setattr("emu.elf.image.hashlib", None)
        image = load_image(kernel)
        assert with_known_identity(image).identity == first
    debug.write_bytes(Elf(symbols=[("begin", 0x1000, 1, 2)]).build())
    second = known()
    kernel.write_bytes(Elf(symbols=[], segments=[(0x1000, b"\xcc", 1)]).build())
    assert len({first, second, known()}) == 3


@pytest.mark.parametrize("row", [
    {}, [], 7, {"what": "DISK"}, {"what": "DISK", "digest": "00", "size": 1, "path": ""},
    {"what": "DISK", "digest": "0" * 64, "size": 0, "path": ""},
    {"what": "DISK", "digest": "g" * 64, "size": 1, "path": ""},
    {"what": "DISK", "digest": "0" * 64, "size": 1, "path": "a\0b"},
    {"what": "DISK", "digest": "0" * 64, "size": 1, "path": "a" * 5000},
    {"what": "CHCK", "digest": "0" * 64, "size": 1, "path": "", "position": [1]},
])
def test_an_invalid_reference_is_refused(row):
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        kept_from_json(row)


def kinst(*words):
    """Run a command, and check that it succeeds."""
    result = subprocess.run([sys.executable, "-m", "kinst_emu.commands.kinst", *words],
                            capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_kinst_boot_refers_to_the_snapshot_unless_self_contained(image, tmp_path):
    saved, path = tmp_path / "snap", tmp_path / "run.rec"
    machine = UnicornMachine(image, MEMORY)
    machine.boot()
    boot_to_prompt(machine)
    snapshot.save(machine, saved)
    words = ["boot", "-k", str(image.path), "--restore", str(saved), "--record", str(path),
             "--type", "strings\\r"]
    for more, referring in ((), True), (("--self-contained",), False):
        kinst(*words, *more)
        parts = PartReader(path)
        kept = [json.loads(parts.content(part)) for part in parts.parts if part[0] == KEPT]
        assert bool(kept) == referring
        kinst("replay", str(path))
    kinst("cache", "clear")
    assert list((tmp_path / "cache/states").iterdir())
    kinst("cache", "clear", "--states")
    assert not list((tmp_path / "cache/states").iterdir())


def test_a_store_that_cannot_be_written_says_what_to_do(tmp_path):
    path = tmp_path / "run.rec"
    states = tmp_path / "cache/states"
    states.parent.mkdir()
    states.write_text("in the way")
    with pytest.raises(KinstError, match=r"cannot be written: .*--self-contained"):
        KeptContents(path).keep(b"content")


def test_a_fingerprint_is_kept_until_a_file_changes(tmp_path, monkeypatch):
    folder = tmp_path / "known_here"
    folder.mkdir()
    for name in ("__init__", "one"):
        (folder / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    computed = []

    def counted(modules, distributions=()):
        computed.append(modules)
        return computed_fingerprint(modules, distributions)

    def known(*arguments):
        """Return the fingerprint in another process."""
        known_digests.known_fingerprint.cache_clear()
        return known_digests.known_fingerprint(*arguments)

    monkeypatch.setattr(known_digests, "computed_fingerprint", counted)
    first = known(("known_here",), ("unicorn",))
    assert first == known(("known_here",), ("unicorn",)) != known(("known_here",))
    assert len(computed) == 2
    (folder / "one.py").write_text("A = 1\n")
    assert known_digests.known_fingerprint(("known_here",)) != first  # another distribution
    changed = known(("known_here",), ("unicorn",))
    assert changed != first and len(computed) == 3
    (folder / "one.py").write_text("A = 2\n")
    # The modules that this process has loaded have not changed.
    assert known_digests.known_fingerprint(("known_here",), ("unicorn",)) == changed
    for path in (tmp_path / "cache" / "digests").iterdir():
        path.write_text("no digest\n")
    assert len(known(("known_here",))) == 16
    assert len(computed) == 4


def test_a_fingerprint_of_files_that_change_meanwhile_is_not_kept(tmp_path, monkeypatch):
    (tmp_path / "changing.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))

    def changing(modules, distributions=()):
        found = computed_fingerprint(modules, distributions)
        (tmp_path / "changing.py").write_text("A = 1\n")
        return found

    monkeypatch.setattr(known_digests, "computed_fingerprint", changing)
    known_digests.known_fingerprint.cache_clear()
    known_digests.known_fingerprint(("changing",))
    assert not list((tmp_path / "cache" / "digests").iterdir())
    known_digests.known_fingerprint.cache_clear()
