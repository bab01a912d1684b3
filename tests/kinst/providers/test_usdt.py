"""Tests of the providers that programs declare: names, patterns, and what cannot be probed."""

import struct
from pathlib import Path

import pytest

from dtrace.usdt.dof_writer import write_dof
from dwarf.dof import SECTION, DofProbe, DofProvider
from emu.arch.architectures import ARCHITECTURES
from emu.elf.program import ProgramFile
from emu.host.errors import KinstError
from emu.host.input_file import InputFile
from kinst.probes.probed_code import ProbeError
from kinst.probes.traced_program import TracedObject, TracedProgram
from kinst.providers.provider import Wanted
from kinst.providers.usdt import Usdt
from tests.elfwriter import Elf

AT, CODE = 0x10B0, b"\x90" * 0x100
PRIVATE = ((1, 1, 0),) * 5


def an_object(name, providers, moved=0, code=CODE, damage=lambda dof: dof):
    """Return an object whose functions are at ``AT``; its section of DOF has the address 0."""
    dof = write_dof(providers, [["f"] * len(one.probes) for one in providers])
    made = bytearray(dof.content)
    for at, _symbol in dof.fields:
        struct.pack_into("<Q", made, at, AT - at & (1 << 64) - 1)
    content = Elf(kind=3, segments=[(AT, code, len(code))], symbols=[("main", AT, 16, 2)],
                  others={SECTION: damage(bytes(made))}).build()
    file = InputFile(Path(name), memoryview(content), (0, 0, 0, 0, 0))
    return TracedObject(name, ProgramFile(Path(name), file, True), moved)


def provider(name, *probes):
    return DofProvider(name, PRIVATE, tuple(
        DofProbe(function, probe, 0, ("int", "char *"), ("char *", "int"), (1, 0), (offset,),
                 (offset + 1,)) for function, probe, offset in probes))


ONE = provider("prov", ("main", "go", 4), ("other", "go", 8), ("main", "slow-way", 12))
MAIN = an_object("prog", [ONE, provider("second", ("main", "go", 16))], 0x100000)
LIBRARY = an_object("lib.so", [provider("prov", ("lib", "go", 20))], 0x200000)
PROGRAMS = {17: TracedProgram(17, "prog", (MAIN, LIBRARY), True),
            18: TracedProgram(18, "prog", (MAIN,), False),
            19: TracedProgram(19, "none", (an_object("none", []),), True)}


class Probes:
    """Records the probes that are added."""

    arch = ARCHITECTURES["amd64"]

    def __init__(self):
        self.added = []

    def add_program(self, program, types):
        return program.process

    def add_declared(self, program, probe, mapping, fires, asks):
        assert mapping == (1, 0) and [one.type for one in probe.arguments] == ["char *", "int"]
        (fired,), (asked,) = fires, asks
        assert fired[1] == CODE[:15] and asked[0] == fired[0] + 1
        self.added.append((probe.text, fired[0]))
        return len(self.added)


def created(text, programs=PROGRAMS):
    probes = Probes()
    name, module, function, last = text.split(":")
    made = Usdt().create(probes, Wanted(
        text, function, last, module=module, provider=name,
        programs=lambda process: [one for number, one in programs.items()
                                  if process in (None, number)]))
    return probes.added, made


GO = [("prov17:prog:main:go", 0x100000 + AT + 4), ("prov17:prog:other:go", 0x100000 + AT + 8),
      ("prov17:lib.so:lib:go", 0x200000 + AT + 20)]
OF_18 = [("prov18:prog:main:go", 0x100000 + AT + 4), ("prov18:prog:other:go", 0x100000 + AT + 8)]


@pytest.mark.parametrize("text, found", [
    ("prov17:::go", GO),
    ("prov*:::go", GO + OF_18),
    ("p*v18:::go", OF_18),
    ("prov17:a.out::go", GO[:2]),
    ("prov17:lib*::", GO[2:]),
    ("prov17::main:go", GO[:1]),
    ("prov17:::slow-*", [("prov17:prog:main:slow-way", 0x100000 + AT + 12)]),
    ("second17:::", [("second17:prog:main:go", 0x100000 + AT + 16)]),
])
def test_probes_are_those_of_the_objects_and_processes_that_match(text, found):
    assert created(text)[0] == found


@pytest.mark.parametrize("text, message", [
    ("prov17:::gone", "declares no such probe"),
    ("prow17:::go", "no provider has this name, only prov17, second17"),
    ("prov19:::go", "the program of this process declares no probes"),
    ("zz*:::go", "no provider has this name"),
])
def test_what_does_not_match_is_named(text, message):
    with pytest.raises(ProbeError, match=message):
        created(text)


@pytest.mark.parametrize("bad, message", [
    (an_object("bad", [ONE], damage=lambda dof: dof[:-9]), "bad: damaged .SUNW_dof"),
    (an_object("bad", [ONE], code=b"\x50" * 0x100), "stands for no probe"),
    (an_object("bad", [ONE], moved=1 << 50), "outside the address space"),
    (an_object("bad", [provider("prov", ("main", "go", 1 << 20))]), "has no code at"),
])
def test_a_damaged_object_does_not_hide_the_others(bad, message):
    with pytest.raises(ProbeError, match=message):
        created("prov20:::go", {20: TracedProgram(20, "bad", (bad,), True)})
    added, made = created("prov*:::go", {20: TracedProgram(20, "bad", (bad, MAIN), True)})
    assert [text for text, _at in added] == ["prov20:prog:main:go", "prov20:prog:other:go"]
    assert any(message in report for report in made.reports)


def test_an_argument_that_is_not_in_a_register_for_integers_is_not_read():
    one = DofProvider("prov", PRIVATE, (DofProbe(
        "main", "go", 0, ("double", "int"), ("double", "int"), (0, 1), (4,), ()),))
    with pytest.raises(ProbeError, match="argument of type double, which cannot be read"):
        created("prov20:::go", {20: TracedProgram(20, "bad", (an_object("bad", [one]),), True)})


def test_two_programs_of_a_name_are_reported():
    made = created("prov20:::go", {20: TracedProgram(20, "prog", (MAIN,), True, True)})[1]
    assert "runs several programs named prog" in made.reports[0]


def test_process_0_is_the_kernel():
    with pytest.raises(ProbeError, match="process 0 is the kernel"):
        created("prov0:::go")


def test_what_processes_run_may_be_unknown():
    def programs(_process):
        raise KinstError("the kernel's types do not describe processes")
    with pytest.raises(ProbeError, match="do not describe processes"):
        Usdt().create(Probes(), Wanted("p*:::", "", "", provider="p*", programs=programs))
    with pytest.raises(ProbeError, match="need a D program"):
        Usdt().create(Probes(), Wanted("p*:::", "", "", provider="p*"))


@pytest.mark.parametrize("pattern, matches", [
    ("prov17", True), ("prov*", True), ("*", True), ("", False), ("pid17", False), ("prov", False),
    ("p*d17", True), ("17", False)])
def test_a_provider_of_a_program_ends_with_the_number_of_a_process(pattern, matches):
    assert Usdt().matches(pattern) == matches
