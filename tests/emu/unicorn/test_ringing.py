"""Tests of ring_timer(), and of runs that end before an interrupt is taken."""

import random

import pytest

from emu.host.errors import MachineError
from emu.machine.machine import StopReason, Until
from emu.replay.inputs import position_of
from emu.replay.player import Player
from emu.replay.recording import Recorder, Recording
from emu.replay.starts import STATE
from emu.unicorn.machine import UnicornMachine
from images import boots, catalog
from tests.conftest import MEMORY


@pytest.fixture
def machine(arch):
    return boots.booted(catalog.find(f"teaching/{arch}"), MEMORY)


def ticks(machine):
    return machine.read_u64(machine.image.symbols.find("ticks").address)


def mask(machine, masked):
    """Mask or unmask the CPU's interrupts."""
    name, bit, set_ = {"amd64": ("rflags", 9, False), "arm64": ("pstate", 7, True),
                       "riscv64": ("sstatus", 1, False)}[machine.arch.name]
    value = machine.read_register(name) & ~(1 << bit)
    machine.write_register(name, value | (masked is set_) << bit)


def computing(machine):
    """Start a long computation on the CPU with interrupts enabled."""
    machine.arch.prepare_call(machine, (25,), machine.guest.entry_address(machine.image))
    machine.pc = machine.image.symbols.find("fibonacci").address
    mask(machine, False)


def test_ring_timer_interrupts_at_once_or_when_unmasked(machine):
    chosen = random.Random(3)
    computing(machine)
    for number in range(40):
        machine.run(Until(instructions=machine.instructions + chosen.randrange(1, 400)))
        before, pc = ticks(machine), machine.pc
        mask(machine, number % 2 == 1)
        machine.ring_timer()
        if number % 2:
            stop = machine.run(Until(instructions=machine.instructions + 500, interrupts=True))
            assert stop.reason is StopReason.INSTRUCTIONS and ticks(machine) == before
            mask(machine, False)
            stop = machine.run(Until(instructions=machine.instructions + 500, interrupts=True))
        else:
            stop = machine.run(Until(instructions=machine.instructions + 500, interrupts=True))
            assert stop.pc == pc
        assert stop.reason is StopReason.INTERRUPT and machine.pc == stop.pc
        assert ticks(machine) == before
        sp = machine.sp
        machine.run(Until(instructions=machine.instructions + 500, addresses=[stop.pc]))
        assert (machine.pc, machine.sp, ticks(machine)) == (stop.pc, sp, before + 1)


def test_timer_interrupts_from_ring_timer_are_recorded(machine, tmp_path):
    path, chosen, places = tmp_path / "rung.rec", random.Random(5), []
    with Recorder(machine, path, STATE, "rung") as recorder:
        computing(machine)
        for _ in range(40):
            machine.run(Until(instructions=machine.instructions + chosen.randrange(1, 900)))
            machine.ring_timer()
            machine.run(Until(instructions=machine.instructions + 7))
            places.append((position_of(machine), machine.digest()))
        machine.run(Until(instructions=machine.instructions + 5000))
        end = recorder.end()
    recording = Recording(path)
    assert sum(one.kind == "timer" for one in recording.inputs) == 40
    player = Player(recording, UnicornMachine(machine.image, MEMORY))
    for position, digest in (places[30], places[0], places[39], places[12]):
        player.seek(position)
        assert player.machine.digest() == digest
    player.advance_to_end()
    assert not player.difference() and end.digest == recording.end.digest


def test_ring_timer_is_refused_while_the_machine_runs(machine):
    def ring():
        with pytest.raises(MachineError, match="only while the machine is stopped"):
            machine.ring_timer()
        rung.append(True)

    rung = []
    machine.type(b"lesson\r")
    machine.handle(machine.image.symbols.find("classify").address, ring)
    machine.run(Until(instructions=machine.instructions + 2_000_000))
    assert rung
