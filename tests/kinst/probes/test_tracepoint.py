"""Tests of static probes on the teaching kernels, with a probe that the tests declare.

The tests overwrite ``describe`` with a tracepoint and a return, and ``note_letters`` with the way
to the gate.  The way to the gate spills a register above the stack pointer, overwrites others, has
a frame, and passes two arguments: its own argument and 42.  The gate is ``machine_off``, which
would turn off the machine.
"""

import struct

import pytest

from emu.guest.guest import GuestProbes
from emu.guest.static_probe import Argument, StaticProbe, Tracepoint
from emu.host.errors import MachineError
from kinst.probes.breakpoints import PATHS, Breakpoints
from kinst.probes.probed_code import ProbeError
from kinst.probes.seam_breakpoints import SeamBreakpoints
from kinst.providers.kinst_provider import create
from tests.kinst.providers.test_provider import run

# Per architecture: the tracepoint, the code after the tracepoint, the code that prepares the
# kernel's call of the DTrace gate, and an encoder of this call.
CODE = {
    "amd64": ("660f1f0400", "89f8c3",  # mov %edi, %eax; ret
              "48897c2410" "4889fe" "48c7c22a000000" "31ff" "53" "48c7c307000000",
              lambda distance: b"\xe8" + struct.pack("<i", distance - 5)),
    "arm64": ("1f2003d5", "c0035fd6",
              "e00b00f9" "e10300aa" "420580d2" "000080d2" "fd7bbfa9" "f30080d2",
              lambda distance: struct.pack("<I", 0x94000000 | distance >> 2 & 0x3FFFFFF)),
    "riscv64": ("13000000", "67800000",
                "2338a100" "93050500" "1306a002" "13050000" "130101ff" "23341100" "93047000",
                lambda distance: struct.pack(
                    "<I", (distance & 0x100000) << 11 | (distance & 0x7FE) << 20
                    | (distance & 0x800) << 9 | distance & 0xFF000 | 0xEF)),
}
CALLS = [("describe", [99]), ("strlen", ["hello"]), ("describe", [7]), ("crc32", [0, "hello", 5])]


@pytest.fixture
def machine(booted):
    point, rest, way, call = CODE[booted.arch.name]
    site, target, gate = (booted.symbol(name).address
                          for name in ("describe", "note_letters", "machine_off"))
    booted.write(site, bytes.fromhex(point + rest))
    code = bytes.fromhex(way)
    booted.write(target, code + call(gate - target - len(code)))
    start = StaticProbe("lesson", "kernel", "none", "start", (Argument("int", ""),) * 2,
                        (Tracepoint(site, target),))
    never = StaticProbe("lesson", "kernel", "none", "never", (), ())
    booted.guest = booted.guest._replace(
        probes=GuestProbes(declared=lambda image, memory: [start, never],
                                         gates={"machine_off": 5}, tracepoint=bytes.fromhex(point)))
    return booted


def calls(machine):
    return [run(machine, name, arguments) for name, arguments in CALLS]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("beside", ["", "describe", "note_letters", "machine_off"])
def test_static_probes_report_arguments_and_leave_no_trace(machine, path, beside):
    """Other breakpoints are at the tracepoint, on the path to the gate, or on the gate itself."""
    plain = machine.snapshot()
    values = calls(machine)
    assert values[0] == 99
    untraced = machine.digest()
    machine.restore(plain)
    breakpoints = Breakpoints(machine, path=path, records=True)
    number, never = breakpoints.add_static(0), breakpoints.add_static(1)
    assert breakpoints.add_static(0) == number and len(breakpoints.addresses(number)) == 1
    assert breakpoints.addresses(never) == []
    others = create(breakpoints, beside, "") if beside else []
    breakpoints.enable()
    assert calls(machine) == values
    breakpoints.disable()
    assert machine.digest() == untraced
    fired = [record for record in breakpoints.firings() if record.probe.id - 1 == number]
    assert [record.registers for record in fired] == [
        (99, 42, *fired[0].registers[2:]), (7, 42, *fired[1].registers[2:])]
    count = [breakpoints.dispatcher.probe(n)[4] for n in (number, never, *others)]
    assert count[:2] == [2, 0]
    assert any(count[2:]) == (beside == "describe")  # probes on the path to the gate do not fire
    assert breakpoints.names(number) == ("lesson", "kernel", "none", "start")
    assert breakpoints.probe(never).name == "never"


@pytest.mark.parametrize("path", PATHS)
def test_a_callback_sees_the_registers_at_the_tracepoint(machine, path):
    plain = machine.snapshot()
    calls(machine)
    untraced = machine.digest()
    machine.restore(plain)
    first, second = machine.arch.arguments[:2]
    seen = []

    def fire(probe, state):
        seen.append((probe.name, state.get(first), state.get(second)))

    breakpoints = Breakpoints(machine, fire, path=path)
    breakpoints.add_static(0)
    breakpoints.enable()
    calls(machine)
    breakpoints.disable()
    assert machine.digest() == untraced
    assert [s[:2] for s in seen] == [("start", 99), ("start", 7)]
    assert 42 not in [s[2] for s in seen]


@pytest.mark.parametrize("path", PATHS)
def test_reaching_the_gate_without_a_tracepoint_ends_the_run(machine, path):
    breakpoints = Breakpoints(machine, path=path)
    breakpoints.add_static(0)
    breakpoints.enable()
    with pytest.raises(MachineError, match="arguments of a static probe"):
        run(machine, "machine_off", [])


def test_a_tracepoint_that_is_already_patched_is_refused(machine):
    machine.write(machine.symbol("describe").address, b"\x01\x02\x03\x04\x05")
    with pytest.raises(ProbeError, match=r"describe.*code has been patched"):
        Breakpoints(machine).add_static(0)


def test_unsupported_cores_and_machines_have_no_static_probes(machine):
    with pytest.raises(ProbeError, match="does not support static probes"):
        Breakpoints(machine, lambda probe, state: None, python=True).add_static(0)
    assert SeamBreakpoints(machine).declared == []


def test_a_static_probe_cannot_be_removed_alone(machine):
    breakpoints = Breakpoints(machine)
    number = breakpoints.add_static(0)
    with pytest.raises(ValueError, match="removed alone"):
        breakpoints.dispatcher.remove(number)
    breakpoints.remove_all()
    assert breakpoints.add_static(0) == number
