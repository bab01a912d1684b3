"""Tests of the time that PAUSE and YIELD take, with which a CPU says that it waits."""

import random

import pytest

from emu.machine.call import Caller, CallError
from emu.machine.machine import Until
from emu.unicorn.machine import UnicornMachine
from images import boots, catalog
from kinst.probes.breakpoints import PATHS, Breakpoints
from kinst.providers import kinst_provider
from tests.conftest import MEMORY

TIMES = 60
TIME = {"amd64": 50, "arm64": 50, "riscv64": 0}  # riscv64's PAUSE is an ordinary instruction
LOAD_AND_WAIT = {"amd64": "488b07 f390 c3", "arm64": "000040f9 3f2003d5 c0035fd6"}
LOAD = {"amd64": "488b07 6690 c3", "arm64": "000040f9 1f2003d5 c0035fd6"}


def called(machine, function, arguments=()):
    """Prepare a call; return the address at which it ends."""
    back = machine.guest.entry_address(machine.image)
    machine.arch.prepare_call(machine, arguments, back)
    machine.pc = machine.symbol(function).address
    return back


@pytest.fixture
def waiting(arch):
    """Return a machine that is about to wait ``TIMES`` times, and where the call ends."""
    machine = UnicornMachine(catalog.find(f"races/{arch}"), MEMORY)
    machine.boot()
    boots.at_start(machine)
    return machine, called(machine, "slow_wait", (TIMES,))


def outcome(machine):
    return machine.instructions, machine.now, machine.digest()


def whole(machine, back):
    """Run the call, and return to its beginning; return a snapshot there, and the outcome."""
    begin = machine.snapshot()
    machine.run(Until(addresses=[back]))
    expected = outcome(machine)
    machine.restore(begin)
    return begin, expected


def test_each_pause_takes_a_while_on_the_only_cpu(waiting, arch):
    machine, back = waiting
    began, time = machine.instructions, machine.now
    machine.run(Until(addresses=[back]))
    assert machine.now - time == machine.instructions - began + TIMES * TIME[arch]


def test_the_time_of_pauses_is_the_same_however_a_machine_is_run(waiting):
    machine, back = waiting
    begin, expected = whole(machine, back)

    machine.engine.slow = True
    machine.run(Until(addresses=[back]))
    machine.engine.slow = False
    assert outcome(machine) == expected

    machine.restore(begin)
    while machine.pc != back:
        machine.step()
    assert outcome(machine) == expected

    for seed in range(3):
        machine.restore(begin)
        pick = random.Random(seed)
        while machine.pc != back:
            end = machine.instructions + pick.randint(1, 9)
            machine.run(Until(addresses=[back], instructions=end))
            if pick.random() < 0.3:
                machine.restore(machine.snapshot())
            if pick.random() < 0.3:
                machine.back_to(machine.mark())
        assert outcome(machine) == expected


@pytest.mark.parametrize("path", PATHS)
def test_probes_on_pauses_do_not_change_their_time(waiting, path):
    machine, back = waiting
    _begin, expected = whole(machine, back)

    fired = []
    probes = Breakpoints(machine, fire=lambda number, _state: fired.append(number), path=path)
    kinst_provider.create(probes, "slow_wait", "")
    probes.enable()
    machine.run(Until(addresses=[back]))
    probes.disable()
    assert len(fired) > 2 * TIMES
    assert outcome(machine) == expected


@pytest.mark.parametrize("arch", sorted(LOAD))
def test_a_pause_that_is_not_reached_takes_no_time(arch):
    """A fault ends the block before its last instruction."""
    ends = []
    for code in (LOAD, LOAD_AND_WAIT):
        machine = UnicornMachine(catalog.find(f"teaching/{arch}"), MEMORY)
        machine.boot()
        machine.run(Until(console="> "))
        function = machine.symbol("strlen").address
        machine.write(function, bytes.fromhex(code[arch]))
        with pytest.raises(CallError):
            Caller(machine).call(function, [1 << 40], "strlen")
        machine.run(Until(instructions=machine.instructions + 5_000))
        ends.append((machine.instructions, machine.now, bytes(machine.console.text)))
    assert ends[0] == ends[1]
