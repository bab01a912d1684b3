"""What a guest writes to its console is kept up to a budget, and a run ends there."""

import pytest

import kinst_emu
from emu import machine as machines
from emu.machine import StopReason, Until
from images import boots, catalog
from tests.conftest import MEMORY

SENTENCE = "abcdefgh" * 100


@pytest.fixture
def machine(arch, monkeypatch):
    made = boots.booted(catalog.find(f"teaching/{arch}"), MEMORY)
    monkeypatch.setattr(machines, "MAX_CONSOLE", 400)
    made.console.text.clear()
    return made


def test_a_run_ends_when_the_console_is_full_and_goes_on_when_it_was_cleared(machine):
    machine.type(b"strings\r" * 100)
    stop = machine.run(Until(instructions=machine.instructions + 100_000_000))
    assert stop.reason is StopReason.OUTPUT and "to its console" in stop.detail
    assert 400 <= len(machine.console.text) < 500
    machine.console.text.clear()
    stop = machine.run(Until(console="teaching> "))
    assert stop.reason is StopReason.CONSOLE


def test_a_call_that_writes_too_much_is_an_error(arch, monkeypatch):
    machine = kinst_emu.open(f"teaching/{arch}").boot("64M")
    monkeypatch.setattr(machines, "MAX_CONSOLE", 400)
    with pytest.raises(kinst_emu.CallError, match="too much console output"):
        machine.call("cnputs", SENTENCE)
