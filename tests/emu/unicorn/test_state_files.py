"""States in files: what is kept, and what is refused."""

import hashlib
import json

import pytest
import zstandard

from emu.host.errors import MachineError, SnapshotError
from emu.machine.machine import Until
from emu.unicorn import snapshot
from emu.unicorn.guest_memory import PAGE
from images import boots, catalog
from tests.conftest import MEMORY


def test_a_console_that_no_file_keeps_whole_is_refused_and_not_cut(booted, tmp_path):
    """What is restored has the digest of what was saved."""
    booted.console.text[:] = b"x" * snapshot.MAX_CONSOLE
    snapshot.save(booted, tmp_path / "s")
    assert snapshot.restore(tmp_path / "s", booted.image).digest() == booted.digest()
    booted.console.text += b"x"
    with pytest.raises(SnapshotError, match="more than 16 MiB of console output"):
        snapshot.save(booted, tmp_path / "t")
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("value", [{}, [], "1", -1, 1 << 64, 0.5, None, True])
def test_a_timer_that_is_none_is_told(value):
    machine = boots.booted(catalog.find("teaching/arm64"), MEMORY)
    state = snapshot.to_json(machine.state())
    next(iter(state["cpu"]["timers"].values()))["compare"] = value
    with pytest.raises(snapshot.DAMAGE):
        machine.restore_state(snapshot.from_json(state))


def test_a_clock_far_ahead_of_its_timers_is_no_reason_to_run_for_ever():
    """They would be due again and again until they come to it."""
    machine = boots.booted(catalog.find("teaching/amd64"), MEMORY)
    state = snapshot.to_json(machine.state())
    state["instructions"] = state["canonical"] = 1 << 55
    machine.restore_state(snapshot.from_json(state))
    with pytest.raises(MachineError, match="without virtual time advancing"):
        machine.run(Until(instructions=machine.instructions + 100_000))


@pytest.mark.parametrize("arch", ["amd64"], indirect=True)
def test_a_register_that_cannot_be_what_is_written_is_told(booted):
    """A selector that no descriptor table has."""
    with pytest.raises(MachineError, match="gs cannot be set to 0xffffffffffffffff"):
        booted.write_register("gs", (1 << 64) - 1)


def written(path, header, body, version=snapshot.FORMAT):
    """A snapshot whose checksum fits, whatever it says."""
    head = zstandard.ZstdCompressor().compress(json.dumps(header).encode())
    path.write_bytes(snapshot.HEAD.pack(
        snapshot.MAGIC, version, len(head), len(body), hashlib.sha256(head + body).digest())
        + head + body)


def test_what_is_in_the_kernel_s_file_is_not_in_a_snapshot(booted, tmp_path):
    snapshot.save(booted, tmp_path / "s")
    header, _body = snapshot._read(tmp_path / "s")
    text = next(s for s in booted.image.segments if s.executable)
    there = sum(count for _page, count, _segment, _at in header["image"])
    assert there >= len(text.data) // PAGE - 1
    assert snapshot.restore(tmp_path / "s", booted.image).digest() == booted.digest()


def test_a_snapshot_with_all_pages_in_it_is_restored(booted, tmp_path, monkeypatch):
    """Those of the format before."""
    monkeypatch.setattr(snapshot, "_image_pages", lambda image: {})
    snapshot.save(booted, tmp_path / "s")
    header, body = snapshot._read(tmp_path / "s")
    assert header.pop("image") == []
    written(tmp_path / "s", header, bytes(body), snapshot.WITHOUT_IMAGE)
    assert snapshot.restore(tmp_path / "s", booted.image).digest() == booted.digest()


@pytest.mark.parametrize("rows", [
    [[0, 1, 99, 0]], [[0, 1, -1, 0]], [[0, 1 << 40, 0, 0]], [[-1, 1, 0, 0]], [[0, 1, 0, -4096]],
    [[0, 1, 0, 1 << 60]], [[0, 0, 0, 0]], [[MEMORY // PAGE, 1, 0, 0]], [[1, 1, 0, 0], [1, 1, 0, 0]],
    [[0, 1, 0]], [["0", 1, 0, 0]], [[0, 1.5, 0, 0]], [None], 3])
def test_pages_of_a_file_that_cannot_be_are_one_line(rows, tmp_path):
    machine = boots.booted(catalog.find("teaching/arm64"), MEMORY)
    snapshot.save(machine, tmp_path / "s")
    header, body = snapshot._read(tmp_path / "s")
    written(tmp_path / "s", {**header, "image": rows}, bytes(body))
    with pytest.raises(SnapshotError, match=r"damaged") as refusal:
        snapshot.restore(tmp_path / "s", machine.image)
    assert "\n" not in str(refusal.value)
