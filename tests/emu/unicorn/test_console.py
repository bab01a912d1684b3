"""Tests that a run ends when the guest has written too much to its console."""

import pytest

import kinst_emu
from emu.machine import machine as machines
from emu.machine.machine import StopReason, Until
from emu.replay import recording as recordings
from emu.replay.inputs import ReplayError
from emu.replay.player import Player
from emu.replay.recording import Recorder, Recording
from emu.replay.starts import STATE
from images import boots, catalog
from tests.conftest import MEMORY

SENTENCE = "abcdefgh" * 100


@pytest.fixture
def machine(arch, monkeypatch):
    made = boots.booted(catalog.find(f"teaching/{arch}"), MEMORY)
    monkeypatch.setattr(machines, "MAX_CONSOLE", 400)
    monkeypatch.setattr(recordings, "MAX_CONSOLE", 400)
    made.console.text.clear()
    return made


def test_each_run_may_write_a_limited_amount_to_the_console(machine):
    machine.type(b"strings\r" * 100)
    for number in range(1, 4):
        stop = machine.run(Until(instructions=machine.instructions + 100_000_000))
        assert stop.reason is StopReason.OUTPUT and "to its console" in stop.detail
        assert 400 * number <= len(machine.console.text) < 500 * number


def test_the_console_limit_applies_to_each_run_separately(machine):
    """Interrupting a run, or restoring a snapshot before the run, does not change the limit."""
    machine.type(b"strings\r" * 100)
    kept = machine.snapshot()
    assert machine.run(Until()).reason is StopReason.OUTPUT
    end = machine.instructions
    for before in (1, 2, 5, 20, 60):
        machine.restore(kept)
        stop = machine.run(Until(instructions=end - before))
        assert stop.reason is StopReason.INSTRUCTIONS and machine.instructions == end - before
        written = len(machine.console.text)
        stop = machine.run(Until())
        assert stop.reason is StopReason.OUTPUT and machine.instructions > end
        assert len(machine.console.text) - written >= 400


def test_a_recording_with_too_much_output_ends_and_can_be_replayed(machine, tmp_path):
    with Recorder(machine, tmp_path / "a.rec", STATE, ""):
        machine.type(b"strings\r" * 100)
        assert machine.run(Until()).reason is StopReason.OUTPUT
        with pytest.raises(ReplayError, match="cannot record further"):
            machine.run(Until())
    other = boots.booted(machine.image, MEMORY)
    player = Player(Recording(tmp_path / "a.rec"), other)
    player.advance_to_end()
    assert other.console.text == machine.console.text and not player.difference()


def test_a_call_that_writes_too_much_to_the_console_fails(arch, monkeypatch):
    machine = kinst_emu.open(f"teaching/{arch}").boot("64M")
    monkeypatch.setattr(machines, "MAX_CONSOLE", 400)
    with pytest.raises(kinst_emu.CallError, match="too much console output"):
        machine.call("cnputs", SENTENCE)
