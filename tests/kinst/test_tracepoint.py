"""Static probes on the teaching kernels, which declare none: one is declared here.

Its tracepoint is the first instruction of crc32, and ``run_off`` is the way from there to the gate,
``machine_off``, which would end the machine.  Its arguments are what stands in their registers.
"""

import dataclasses

import pytest

from emu.static_probe import Argument, StaticProbe, Tracepoint
from kinst.breakpoints import PATHS, Breakpoints
from kinst.kinst_provider import create
from kinst.probe_table import ProbeError
from tests.kinst.test_provider import run

NO_NOP = ("crc32 begins with an instruction that changes sp, which the kernel's return path does "
          "not restore here: kernels' tracepoints are instructions that do nothing")
CALLS = [("crc32", [0, "hello", 5]), ("strlen", ["hello"]), ("crc32", [7, "world", 2])]


@pytest.fixture
def machine(booted):
    points = tuple(Tracepoint(booted.symbol(at).address, booted.symbol("run_off").address)
                   for at in ("crc32", "adler32"))
    start = StaticProbe("lesson", "kernel", "none", "sum-start", (Argument("int", ""),), points)
    declared = [start,
                StaticProbe("lesson", "kernel", "none", "never", (), ())]
    booted.guest = dataclasses.replace(
        booted.guest, static_probes=lambda image, memory: declared, gates={"machine_off": 5})
    return booted


def calls(machine):
    return [run(machine, name, arguments) for name, arguments in CALLS]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("beside", ["", "crc32", "run_off", "machine_off"])
def test_the_guest_makes_the_arguments_and_nothing_is_left_of_it(machine, path, beside):
    """Also with breakpoints of others at the tracepoint, on the way to the gate, and on it."""
    if machine.arch.name == "riscv64" and path != "direct":
        pytest.skip(NO_NOP)
    plain = machine.snapshot()
    values = calls(machine)
    untraced = machine.digest()
    machine.restore(plain)
    breakpoints = Breakpoints(machine, path=path, records=True)
    number, never = breakpoints.add_static(0), breakpoints.add_static(1)
    others = create(breakpoints, beside, "") if beside else []
    breakpoints.enable()
    assert calls(machine) == values
    breakpoints.disable()
    assert machine.digest() == untraced
    fired = [record for record in breakpoints.firings() if record.probe.id - 1 == number]
    # Behind the first one: crc32's second and third argument.
    assert [record.registers[1] for record in fired] == [5, 2]
    assert len(fired) == 2 and breakpoints.dispatcher.probe(number)[4] == 2
    assert breakpoints.dispatcher.probe(never)[4] == 0
    told = [breakpoints.dispatcher.probe(other)[4] for other in others]
    assert any(told) == (beside == "crc32")  # on the way to a gate nothing fires
    assert breakpoints.names(number) == ("lesson", "kernel", "none", "sum-start")


@pytest.mark.parametrize("path", PATHS)
def test_a_run_that_is_stopped_at_every_tracepoint_goes_on_as_if_it_had_not(machine, path):
    if machine.arch.name == "riscv64" and path != "direct":
        pytest.skip(NO_NOP)
    plain = machine.snapshot()
    calls(machine)
    untraced = machine.digest()
    machine.restore(plain)
    seen = []

    def fire(probe, state):
        seen.append((probe.name, state.get(machine.arch.arguments[2])))

    breakpoints = Breakpoints(machine, fire, path=path)
    breakpoints.add_static(0)
    breakpoints.enable()
    calls(machine)
    breakpoints.disable()
    assert machine.digest() == untraced
    # Registers are the tracepoint's: crc32's third argument.
    assert seen == [("sum-start", 5), ("sum-start", 2)]


def test_python_answers_no_static_probes(machine):
    with pytest.raises(ProbeError, match="no static probes"):
        Breakpoints(machine, lambda probe, state: None, python=True).add_static(0)
