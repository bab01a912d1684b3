"""Tests of static probes in code that the kernel executes only while probes are enabled.

The tests overwrite ``describe`` with code that reads a variable, which is 0, and returns its
argument.  The code guarded by the variable contains the tracepoint, but skips it for the argument
7.  ``note_letters`` is the way to the gate, as in ``test_tracepoint``.
"""

import struct

import pytest

from emu.guest.guest import GuestProbes
from emu.guest.static_probe import Argument, StaticProbe, Tracepoint
from kinst.code.listing import instructions
from kinst.probes import guards
from kinst.probes.breakpoints import PATHS, Breakpoints
from kinst.providers.kinst_provider import create
from kinst.relocation.trap import TRAPS
from tests.kinst.probes.test_tracepoint import CODE
from tests.kinst.providers.test_provider import run

VARIABLE = "refused"
ARGUMENTS = [99, 7, 8]


def looks(arch, site, variable):
    """Return the code of ``describe`` and the offset of its tracepoint."""
    distance = variable - site
    if arch == "amd64":  # cmpb $0, variable(%rip); jne; mov %edi, %eax; ret
        return (b"\x80\x3d" + struct.pack("<i", distance - 7) + bytes.fromhex(
            "00" "7503" "89f8c3"
            "83ff07" "74f8" "660f1f0400" "ebf1"), 17)  # cmp $7, %edi; je; the tracepoint; jmp
    if arch == "arm64":  # adrp, ldrb, cbnz; nop; ret; cmp w0, #7; b.eq; the tracepoint; b
        pages = (variable >> 12) - (site >> 12)
        adrp = 0x90000008 | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
        return struct.pack("<9I", adrp, 0x39400108 | (variable & 0xFFF) << 10, 0x35000068,
                           0xD503201F, 0xD65F03C0, 0x71001C1F, 0x54FFFFA0, 0xD503201F,
                           0x17FFFFFB), 28
    high = distance + 0x800 >> 12  # auipc, lbu, bnez; nop; ret; li; beq; the tracepoint; j
    return struct.pack("<9I", high << 12 & 0xFFFFFFFF | 0x297,
                       (distance - (high << 12)) << 20 & 0xFFF00000 | 0x2C283, 0x00029663,
                       0x13, 0x8067, 0x00700293, 0xFE550AE3, 0x13, 0xFEDFF06F), 28


@pytest.fixture
def machine(booted):
    arch = booted.arch.name
    point, _rest, way, call = CODE[arch]
    site, target, gate = (booted.symbol(name).address
                          for name in ("describe", "note_letters", "machine_off"))
    code, at = looks(arch, site, booted.symbol(VARIABLE).address)
    booted.write(site, code)
    code = bytes.fromhex(way)
    booted.write(target, code + call(gate - target - len(code)))
    booted.write_u64(booted.symbol(VARIABLE).address, 0)
    start = StaticProbe("lesson", "kernel", "none", "start", (Argument("int", ""),) * 2,
                        (Tracepoint(site + at, target),))
    booted.guest = booted.guest._replace(
        probes=GuestProbes(
            declared=lambda image, memory: [start], gates={"machine_off": 5},
            tracepoint=bytes.fromhex(point), guard=(VARIABLE, frozenset({("lesson", "start")}))))
    return booted


def calls(machine):
    return [run(machine, "describe", [argument]) for argument in ARGUMENTS]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("beside", ["", "describe", "note_letters", "machine_off"])
def test_guarded_probes_fire_as_if_enabled_and_leave_no_trace(
        machine, path, beside):
    plain = machine.snapshot()
    values = calls(machine)
    assert values == ARGUMENTS
    untraced = machine.digest()
    machine.restore(plain)
    breakpoints = Breakpoints(machine, path=path, records=True)
    number = breakpoints.add_static(0)
    others = create(breakpoints, beside, "") if beside else []
    breakpoints.enable()
    assert calls(machine) == values
    breakpoints.disable()
    assert machine.digest() == untraced
    fired = [record for record in breakpoints.firings() if record.probe.id - 1 == number]
    assert [record.registers[:2] for record in fired] == [(99, 42), (8, 42)]
    if beside == "describe":  # probes on instructions that an untraced run skips do not fire
        counts = [breakpoints.dispatcher.probe(n)[4] for n in others]
        executed = 4 if machine.arch.name == "amd64" else 5
        assert set(counts) == {0, 3} and counts.count(3) == executed


def test_a_kernel_with_enabled_probes_reaches_the_tracepoint_itself(machine):
    machine.write(machine.symbol(VARIABLE).address, b"\1")
    breakpoints = Breakpoints(machine, records=True)
    breakpoints.add_static(0)
    breakpoints.enable()
    calls(machine)
    breakpoints.disable()
    assert [record.registers[0] for record in breakpoints.firings()] == [99, 8]


def table(machine, code=None):
    symbol = machine.symbol("describe")
    return list(instructions(TRAPS[machine.arch.name], code or machine.read(
        symbol.address, symbol.size), symbol))


def test_a_branch_on_another_variable_is_not_a_guard(machine):
    site, variable = machine.symbol("describe").address, machine.symbol(VARIABLE).address
    _code, at = looks(machine.arch.name, site, variable)
    trap = TRAPS[machine.arch.name]
    found = guards.guard(trap, table(machine), variable, site + at, machine.read_u64)
    assert found.target > found.otherwise.address > found.branch.address
    assert guards.guard(trap, table(machine), variable + 1, site + at, machine.read_u64) is None
    assert guards.guard(trap, table(machine), variable, site, machine.read_u64) is None


def test_code_that_does_more_than_set_up_arguments_has_no_guard(machine):
    """Replace the last jump, which leads back to the common code, with a return."""
    site, variable = machine.symbol("describe").address, machine.symbol(VARIABLE).address
    code, at = looks(machine.arch.name, site, variable)
    trap = TRAPS[machine.arch.name]
    less = {"amd64": code[:15] + b"\xc3\x90" + code[17:],
            "arm64": code[:24] + struct.pack("<I", 0xD65F03C0) + code[28:],
            "riscv64": code[:24] + struct.pack("<I", 0x8067) + code[28:]}[machine.arch.name]
    assert guards.guard(trap, table(machine, less), variable, site + at, machine.read_u64) is None
