"""States in files: what is kept, and what is refused."""

import pytest

from emu.errors import MachineError, SnapshotError
from emu.machine import Until
from emu.unicorn import snapshot
from images import boots, catalog
from tests.conftest import MEMORY


def test_a_console_that_no_file_keeps_whole_is_refused_and_not_cut(booted, tmp_path):
    """What is restored has the digest of what was saved."""
    booted.console.text[:] = b"x" * snapshot.MAX_CONSOLE
    snapshot.save(booted, tmp_path / "s")
    assert snapshot.restore(tmp_path / "s", booted.image).digest() == booted.digest()
    booted.console.text += b"x"
    with pytest.raises(SnapshotError, match="more than 16 MiB to its console"):
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
    with pytest.raises(MachineError, match="at once"):
        machine.run(Until(instructions=machine.instructions + 100_000))


def test_a_register_that_cannot_be_what_is_written_is_told(booted):
    """A selector that no descriptor table has."""
    if booted.arch.name != "amd64":
        return
    with pytest.raises(MachineError, match="gs cannot be 0xffffffffffffffff"):
        booted.write_register("gs", (1 << 64) - 1)
