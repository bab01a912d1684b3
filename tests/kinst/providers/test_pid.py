"""Tests of the choice of functions in a process that has mapped several objects."""

from pathlib import Path

import pytest

from emu.elf.program import ProgramFile
from emu.host.input_file import InputFile
from kinst.probes.probed_code import ProbeError
from kinst.probes.traced_program import TracedObject, TracedProgram
from kinst.providers.pid import Pid
from kinst.providers.provider import Wanted
from tests.elfwriter import Elf

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


def created(module, function, name="entry"):
    probes = Probes()
    text = f"pid17:{module}:{function}:{name}"
    Pid().create(probes, Wanted(text, function, name, module=module, provider="pid17",
                                program=lambda _number: PROGRAM))
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
