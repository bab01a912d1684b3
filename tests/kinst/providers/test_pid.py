"""Tests of the choice of functions in a process that has mapped several objects."""

import itertools
import random
from pathlib import Path

import pytest

from dwarf.debug_file import DebugDataError
from emu.arch.architectures import arch_of
from emu.elf.program import ProgramFile
from emu.host.input_file import InputFile
from kinst.code.listing import image_code
from kinst.probes.probe_table import ProbeTable
from kinst.probes.probed_code import ProbeError
from kinst.probes.traced_program import TracedObject, TracedProgram
from kinst.providers import inline
from kinst.providers.pid import Pid
from kinst.providers.provider import Wanted
from tests.elfwriter import Elf
from tests.kinst.providers.test_inline import Index

CODE = bytes(0x200)


def an_object(name, symbols, moved):
    content = Elf(kind=3, segments=[(0x10B0, CODE, len(CODE))], symbols=[
        (symbol, address, 16, 2) for symbol, address in symbols]).build()
    file = InputFile(Path(name), memoryview(content), (0, 0, 0, 0, 0))
    return TracedObject(name, ProgramFile(Path(name), file, True), moved)


PROGRAM = TracedProgram(17, "prog", (
    an_object("prog", [("main", 0x10B0), ("shared", 0x10C0)], 0x100000),
    an_object("libc.so.7", [("malloc", 0x10B0), ("shared", 0x1100)], 0x200000),
    an_object("libm.so.5", [("sin", 0x10B0)], 0x300000),
    an_object("libm.so.5", [("sin", 0x10B0)], 0x400000),  # it was loaded twice
    an_object("low.so", [("low", 0x10B0)], -0x2000)), True)


class Probes:
    """Records the probes that are added in a program."""

    def __init__(self):
        self.added = []

    def add_program(self, program, types):
        assert program is PROGRAM
        return 1

    def add_in_program(self, program, function, kind, offset, code):
        assert len(code) == 16
        self.added.append((function.module, function.name, function.address + offset))
        return len(self.added)


def wanted(module, function, name="entry", **more):
    return Wanted(f"pid17:{module}:{function}:{name}", function, name, module=module,
                  provider="pid17", **more)


def created(module, function):
    probes = Probes()
    Pid().create(probes, wanted(module, function, program=lambda _number: PROGRAM))
    return probes.added


@pytest.mark.parametrize("module, function, found", [
    ("a.out", "main", [("prog", "main", 0x1010B0)]),
    ("prog", "main", [("prog", "main", 0x1010B0)]),
    ("libc.so.7", "malloc", [("libc.so.7", "malloc", 0x2010B0)]),
    ("libm*", "sin", [("libm.so.5", "sin", 0x3010B0), ("libm.so.5", "sin", 0x4010B0)]),
    ("", "shared", [("prog", "shared", 0x1010C0), ("libc.so.7", "shared", 0x201100)]),
    ("libc", "malloc", [("libc.so.7", "malloc", 0x2010B0)]),
    ("libc*", "", [("libc.so.7", "malloc", 0x2010B0), ("libc.so.7", "shared", 0x201100)]),
])
def test_functions_are_those_of_the_objects_that_match(module, function, found):
    assert created(module, function) == found


@pytest.mark.parametrize("module, function, message", [
    ("libx.so", "f", r"has no module 'libx.so', only prog \(or a.out\), libc.so.7, "
     "libm.so.5 and low.so"),
    ("a.out", "malloc", "prog has no function 'malloc'"),
    ("libm.so.5", "sim", "libm.so.5 has no function 'sim'"),
    ("low.so", "low", "low is outside the address space of programs"),
])
def test_what_does_not_match_is_named(module, function, message):
    with pytest.raises(ProbeError, match=message):
        created(module, function)


# -- inline functions ------------------------------------------------------------------------------

MOVED = 0x7000_0000


class Table(ProbeTable):
    """Probes of a machine whose kernel has no processes."""

    def add_program(self, program, types):
        self.programs.append(program)
        return self.dispatcher.add_program(program.process, program.name.encode(), True)


def copied(image, name):
    """Return a program with the code of a function of the kernel, and the function in it."""
    function = image.symbols.named(name)[0]
    code = image_code(image, function)
    content = Elf(arch=arch_of(image).name, kind=3, symbols=[(name, 0x10B0, len(code), 2)],
                  segments=[(0x10B0, code, len(code))]).build()
    file = ProgramFile(Path("prog"), InputFile(Path("prog"), memoryview(content), (0,) * 5), True)
    one = TracedObject("prog", file, MOVED)
    return TracedProgram(17, "prog", (one,), True), file.symbols.named(name)[0]


@pytest.fixture(params=range(8))
def pieces(request, booted):
    """Return random pieces of a function with loops and branches, relative to the function."""
    chance = random.Random(request.param)
    table = Table(booted)
    function = booted.symbol("crc32")
    starts = [i.offset for i in table.instructions(function)] + [function.size]
    places = [chance.randrange(len(starts) - 1) for _ in range(chance.randrange(1, 4))]
    return [(starts[at], starts[min(len(starts) - 1, at + chance.randrange(1, 9))])
            for at in places]


