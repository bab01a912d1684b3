"""Tests of the probes that a program declares, as its DOF has them."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtrace.usdt.dof_writer import write_dof
from dwarf.dof import HEADER, DofError, DofProbe, DofProvider, read_providers

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
TYPES = st.lists(st.sampled_from(["int", "char *", "struct proc *", "uint64_t"]), max_size=6)
OFFSETS = st.lists(st.integers(0, 1 << 20), max_size=4).map(tuple)
ATTRIBUTES = st.tuples(*[st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(0, 5))] * 5)


@st.composite
def probes(draw):
    native = tuple(draw(TYPES))
    mapping = tuple(draw(st.lists(st.integers(0, len(native) - 1), max_size=6))) if native else ()
    return DofProbe(draw(NAMES), draw(NAMES).replace("_", "-") or "x", 0, native,
                    tuple(native[one] for one in mapping), mapping, draw(OFFSETS), draw(OFFSETS))


PROVIDERS = st.lists(st.builds(DofProvider, NAMES, ATTRIBUTES, st.lists(
    probes(), min_size=1, max_size=4).map(tuple)), min_size=1, max_size=3)
ONE = DofProvider("prov", ((1, 1, 0),) * 5, (
    DofProbe("main", "go", 0, ("int", "int"), ("int", "int"), (0, 1), (16,), (8,)),))


def written(providers):
    """Return DOF, and the offsets of the fields with addresses."""
    dof = write_dof(providers, [["f"] * len(one.probes) for one in providers])
    return dof.content, [at for at, _name in dof.fields]


@given(PROVIDERS, st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_what_is_written_is_read_with_the_addresses_of_the_functions(providers, address, function):
    content, fields = written(providers)
    made = bytearray(content)
    for at in fields:
        struct.pack_into("<Q", made, at, function - (address + at) & (1 << 64) - 1)
    read = read_providers(bytes(made), address)
    assert [one.name for one in read] == [one.name for one in providers]
    for one, other in zip(read, providers, strict=True):
        assert one.attributes == other.attributes
        assert [vars(probe) | {"address": 0} for probe in one.probes] == [
            vars(probe) for probe in other.probes]
        assert {probe.address for probe in one.probes} == {function}


@given(PROVIDERS, PROVIDERS, st.integers(0, 3))
def test_a_section_may_hold_the_dof_of_several_object_files(first, second, padding):
    pieces = [written(one)[0] for one in (first, second)]
    pieces = [piece + bytes(-len(piece) % 8) for piece in pieces]
    read = read_providers(pieces[0] + bytes(8 * padding) + pieces[1], 0)
    assert [one.name for one in read] == [one.name for one in first + second]


def test_a_distance_of_32_bits_may_be_negative():
    """The relocation of riscv64 that dtrace(1) writes leaves out the upper half."""
    content, (at,) = written([ONE])
    made = bytearray(content)
    struct.pack_into("<I", made, at, -0x1000 & 0xFFFFFFFF)
    for narrow, distance in ((True, -0x1000), (False, -0x1000 & 0xFFFFFFFF)):
        (provider,) = read_providers(bytes(made), 0x40000, narrow)
        assert provider.probes[0].address == 0x40000 + at + distance


@given(PROVIDERS, st.data())
def test_damaged_dof_is_refused_or_read(providers, data):
    made = bytearray(written(providers)[0])
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(made) - 4))
        struct.pack_into("<I", made, at, data.draw(st.sampled_from(
            [0, 1, 2, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, len(made)])))
    with contextlib.suppress(DofError):
        read_providers(bytes(made), 0)


@pytest.mark.parametrize("change, message", [
    (lambda dof: dof[:40], "header is truncated"),
    (lambda dof: dof[:-8], "truncated"),
    (lambda dof: b"X" + dof[1:], "does not begin with"),
    (lambda dof: dof[:4] + b"\1" + dof[5:], "data model 1"),
    (lambda dof: dof[:6] + b"\3" + dof[7:], "version 3"),
    (lambda dof: dof[:28] + struct.pack("<I", 1 << 30) + dof[32:], "other sizes"),
    (lambda dof: dof.replace(b"prov\0", b"1rov\0"), "not the name of a provider"),
    (lambda dof: dof.replace(bytes((0, 0, 1, 1)), bytes((0, 0, 9, 1)), 1), "not stability"),
])
def test_damage_is_named(change, message):
    content, _fields = written([ONE])
    with pytest.raises(DofError, match=message):
        read_providers(change(content), 0)


@pytest.mark.parametrize("name", [b"ma:n", b"ma\x1bn", b"ma\nn"])
def test_a_probe_with_an_odd_name_is_left_out_alone(name):
    two = DofProvider("prov", ((1, 1, 0),) * 5, (*ONE.probes, DofProbe(
        "plain", "go", 0, ("int",), ("int",), (0,), (16,), ())))
    content, _fields = written([two])
    (provider,) = read_providers(content.replace(b"main\0", name + b"\0"), 0)
    assert [one.function for one in provider.probes] == ["plain"]
    (reason,) = provider.left_out
    assert "not printable" in reason and reason.isprintable()


def test_long_and_foreign_names_are_read():
    odd = DofProvider("prov", ((1, 1, 0),) * 5, tuple(
        DofProbe(function, "go", 0, (), (), (), (16,), ()) for function in ("größe", "f" * 300)))
    (provider,) = read_providers(written([odd])[0], 0)
    assert [one.function for one in provider.probes] == ["größe", "f" * 300]


def test_names_and_types_that_are_used_again_and_again_are_limited():
    types = ("x" * 1000,) * 255
    many = DofProvider("prov", ((1, 1, 0),) * 5, tuple(
        DofProbe("main", "go", 0, types, (), (), (16,), ()) for _ in range(80)))
    with pytest.raises(DofError, match="too long"):
        read_providers(written([many])[0], 0)


def test_the_same_offsets_cannot_be_counted_without_end():
    many = DofProvider("prov", ((1, 1, 0),) * 5, tuple(
        DofProbe("main", f"p{n}", 0, (), (), (), tuple(range(60_000)) if n == 0 else (), ())
        for n in range(40)))
    content, fields = written([many])
    made = bytearray(content)
    for at in fields:  # let all probes have the offsets of the first one
        struct.pack_into("<I", made, at + 28, 0)
        struct.pack_into("<H", made, at + 34, 60_000)
    with pytest.raises(DofError, match="too many"):
        read_providers(bytes(made), 0)
    assert len(content) > HEADER.size
