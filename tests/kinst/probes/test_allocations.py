"""Tests of the probes for types of memory: the native lookup, and arguments found in code.

Sites and types are added to the dispatcher directly; ``tests/real/test_allocations.py`` compares
the probes with the statistics of a kernel.
"""

import random

import pytest

from emu.elf.symbols import Symbol
from emu.guest.guest import GuestProbes
from emu.guest.static_probe import StaticProbe
from emu.host.errors import MachineError
from kinst.code.convention import CONVENTIONS
from kinst.code.listing import instructions
from kinst.probes import allocations
from kinst.probes.breakpoints import PATHS, Breakpoints
from kinst.relocation.template import NO_REGISTER
from kinst.relocation.trap import TRAPS
from tests.kinst.code.test_operands import assembled
from tests.kinst.code.test_swaps import riscv64
from tests.kinst.providers.test_provider import run

OF_CPU = 0x100  # what is added to the address of statistics for the CPU
MASK = (1 << 64) - 1
CPU = "refused"  # variable that stands for the word of the CPU


@pytest.fixture
def machine(booted):
    declared = [StaticProbe("memory", "", "none", f"n{n}", (), ()) for n in range(600)]
    booted.guest = booted.guest._replace(probes=GuestProbes(
        declared=lambda image, memory: declared))
    booted.write_u64(booted.symbol(CPU).address, OF_CPU)
    return booted


def page(machine):
    """Return the address of a page of data, in which the tests have their types of memory."""
    return machine.symbol(CPU).address & ~0xFFF


def with_site(machine, path, frees=False, **places):
    """Return breakpoints with a site at the beginning of ``describe``."""
    breakpoints = Breakpoints(machine, path=path, records=True)
    dispatcher, names = breakpoints.dispatcher, breakpoints.templates.names
    register = machine.guest.threads.per_cpu
    dispatcher.use_allocations(
        breakpoints.trap.numbers[register], internal=24, statistics=8,
        of_cpu=(machine.symbol(CPU).address - machine.read_register(register)) & MASK)
    site = machine.symbol("describe").address
    first = names.index(CONVENTIONS[machine.arch.name].registers[0])
    dispatcher.add_allocation_site(site, machine.read(site, 16), frees, kind=first, **(
        {"size": NO_REGISTER, "size_value": 5, "zone": NO_REGISTER, "zone_value": MASK} | places))
    return breakpoints


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("frees", [False, True])
def test_the_probe_of_a_type_fires_where_its_memory_is_counted(machine, path, frees):
    one, other, third = (page(machine) + at for at in (0x900, 0x100, 0x500))
    plain = machine.snapshot()
    values = [run(machine, "describe", [kind]) for kind in (one, third, other)]
    untraced = machine.digest()
    machine.restore(plain)
    breakpoints = with_site(machine, path, frees)
    declared = {(kind, event): breakpoints.dispatcher.add_static(n) for n, (kind, event) in
                enumerate(((one, frees), (other, frees), (third, not frees)))}
    for (kind, event), number in declared.items():
        breakpoints.dispatcher.add_allocation(kind, event, number)
    breakpoints.enable()
    assert [run(machine, "describe", [kind]) for kind in (one, third, other)] == values
    breakpoints.disable()
    assert machine.digest() == untraced
    fired = [(record.probe.id - 1, record.registers) for record in breakpoints.firings()]
    assert fired == [(declared[kind, frees], (
        kind, kind + 24, machine.read_u64(kind + 8) + OF_CPU & MASK, 5, MASK))
        for kind in (one, other)]


def test_statistics_that_cannot_be_read_end_the_run(machine):
    breakpoints = with_site(machine, "direct")
    breakpoints.dispatcher.add_allocation(1 << 60, False, breakpoints.dispatcher.add_static(0))
    breakpoints.enable()
    with pytest.raises(MachineError, match=r"statistics of the type of memory at 0x10{15}"):
        run(machine, "describe", [1 << 60])
    assert not list(breakpoints.firings())