@pytest.mark.parametrize("name", ["entry", "return"])
def test_a_copy_in_a_program_has_the_ends_of_the_same_code_in_the_kernel(booted, pieces, name):
    program, inside = copied(booted.image, "crc32")
    start = booted.symbol("crc32").address
    kernel, user = Table(booted), Table(booted)
    wanted_there = inline.create(kernel, Index([[(start + low, start + high)
                                                 for low, high in pieces]]), "tiny", name)
    made = Pid().create(user, wanted(
        "a.out", "tiny", name, program=lambda _number: program,
        debug=lambda file: Index([[(inside.address + low, inside.address + high)
                                   for low, high in pieces]])))
    assert not wanted_there.reports and not made.reports and made.numbers
    assert [user.offset(n) for n in made.numbers] == [
        kernel.offset(n) for n in wanted_there.numbers]
    assert [user.dispatcher.ranges_of(user.dispatcher.copy_of(n)[0]) for n in made.numbers] == [
        [(low - start + inside.address + MOVED, high - start + inside.address + MOVED)
         for low, high in kernel.dispatcher.ranges_of(kernel.dispatcher.copy_of(n)[0])]
        for n in wanted_there.numbers]
    for number in made.numbers:
        assert user.names(number) == ("pid17", "prog", "crc32", f"{user.offset(number):x}")
        assert user.program_of(number) is program
    for copies in made.copies.values():  # as in the file, where the debug data describes them
        assert all(low < MOVED for copy in copies for low, _high in copy.pieces)


def test_only_a_name_given_in_full_selects_inline_copies(booted):
    program, inside = copied(booted.image, "crc32")
    asked = []

    def debug(file):
        asked.append(file)
        return Index([[(inside.address + 4, inside.address + 16)]])

    def made(function, name):
        return Pid().create(Table(booted), wanted(
            "", function, name, program=lambda _number: program, debug=debug))

    assert len(made("*", "entry").numbers) == len(made("", "entry").numbers) == 1
    assert made("crc32", "0").numbers and not asked  # no debug data is needed
    with pytest.raises(ProbeError, match="'tiny' exists only as 1 inline copy; use entry or "):
        made("tiny", "4")
    with pytest.raises(ProbeError, match=r"has no function 't\[i\]ny'"):
        made("t[i]ny", "entry")


@pytest.mark.parametrize("pieces, message", [
    ([(0x10B0, 1 << 63)], "1 inline copy outside the address space of programs: damaged"),
    ([(0x20, 0x10)], "1 inline copy outside the address space of programs: damaged"),
    ([(0x9000, 0x9010)], "is not in a function"),
    (None, "it is not an instruction of crc32"),
])
def test_damaged_debug_data_is_reported(booted, pieces, message):
    program, inside = copied(booted.image, "crc32")
    if pieces is None:
        long = next(i.offset for i in Table(booted).instructions(booted.symbol("crc32"))
                    if len(i.code) > 2)
        pieces = [(inside.address + long + 1, inside.address + long + 2)]
    with pytest.raises(ProbeError, match=message):
        Pid().create(Table(booted), wanted("", "tiny", program=lambda _number: program,
                                           debug=lambda file: Index([pieces])))

    def damaged(file):
        raise DebugDataError("bad unit")

    found = Pid().create(Table(booted), wanted("", "crc32", program=lambda _number: program,
                                               debug=damaged))
    assert len(found.numbers) == 1
    assert found.reports == ["pid17::crc32:entry: the inline copies are unknown: bad unit"]
    with pytest.raises(ProbeError, match="the inline copies are unknown: bad unit"):
        Pid().create(Table(booted), wanted("", "tiny", program=lambda _number: program,
                                           debug=damaged))
    for name, message in (("tiny", "its inline copies were optimized away"),
                          ("mangled", "have the names of symbols: _ZL4tinyi")):
        with pytest.raises(ProbeError, match=f"has no function '{name}'; .*{message}"):
            Pid().create(Table(booted), wanted("", name, program=lambda _number: program,
                                               debug=lambda file: Index([])))
    with pytest.raises(ProbeError, match="an inline function has probes only if there is DWARF"):
        Pid().create(Table(booted), wanted("", "tiny", program=lambda _number: program,
                                           debug=lambda file: None))


def test_a_copy_in_a_program_is_not_forgotten_while_its_thread_is_in_another_stack(booted):
    """A coroutine or a signal handler may run in a stack that is higher, or lower."""
    program, inside = copied(booted.image, "crc32")
    table = Table(booted)
    made = Pid().create(table, wanted(
        "", "tiny", program=lambda _number: program,
        debug=lambda file: Index([[(inside.address + 4, inside.address + 16)]])))
    native, number, kept = table.dispatcher, made.numbers[0], booted.snapshot()
    stacks = booted.sp, booted.sp + 0x8000, booted.sp - 0x8000
    for leaving in itertools.permutations(stacks):
        for at in stacks:
            booted.write_register(booted.arch.sp, at)
            assert native.enter_copy(number)
        for at in leaving:
            booted.write_register(booted.arch.sp, at - 16)
            assert native.leave_copy(number)
            booted.write_register(booted.arch.sp, at)
            assert native.enter_copy(number)
            assert native.leave_copy(number)
        assert not native.leave_copy(number)
    sp = booted.sp
    for at in (sp, sp - 48):  # the inner one is left by a tail call, after the epilogue
        booted.write_register(booted.arch.sp, at)
        assert native.enter_copy(number)
    for at in (sp - 8, sp + 40):
        booted.write_register(booted.arch.sp, at)
        assert native.leave_copy(number)
    booted.write_register(booted.arch.sp, sp)
    assert native.enter_copy(number) and native.leave_copy(number)
    assert not native.leave_copy(number)
    booted.restore(kept)
