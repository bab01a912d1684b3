"""Tests that probes of many instructions mean the same together as one by one."""

import itertools

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from dtrace.d.compile.program import ListedProbe
from dtrace.run import linked_programs
from dtrace.run.enabled_probes import EnabledClauses
from dtrace.run.instruction_probes import InstructionProbes
from images import boots, catalog
from kinst.probes.breakpoints import Breakpoints
from kinst.providers import kinst_provider
from tests.dtrace.programs import command, run

apart = linked_programs.apart
DESCRIPTIONS = ("kinst::strlen:", "kinst::str*:", "kinst::*:", "kinst::strlen:4", "kinst::crc32:",
                "fbt::strlen:entry", "fbt::strlen:return", "fbt:::", "BEGIN", "END")
BODY = '{ printf("%d %d %s %s %s %s\\n", epid, id, probeprov, probemod, probefunc, probename); }'


def traced(program):
    status, out, errors = run("-k", "teaching/amd64", "-q", "-n", program, "-c", 'strlen("abc")')
    assert status == 0, errors
    return out


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.sampled_from(DESCRIPTIONS), min_size=1, max_size=3), min_size=1,
                max_size=4))
def test_clauses_of_many_probes_print_what_single_probes_print(monkeypatch, clauses):
    program = " ".join(f"{', '.join(probes)} {BODY}" for probes in clauses)
    printed, grouped = [], []
    for least in (1, 10**9):
        with monkeypatch.context() as patched:
            patched.setattr(linked_programs, "MANY", least)
            patched.setattr(linked_programs, "apart", lambda compiled: grouped.append(
                apart(compiled)) or dict(grouped[-1]))
            printed.append(traced(program))
    assert printed[0] == printed[1]
    assert not grouped[1]
    if any(one.startswith("kinst") for probes in clauses for one in probes):
        event("grouped" if grouped[0] else "not grouped")


@pytest.mark.parametrize("arch", ["amd64", "arm64", "riscv64"])
def test_a_list_of_many_probes_has_the_lines_of_its_probes(arch):
    breakpoints = Breakpoints(boots.booted(catalog.find(f"teaching/{arch}")))
    places = kinst_provider.create(breakpoints, "*", "")
    probes = InstructionProbes(breakpoints, 100, places)
    assert len(probes) == len(places) > 300
    rows = list(probes)
    assert [probe.number for probe in rows] == list(probes.numbers) == [n + 100 for n in places]
    assert [(probe.module, probe.function, probe.name) for probe in rows] == [
        (function.module_name, function.name, str(offset))
        for function, _first, offsets in probes.runs() for offset in offsets]
    status, out, _errors = command("-k", f"teaching/{arch}", "-l", "-n", "kinst::*:")
    assert status == 0
    assert [line.split() for line in out.splitlines()[1:]] == [
        [str(p.id), p.provider, p.module, p.function, p.name] for p in rows]
    assert probes[3:5] == rows[3:5] and probes[-1] == rows[-1]


def test_probes_are_listed_by_their_ids():
    """The IDs of probes that another description has created are lower."""
    status, out, _errors = command("-k", "teaching/amd64", "-l", "-n", "kinst::strlen:4", "-n",
                                   "kinst::strlen:")
    assert status == 0
    rows = [line.split() for line in out.splitlines()[2:]]
    assert [int(row[0]) for row in rows] == sorted(int(row[0]) for row in rows)
    assert rows[0][4] == "4" and rows[1][4] == "0"


def test_clauses_of_the_same_many_probes_are_linked_once(monkeypatch):
    """Only the first clause looks at the probes one by one."""
    monkeypatch.setattr(linked_programs, "MANY", 1)
    made = []
    monkeypatch.setattr(InstructionProbes, "_probe", lambda self, place: made.append(place)
                        or ListedProbe(100 + place, *self._table.names(place)))
    traced(f"BEGIN {BODY} " + f"kinst::*: {BODY} " * 3)
    assert len(made) < 200


def test_repeated_and_unordered_places_count_once():
    breakpoints = Breakpoints(boots.booted(catalog.find("teaching/amd64")))
    places = kinst_provider.create(breakpoints, "strlen", "")
    probes = InstructionProbes(breakpoints, 100, [places[5], places[1], places[5]])
    assert [probe.number for probe in probes] == [places[1] + 100, places[5] + 100]


def test_clauses_are_numbered_probe_by_probe():
    breakpoints = Breakpoints(boots.booted(catalog.find("teaching/amd64")))
    many = InstructionProbes(breakpoints, 100, kinst_provider.create(breakpoints, "strlen", ""))
    single, functions = ListedProbe(1, "dtrace", "", "", "BEGIN"), ["first", "second"]
    enabled = EnabledClauses()
    enabled.add("begin", single)
    group = enabled.add_many(many, functions)
    enabled.add("end", single)
    expected = [("begin", single), *itertools.product(many, functions), ("end", single)]
    expected = [row if row[1] is single else row[::-1] for row in expected]
    assert group.first == 2 and len(enabled) == len(expected)
    assert [(e.number, e.function, e.probe) for e in enabled] == [
        (n, *row) for n, row in enumerate(expected, 1)]
    for number in (0, len(enabled) + 1, -1):
        with pytest.raises(IndexError):
            enabled.numbered(number)
