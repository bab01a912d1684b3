"""Tests of the contents of snapshot files, and of snapshot files that must be refused."""

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


def test_a_snapshot_with_too_much_console_output_is_refused(booted, tmp_path):
    """Truncating the console output would change the digest of the restored machine."""
    booted.console.text[:] = b"x" * snapshot.MAX_CONSOLE
    snapshot.save(booted, tmp_path / "s")
    assert snapshot.restore(tmp_path / "s", booted.image).digest() == booted.digest()
    booted.console.text += b"x"
    with pytest.raises(SnapshotError, match="more than 16 MiB of console output"):
        snapshot.save(booted, tmp_path / "t")
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("value", [{}, [], "1", -1, 1 << 64, 0.5, None, True])
def test_an_invalid_timer_state_is_refused(value):
    machine = boots.booted(catalog.find("teaching/arm64"), MEMORY)
    state = snapshot.to_json(machine.state())
    next(iter(state["cpu"]["timers"].values()))["compare"] = value
    with pytest.raises(snapshot.DAMAGE):
        machine.restore_state(snapshot.from_json(state))


def test_a_clock_far_ahead_of_its_timers_is_an_error():
    """Timers would expire again and again to catch up with a clock that is far ahead."""
    machine = boots.booted(catalog.find("teaching/amd64"), MEMORY)
    state = snapshot.to_json(machine.state())
    state["instructions"] = state["canonical"] = 1 << 55
    machine.restore_state(snapshot.from_json(state))
    with pytest.raises(MachineError, match="without virtual time advancing"):
        machine.run(Until(instructions=machine.instructions + 100_000))


@pytest.mark.parametrize("arch", ["amd64"], indirect=True)
def test_an_impossible_register_value_is_refused(booted):
    """No descriptor table contains the selector that the test writes to gs."""
    with pytest.raises(MachineError, match="gs cannot be set to 0xffffffffffffffff"):
        booted.write_register("gs", (1 << 64) - 1)


def written(path, header, body, version=snapshot.FORMAT):
    """Write a snapshot file with the given header and body and a correct checksum."""
    head = zstandard.ZstdCompressor().compress(json.dumps(header).encode())
    path.write_bytes(snapshot.HEAD.pack(
        snapshot.MAGIC, version, len(head), len(body), hashlib.sha256(head + body).digest())
        + head + body)


def test_snapshots_omit_pages_that_equal_the_kernel_file(booted, tmp_path):
    snapshot.save(booted, tmp_path / "s")
    header = snapshot._header(snapshot._read(tmp_path / "s")[0], tmp_path / "s")
    text = next(s for s in booted.image.segments if s.executable)
    there = sum(count for _page, count, _segment, _at in header["image"])
    assert there >= len(text.data) // PAGE - 1
    assert snapshot.restore(tmp_path / "s", booted.image).digest() == booted.digest()


def test_a_snapshot_of_the_previous_format_is_restored(booted, tmp_path, monkeypatch):
    """Snapshots of the previous format contain the pages of the kernel image."""
    monkeypatch.setattr(snapshot, "_image_pages", lambda image: {})
    snapshot.save(booted, tmp_path / "s")
    head, body = snapshot._read(tmp_path / "s")
    header = snapshot._header(head, tmp_path / "s")
    assert header.pop("image") == []
    written(tmp_path / "s", header, bytes(body), snapshot.WITHOUT_IMAGE)
    assert snapshot.restore(tmp_path / "s", booted.image).digest() == booted.digest()


@pytest.mark.parametrize("rows", [
    [[0, 1, 99, 0]], [[0, 1, -1, 0]], [[0, 1 << 40, 0, 0]], [[-1, 1, 0, 0]], [[0, 1, 0, -4096]],
    [[0, 1, 0, 1 << 60]], [[0, 0, 0, 0]], [[MEMORY // PAGE, 1, 0, 0]], [[1, 1, 0, 0], [1, 1, 0, 0]],
    [[0, 1, 0]], [["0", 1, 0, 0]], [[0, 1.5, 0, 0]], [None], 3])
def test_impossible_page_ranges_in_a_snapshot_are_refused(rows, tmp_path):
    machine = boots.booted(catalog.find("teaching/arm64"), MEMORY)
    snapshot.save(machine, tmp_path / "s")
    head, body = snapshot._read(tmp_path / "s")
    header = snapshot._header(head, tmp_path / "s")
    written(tmp_path / "s", {**header, "image": rows}, bytes(body))
    with pytest.raises(SnapshotError, match=r"damaged") as refusal:
        snapshot.restore(tmp_path / "s", machine.image)
    assert "\n" not in str(refusal.value)
