"""Tests of restoring snapshots by mapping RAM from a file."""

import gc
import os
import random

import pytest

from emu.machine.call import Caller
from emu.unicorn import ram_file, snapshot
from emu.unicorn.guest_memory import PAGE
from images import boots, cache, catalog
from tests.conftest import MEMORY
from tests.kinst_emu.commands.test_commands import run


@pytest.fixture(autouse=True)
def mapped_in_any_size(monkeypatch):
    monkeypatch.setattr(snapshot, "LARGE", 1)
    monkeypatch.setattr(ram_file, "LEAST_FREE", 0)


@pytest.fixture
def saved(booted, tmp_path):
    """Return a snapshot file, and the place of its file with RAM."""
    snapshot.save(booted, tmp_path / "s")
    return tmp_path / "s", tmp_path / "s.ram"


def restored(saved, image):
    path, place = saved
    return snapshot.restore(path, image, lambda _digest: place)


def called(machine):
    caller = Caller(machine)
    return caller.call_symbol(machine.symbol("fibonacci"), [12]), machine.digest()


def test_mapped_ram_is_that_of_the_snapshot_and_runs_do_not_change_it(booted, saved):
    path, place = saved
    plain = snapshot.restore(path, booted.image)
    assert not place.exists()
    copied = restored(saved, booted.image)
    content, status = place.read_bytes(), place.stat()
    assert status.st_blocks * 512 < status.st_size  # zeros are holes
    mapped = restored(saved, booted.image)
    assert mapped.memory_part.base is not None and copied.memory_part.base is None
    assert plain.digest() == copied.digest() == mapped.digest() == booted.digest()
    ends = [called(machine) for machine in (plain, copied, mapped)]
    assert ends[0] == ends[1] == ends[2]
    mapped.memory_part.view[:] = b"x" * mapped.memory
    assert place.read_bytes() == content and place.stat().st_mtime_ns == status.st_mtime_ns
    assert restored(saved, booted.image).digest() == booted.digest()


def test_snapshots_of_a_machine_with_mapped_ram_are_complete(booted, saved, tmp_path):
    restored(saved, booted.image)
    machine = restored(saved, booted.image)
    at, chance = machine.memory // 2, random.Random(1)
    first = machine.snapshot()
    before = machine.digest()
    machine.memory_part.view[at : at + PAGE] = chance.randbytes(PAGE)
    changed = machine.digest()
    second = machine.snapshot()
    snapshot.save(machine, tmp_path / "again")
    machine.restore(first)
    assert machine.digest() == before != changed
    machine.restore(second)
    assert machine.digest() == changed
    assert snapshot.restore(tmp_path / "again", booted.image).digest() == changed
    del machine
    assert restored(saved, booted.image).digest() == before


@pytest.mark.parametrize("spoil", [
    lambda place, size: place.write_bytes(b""),
    lambda place, size: place.write_bytes(b"x" * 20),
    lambda place, size: os.truncate(place, size - 1),
    lambda place, size: os.truncate(place, size + PAGE),
    lambda place, size: place.write_bytes(place.read_bytes()[PAGE:]),  # another size of RAM
    lambda place, size: place.write_bytes(place.read_bytes()[:-ram_file.TAIL.size - 1] + b"x"
                                          + place.read_bytes()[-ram_file.TAIL.size :]),
    lambda place, size: (place.unlink(), place.mkdir()),
], ids=["empty", "short", "truncated", "longer", "smaller", "header", "directory"])
def test_a_damaged_file_is_not_used(booted, saved, spoil):
    restored(saved, booted.image)
    place = saved[1]
    spoil(place, place.stat().st_size)
    descriptors = len(os.listdir("/proc/self/fd"))
    machine = restored(saved, booted.image)
    assert machine.digest() == booted.digest() and machine.memory_part.base is None
    del machine
    gc.collect()
    if place.is_dir():
        return
    again = restored(saved, booted.image)  # the file was made again
    assert again.digest() == booted.digest() and again.memory_part.base is not None
    del again
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_a_file_that_cannot_be_written_does_not_matter(booted, saved, tmp_path, monkeypatch):
    path, _place = saved
    for place in (tmp_path / "none" / "ram", tmp_path):
        machine = snapshot.restore(path, booted.image, lambda _digest, place=place: place)
        assert machine.digest() == booted.digest()
    monkeypatch.setattr(ram_file, "LEAST_FREE", 1 << 62)  # the file system is almost full
    assert restored(saved, booted.image).digest() == booted.digest()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["s"]


def test_the_file_belongs_to_one_snapshot_and_one_boot_of_the_host(tmp_path, monkeypatch):
    monkeypatch.setenv("KINST_CACHE", str(tmp_path))
    image = catalog.find("teaching/amd64")
    digests = [boots.booted(image, MEMORY).digest() for _ in range(3)]
    (one,) = (tmp_path / "ram").iterdir()
    assert boots.booted(image, MEMORY).memory_part.base is not None
    assert one == boots.ram_path(snapshot._digest_of(boots.snapshot_path(image, MEMORY)))
    assert digests[0] == digests[1] == digests[2]
    monkeypatch.setattr(boots, "boot_id", lambda: "another")
    assert boots.booted(image, MEMORY).memory_part.base is None
    for number in range(boots.KEPT_RAM + 3):
        boots.ram_path(f"{number:032}").touch()
    kept = list((tmp_path / "ram").iterdir())
    assert len(kept) == boots.KEPT_RAM and one not in kept
    monkeypatch.setattr(boots, "boot_id", lambda: "")
    assert boots.ram_path("0" * 64) is None
    assert boots.booted(image, MEMORY).memory_part.base is None


def test_the_cache_command_counts_what_a_file_with_holes_occupies(tmp_path, monkeypatch):
    monkeypatch.setenv("KINST_CACHE", str(tmp_path))
    path = cache.cached_file("ram", "a.ram")
    path.write_bytes(b"x")
    os.truncate(path, 1 << 30)
    assert "0.0 MiB" in run("kinst", "cache").stdout

