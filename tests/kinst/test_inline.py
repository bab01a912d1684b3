"""Probes on inline copies, with an index made up for the test."""

import pytest

from dwarf.index import Function
from kinst import inline
from kinst.breakpoints import Breakpoints
from kinst.code.verdict import Refuse
from kinst.probe_table import ProbeError
from tests.kinst.test_provider import run


class Index:
    """Stands for a DebugIndex: the copies of one function, and whether it is one by itself."""

    def __init__(self, copies, whole=()):
        self.all = [Function(i, "tiny", tuple(pieces), None, True, 0, 0, 0, 0)
                    for i, pieces in enumerate(copies)]
        self.all += [Function(99, "tiny", tuple(pieces), None, False, 0, 0, 0, 0)
                     for pieces in whole]

    def named(self, name):
        return self.all

    def copies(self, name):
        return [f for f in self.all if f.inlined and f.pieces]


@pytest.fixture
def table(booted):
    """The instructions of crc32, to put copies into."""
    return Breakpoints(booted).instructions(booted.symbol("crc32"))


def span(table, first, last):
    """The code of instructions, both ends included."""
    return table[first].address, table[last].address + len(table[last].code)


def made(booted, index, end):
    breakpoints = Breakpoints(booted)
    found = inline.create(breakpoints, index, "tiny", end)
    offsets = [breakpoints.probe(n).instruction.offset for n in found.numbers]
    return breakpoints, found, offsets


def test_a_contiguous_copy_begins_and_ends_once(booted, table):
    index = Index([[span(table, 2, 4)]])
    assert made(booted, index, "entry")[2] == [table[2].offset]
    assert made(booted, index, "return")[2] == [table[4].offset]
    assert made(booted, index, "entry")[1].text == [f"kinst::crc32:{table[2].offset}"]


def test_a_copy_of_one_instruction_begins_where_it_ends(booted, table):
    index = Index([[span(table, 3, 3)]])
    assert made(booted, index, "entry")[2] == made(booted, index, "return")[2] == [table[3].offset]


def test_a_split_copy_begins_at_its_lowest_piece_and_ends_with_each(booted, table):
    index = Index([[span(table, 5, 6), span(table, 1, 2)]])
    assert made(booted, index, "entry")[2] == [table[1].offset]
    assert sorted(made(booted, index, "return")[2]) == [table[2].offset, table[6].offset]


def test_a_copy_that_ends_its_caller_ends_with_its_last_instruction(booted, table):
    index = Index([[span(table, len(table) - 2, len(table) - 1)]])
    assert made(booted, index, "return")[2] == [table[-1].offset]


def test_two_copies_at_one_address_are_one_probe(booted, table):
    index = Index([[span(table, 2, 4)], [span(table, 2, 3)]])
    assert made(booted, index, "entry")[2] == [table[2].offset]


def test_a_function_that_is_both_has_fbt_probes_too(booted, table):
    symbol = booted.symbol("strlen")
    index = Index([[span(table, 2, 4)]], [[(symbol.address, symbol.address + symbol.size)]])
    breakpoints = Breakpoints(booted)
    found = inline.create(breakpoints, index, "strlen", "entry")
    assert [p.provider for p in breakpoints.probes] == ["kinst", "fbt"]
    assert found.text == [f"kinst::crc32:{table[2].offset}", "fbt::strlen:entry"]


def test_what_cannot_be_probed_is_reported_and_does_not_stop_the_others(booted, table):
    long = next(i for i in table if len(i.code) > 2 and i.offset)
    inside = long.address + 1
    excluded = booted.symbol("cpu_switch")
    index = Index([[(inside, inside + 1)], [(0x10, 0x20)], [span(table, 3, 4)],
                   [(excluded.address, excluded.address + 4)] if excluded.size else [(0x30, 0x40)]])
    _b, found, offsets = made(booted, index, "entry")
    assert offsets == [table[3].offset] and len(found.reports) == 3
    assert any("no instruction of crc32" in report for report in found.reports)
    assert any("lies in no function" in report for report in found.reports)


def test_a_function_without_a_copy_and_without_code_is_told(booted):
    with pytest.raises(ProbeError, match="no function 'tiny'"):
        inline.create(Breakpoints(booted), Index([]), "tiny", "entry")


def test_probes_within_parts_are_where_the_listing_has_instructions(booted):
    """The native search, held to the listing in Python: every part of two to nine bytes."""
    for name in ("crc32", "strlen", "fibonacci"):
        symbol = booted.symbol(name)
        breakpoints = Breakpoints(booted)
        table = breakpoints.instructions(symbol)
        parts = [(low, low + size) for low in range(symbol.size) for size in (0, 2, 5, 9)]
        for last in (False, True):
            for (low, high), (offset, number) in zip(
                    parts, breakpoints.add_within(symbol, parts, last), strict=True):
                inside = [i for i in table if low <= i.offset < high] if last else [
                    i for i in table if i.offset == low]
                if not inside:
                    assert (offset, number) == (low, f"it is no instruction of {name}")
                elif isinstance(inside[-1].verdict, Refuse):
                    assert (offset, number) == (
                        inside[-1].offset, f"it {inside[-1].verdict.reason}")
                else:
                    assert breakpoints.probe(number).instruction.address == inside[-1].address


def test_the_copy_that_is_entered_is_known(booted, table):
    index = Index([[span(table, 2, 4)], [span(table, 2, 3)], [span(table, 5, 6)]])
    _b, found, _offsets = made(booted, index, "entry")
    assert [found.copies[n] for n in found.numbers] == [index.all[:2], index.all[2:3]]
    assert not made(booted, index, "return")[1].copies


def test_inline_probes_fire(booted, table):
    breakpoints, found, _offsets = made(booted, Index([[span(table, 1, 1)]]), "return")
    breakpoints.enable()
    run(booted, "crc32", [0, "abc", 3])
    breakpoints.disable()
    assert breakpoints.dispatcher.probe(found.numbers[0])[4] == 1
