"""Tests of ``kdtrace -G``, which replaces calls for probes and declares the probes."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrace.d.compile.program import Compiler
from dtrace.d.language.lexer import Macros
from dtrace.d.language.options import Options
from dtrace.d.language.surroundings import Nowhere
from dtrace.d.language.types import Universe
from dtrace.run.timers import OwnProbes
from dtrace.usdt.functions import ASKS, FIRES, parse_symbol, symbol
from dtrace.usdt.linked_probes import link_probes
from dwarf.dof import read_providers
from emu.arch.architectures import ARCHITECTURES
from emu.elf.reader import ElfFile, read_file
from emu.host.errors import ImageError, KinstError
from kinst.code.usdt_code import USDT_CODES
from tests.conftest import ARCHES
from tests.dtrace.usdt.object_file import ObjectFile, linked, symbols_of

SOURCE = """
#pragma D attributes Stable/Evolving/Common provider prov args
provider prov {
    probe go(int, char *);
    probe turned__round(int a, int b) : (int b, int a, int b);
};
"""
GO, ROUND = symbol(FIRES, "prov", "go"), symbol(FIRES, "prov", "turned-round")
ASK = symbol(ASKS, "prov", "go")
TEXT, DOF = 0x201000, 0x200100


def declared(source=SOURCE):
    compiler = Compiler(OwnProbes(), Options(), Universe(None), Nowhere())
    assert not list(compiler.read(source, Macros([], {})))
    return compiler.providers


def link(folder, arch, *objects, source=SOURCE):
    """Write object files and link their probes; return the files' paths and the object's."""
    paths = []
    for number, one in enumerate(objects):
        paths.append(folder / f"{number}.o")
        paths[-1].write_bytes(one.build())
    out = folder / "probes.o"
    link_probes(declared(source), paths, arch, ARCHITECTURES[arch].elf_machine, out)
    return paths, out


def probes_of(paths, out):
    """Return the code, and the linked probes as {(function, name): (sites, questions, probe)}."""
    code, dof = linked([path.read_bytes() for path in paths], out.read_bytes(), TEXT, DOF)
    found = {}
    (provider,) = read_providers(dof, DOF)
    for probe in provider.probes:
        places = found.setdefault((probe.function, probe.name), (set(), set(), probe))
        places[0].update(probe.address + offset for offset in probe.offsets)
        places[1].update(probe.address + offset for offset in probe.enabled)
    return code, found, provider


@pytest.mark.parametrize("arch", ARCHES)
def test_the_linked_probes_are_at_the_replaced_calls(arch, tmp_path):
    kind, size = USDT_CODES[arch], len(USDT_CODES[arch].fires)
    one = ObjectFile(arch, {"work": ["puts", GO, ASK, ROUND], "last": [GO, f"!{GO}"]})
    other = ObjectFile(arch, {"again": [ROUND]})
    paths, out = link(tmp_path, arch, one, other)
    code, found, provider = probes_of(paths, out)
    call = len(one.build()) and len(kind.fires)
    first = call  # after the call of puts
    assert {key: (sorted(a), sorted(b)) for key, (a, b, _probe) in found.items()} == {
        ("work", "go"): ([TEXT + first], [TEXT + first + size + kind.asks_at]),
        ("work", "turned-round"): ([TEXT + first + 2 * size], []),
        ("last", "go"): ([TEXT + first + 3 * size, TEXT + first + 4 * size], []),
        ("again", "turned-round"): ([TEXT + len(code) - size], [])}
    for places, questions, _probe in found.values():
        for at in places | questions:
            assert code[at - TEXT :].startswith(kind.nothing)
    assert code[first : first + size] == kind.fires
    assert code[first + 4 * size : first + 5 * size] == kind.fires_last
    probe = found["work", "turned-round"][2]
    assert (probe.native, probe.translated, probe.mapping) == (
        ("int", "int"), ("int", "int", "int"), (1, 0, 1))
    assert provider.name == "prov" and provider.attributes[4] == (6, 5, 5)


@pytest.mark.parametrize("arch", ARCHES)
def test_a_processed_object_file_can_be_processed_again(arch, tmp_path):
    one = ObjectFile(arch, {"work": [GO, ASK], "inlined": [f"!{ROUND}"]}, weak=("inlined",))
    (path,), out = link(tmp_path, arch, one)
    changed, probes = path.read_bytes(), out.read_bytes()
    link_probes(declared(), [path], arch, ARCHITECTURES[arch].elf_machine, out)
    assert path.read_bytes() == changed
    assert out.read_bytes() == probes


@pytest.mark.parametrize("arch", ARCHES)
def test_no_function_of_a_probe_stays_undefined(arch, tmp_path):
    (path,), _out = link(tmp_path, arch, ObjectFile(arch, {"f": ["puts", GO]}))
    symbols = symbols_of(ElfFile(read_file(path)))
    assert symbols["puts"][1] == 0
    assert symbols[GO][1] == 0xFFF1  # SHN_ABS


@pytest.mark.parametrize("one, source, message", [
    (ObjectFile("amd64", {"f": [GO]}, kind=2), SOURCE, r"0.o: not an object file"),
    (ObjectFile("amd64", {"f": [GO]}, relocation=42), SOURCE, "is not called directly"),
    (ObjectFile("amd64", {"f": [GO]}, section_flags=2), SOURCE, "is not called directly"),
    (ObjectFile("amd64", {"f": [symbol(FIRES, "other", "go")]}), SOURCE, "no such provider other"),
    (ObjectFile("amd64", {"f": [symbol(FIRES, "prov", "gone")]}), SOURCE, "no such probe gone"),
    (ObjectFile("amd64", {"f": ["puts"]}), SOURCE, "no object file has a probe of .* prov"),
])
def test_what_cannot_be_linked_is_refused_and_nothing_is_written(one, source, message, tmp_path):
    with pytest.raises(KinstError, match=message):
        link(tmp_path, "amd64", one, source=source)
    assert [path.name for path in tmp_path.iterdir()] == ["0.o"]
    assert (tmp_path / "0.o").read_bytes() == one.build()


def test_a_call_is_declared_once(tmp_path):
    """A C++ inline function is in several object files; the linker keeps one of them."""
    one = ObjectFile("amd64", {"inlined": [GO]}, weak=("inlined",))
    paths, out = link(tmp_path, "amd64", one, ObjectFile("amd64", {"f": [ROUND], "inlined": [GO]},
                                                         weak=("inlined",)))
    section = ElfFile(read_file(out)).section(".SUNW_dof")
    assert section.flags & 0x200000  # SHF_GNU_RETAIN: --gc-sections keeps it
    with pytest.raises(KinstError, match="given twice"):
        link_probes(declared(), [paths[0], paths[0]], "amd64", "X86_64", out)
    with pytest.raises(KinstError, match="is for AARCH64, not for X86_64"):
        link(tmp_path, "amd64", one, ObjectFile("arm64", {"f": [GO]}))


def test_nothing_is_written_if_the_output_cannot_be(tmp_path):
    one = ObjectFile("amd64", {"f": [GO]})
    path = tmp_path / "0.o"
    path.write_bytes(one.build())
    with pytest.raises(OSError):
        link_probes(declared(), [path], "amd64", "X86_64", tmp_path / "none" / "p.o")
    assert path.read_bytes() == one.build()


def test_names_need_not_be_text(tmp_path):
    (path,), out = link(tmp_path, "amd64", ObjectFile("amd64", {"gr\udcffsse": [GO]}))
    assert b"gr\xffsse" in path.read_bytes() and b"gr\xffsse" in out.read_bytes()


def test_a_provider_may_have_underscores_in_its_name(tmp_path):
    source = "provider two__words { probe go(); };"
    call = symbol(FIRES, "two__words", "go")
    link(tmp_path, "amd64", ObjectFile("amd64", {"f": [call]}), source=source)
    assert call == "__dtrace_two__words___go"


def test_a_function_calls_a_probe_at_most_65535_times(tmp_path):
    with pytest.raises(KinstError, match="more than 65535 times"):
        link(tmp_path, "amd64", ObjectFile("amd64", {"f": [GO] * 65_536}))


@settings(deadline=None)
@given(st.data())
def test_damaged_object_files_are_refused_or_linked(tmp_path_factory, data):
    folder, good = tmp_path_factory.mktemp("damaged"), ObjectFile(
        "amd64", {"work": ["puts", GO, ASK], "last": [f"!{ROUND}"]}).build()
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(bad) - 1))
        bad[at] = data.draw(st.integers(0, 255))
    path = folder / "bad.o"
    path.write_bytes(bytes(bad[: data.draw(st.integers(len(bad) // 2, len(bad)))]))
    with contextlib.suppress(ImageError, KinstError):
        link_probes(declared(), [path], "amd64", "X86_64", folder / "probes.o")
    path.unlink()


@given(st.from_regex(r"[a-z][a-z0-9]*(_{1,2}[a-z0-9]+){0,2}", fullmatch=True),
       st.from_regex(r"[a-z][a-z0-9]*(-[a-z0-9]+){0,2}", fullmatch=True))
def test_the_name_of_a_function_says_its_provider_and_probe(provider, probe):
    for kind in (FIRES, ASKS):
        assert parse_symbol(symbol(kind, provider, probe)) == (kind, provider, probe)
    assert parse_symbol(f"x{symbol(FIRES, provider, probe)}") is None