def test_arguments_come_from_registers_and_the_statistics_of_the_type(machine):
    """Let the register with the size also have the number of the zone: an ``int``."""
    kind = page(machine) + 0x800
    machine.write_u64(kind + 8, 0x1234)
    first = CONVENTIONS[machine.arch.name].registers[0]
    place = Breakpoints(machine).templates.names.index(first)
    breakpoints = with_site(machine, "direct", size=place, zone=place)
    number = breakpoints.dispatcher.add_static(0)
    breakpoints.dispatcher.add_allocation(kind, False, number)
    breakpoints.enable()
    run(machine, "describe", [kind])
    breakpoints.disable()
    (record,) = breakpoints.firings()
    low = (kind & 0xFFFFFFFF) - ((kind & 0x80000000) << 1)
    assert record.registers == (kind, kind + 24, 0x1234 + OF_CPU, kind, low & MASK)


def test_600_types_in_random_order_are_told_apart(machine):
    breakpoints = with_site(machine, "direct")
    kinds = random.Random(1).sample(range(page(machine), page(machine) + 4000), 1200)
    numbers = [breakpoints.dispatcher.add_static(n) for n in range(600)]
    for kind, number in zip(kinds[:600], numbers, strict=True):
        breakpoints.dispatcher.add_allocation(kind, False, number)
    breakpoints.enable()
    for kind, other in zip(kinds[:50], kinds[600:], strict=False):
        run(machine, "describe", [kind])
        run(machine, "describe", [other])
    breakpoints.disable()
    assert [record.probe.id - 1 for record in breakpoints.firings()] == numbers[:50]


def test_wrong_sites_and_probes_are_refused(machine):
    breakpoints = with_site(machine, "direct")
    site = machine.symbol("describe").address
    places = {"size": NO_REGISTER, "size_value": 0, "zone": NO_REGISTER, "zone_value": 0}
    for wrong in ({"kind": 200}, {"kind": 0, "size": 200}, {"kind": 0, "zone": 200}, {"kind": 0}):
        with pytest.raises(ValueError):
            breakpoints.dispatcher.add_allocation_site(
                site, machine.read(site, 16), False, **places | wrong)
    with pytest.raises(ValueError):
        breakpoints.dispatcher.add_allocation(1, False, 0)


# A test whether allocations are traced, and the code that passes the size in the fifth argument:
# a check for a probe, a copy through another register, the call, and the way back.
CODE = {
    "amd64": assembled("amd64", "cmp al, 1; je 0x1005; ret; mov ecx, [rdi]; test ecx, ecx; "
                       "je 0x1004; mov r9, rbx; mov r8, r9; xor r9d, r9d; call rdx; jmp 0x1004"),
    "arm64": assembled("arm64", "cmp w8, #1; b.eq #0x100c; ret; ldr w9, [x0]; cbz w9, #0x1008; "
                       "mov x5, x20; mov x4, x5; mov x5, xzr; blr x8; b #0x1008"),
    "riscv64": riscv64(0x00079363, 0x8082, 0x4118, 0xDF75, 0x87A6, 0x873E, 0x4781, 0x9682, 0xBFDD),
}
SIZE = {"amd64": ("r8", "rbx"), "arm64": ("x4", "x20"), "riscv64": ("a4", "s1")}


@pytest.mark.parametrize("arch", CODE)
def test_the_register_of_an_argument_is_found_in_the_code_that_passes_it(arch, booted):
    argument, source = SIZE[arch]
    symbol = Symbol("f", 0x1000, len(CODE[arch]), 0)
    table = list(instructions(TRAPS[arch], CODE[arch], symbol))
    branch = next(i for i in table if hasattr(i.verdict, "target"))
    test = allocations._Test(Breakpoints(booted), symbol, table, branch, branch.verdict, {})
    assert test._passed(argument) == source
