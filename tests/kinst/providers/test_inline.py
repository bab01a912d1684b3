"""Probes on inline copies, with an index made up for the test."""

import dataclasses
import random

import pytest

from dwarf.index import Function
from emu.machine.call import Caller
from kinst.probes.breakpoints import Breakpoints
from kinst.probes.probed_code import ProbeError
from kinst.providers import inline
from kinst.relocation.trap import trap_of
from kinst.relocation.verdict import ConditionalJump
from tests.kinst.providers.test_provider import run


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


def test_a_split_copy_begins_at_its_lowest_piece_and_may_be_left_at_each(booted, table):
    index = Index([[span(table, 5, 6), span(table, 1, 2)]])
    assert made(booted, index, "entry")[2] == [table[1].offset]
    assert {table[2].offset, table[6].offset} <= set(made(booted, index, "return")[2])


def test_a_copy_that_ends_its_caller_ends_with_its_last_instruction(booted, table):
    index = Index([[span(table, len(table) - 2, len(table) - 1)]])
    assert made(booted, index, "return")[2] == [table[-1].offset]


def test_two_copies_at_one_address_are_one_probe(booted, table):
    index = Index([[span(table, 2, 4)], [span(table, 2, 3)]])
    assert made(booted, index, "entry")[2] == [table[2].offset]
    alone = made(booted, Index([[span(table, 2, 4)]]), "return")[2]
    assert made(booted, index, "return")[2] == alone == sorted(set(alone))


def test_a_copy_with_more_pieces_than_can_be_followed_is_reported(booted, table):
    pieces = [(table[2].address + 4096 * n, table[2].address + 4096 * n + 1)
              for n in range(inline.MAX_PIECES + 1)]
    _b, found, offsets = made(booted, Index([pieces, [span(table, 3, 4)]]), "entry")
    assert offsets == [table[3].offset]
    (report,) = found.reports
    assert f"it has {len(pieces)} pieces of code" in report


def test_a_function_that_is_both_has_fbt_probes_too(booted, table):
    symbol = booted.symbol("strlen")
    index = Index([[span(table, 2, 4)]], [[(symbol.address, symbol.address + symbol.size)]])
    breakpoints = Breakpoints(booted)
    found = inline.create(breakpoints, index, "strlen", "entry")
    assert [breakpoints.probe(n).provider for n in found.numbers] == ["kinst", "fbt"]
    assert found.text == [f"kinst::crc32:{table[2].offset}", "fbt::strlen:entry"]


def test_what_cannot_be_probed_is_reported_and_does_not_stop_the_others(booted, table):
    long = next(i for i in table if len(i.code) > 2 and i.offset)
    inside = long.address + 1
    excluded = booted.symbol("cpu_switch")
    index = Index([[(inside, inside + 1)], [(0x10, 0x20)], [span(table, 3, 4)],
                   [(excluded.address, excluded.address + 4)] if excluded.size else [(0x30, 0x40)]])
    _b, found, offsets = made(booted, index, "entry")
    assert offsets == [table[3].offset] and len(found.reports) == 3
    assert any("not an instruction of crc32" in report for report in found.reports)
    assert any("is not in a function" in report for report in found.reports)


def test_a_function_without_a_copy_and_without_code_is_told(booted):
    with pytest.raises(ProbeError, match="no function 'tiny'"):
        inline.create(Breakpoints(booted), Index([]), "tiny", "entry")


def events(machine, pieces, entries, name, arguments):
    """Entries and returns of a copy by its definition, from a run that is stepped through."""
    trap = trap_of(machine.guest, machine.arch.name)
    caller = Caller(machine)
    values = [caller.place(a) if isinstance(a, bytes) else a for a in arguments]
    seen, active, waiting = [], [], []
    inside = frozenset(at for low, high in pieces for at in range(low, high))
    before = None  # the instruction before, where it lies in the copy of the frame in progress

    def step(pc):
        nonlocal before
        sp = machine.sp
        over = bool(waiting) and waiting[-1] == (pc, sp)
        if before is not None and before != "in a call" and (over or pc not in inside) and active:
            active.pop()
            seen.append("return")
        if over:  # control is behind the call
            waiting.pop()
            if pc not in inside and active:
                active.pop()
                seen.append("return")
        if pc in entries and (not active or active[-1] != sp):
            active.append(sp)
            seen.append("entry")
        before = None
        if pc in inside and active:
            before = pc
            known = trap.instructions
            length, verdict = known.classify(machine.read(pc, 16), pc)
            if known.links(verdict) or known.call_target(None, verdict) is not None:
                waiting.append((pc + length, sp))
                before = "in a call"

    follow(machine, caller, machine.symbol(name).address, values, step)
    return seen


def follow(machine, caller, address, values, step):
    """Call a function; ``step`` is given the address of each instruction before it is executed."""
    back = machine.guest.entry_address(machine.image)
    machine.arch.prepare_call(machine, tuple(values), back)
    machine.pc = address
    while machine.pc != back:
        step(machine.pc)
        machine.step()
    step(machine.pc)


def first_reached(trap, table, pieces):
    """The instructions of some pieces that can be the first of them, from a function's begin on,
    and, where a jump leads to an address of a table, from whatever nothing else leads to."""
    ways, elsewhere = {}, set()
    for number, one in enumerate(table):
        after = one.address + len(one.code)
        before = table[number - 1].verdict if number else None
        target = trap.instructions.jump_target(before, one.verdict)
        if trap.instructions.is_return(one.code):
            ways[one.address] = []
        elif isinstance(one.verdict, ConditionalJump):
            ways[one.address] = [one.verdict.target, after]
        elif target is not None:
            ways[one.address] = [target]
        elif trap.instructions.links(one.verdict) is False:
            ways[one.address] = []
            elsewhere.add(one.address)
        else:
            ways[one.address] = [after]
    padding = {one.address for one in table if trap.instructions.is_padding(one.code)}
    targets = {to for at, leads in ways.items() if at not in padding for to in leads}
    unseen = [one.address for one in table[1:] if one.address not in targets | padding]
    found, seen, waiting = set(), set(), [table[0].address]
    while waiting:
        at = waiting.pop()
        if at not in ways or at in seen:
            continue
        seen.add(at)
        if any(low <= at < high for low, high in pieces):
            found.add(at)
        else:
            waiting += ways[at] + unseen * (at in elsewhere)
    return found or {pieces[0][0]}


CALLS = {"crc32": [0, b"abcdefg", 7], "fibonacci": [5], "classify": [5, 27], "tail_even": [7]}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("seed", range(12))
def test_a_copy_fires_once_for_each_time_it_is_entered_and_left(booted, name, seed):
    """Random pieces of a function as a copy: loops, branches and calls in and out of it."""
    rng = random.Random(f"{name} {seed}")
    breakpoints = Breakpoints(booted)
    table = breakpoints.instructions(booted.symbol(name))
    pieces = []
    for _ in range(rng.randrange(1, 4)):
        first = rng.randrange(len(table))
        pieces.append(span(table, first, min(len(table) - 1, first + rng.randrange(8))))
    kept = booted.snapshot()
    entries = first_reached(trap_of(booted.guest, booted.arch.name), table, sorted(pieces))
    wanted = events(booted, pieces, entries, name, CALLS[name])
    booted.restore(kept)
    index = Index([pieces])
    for path in ("guest", "direct", "double", "python"):
        seen = []
        breakpoints = Breakpoints(
            booted, lambda probe, state: seen.append(ends[probe.id - 1]),  # noqa: B023
            path="guest" if path == "python" else path, python=path == "python")
        ends = {}
        for end in ("return", "entry"):
            found = inline.create(breakpoints, index, "tiny", end)
            ends |= dict.fromkeys(found.numbers, end)
        breakpoints.enable()
        run(booted, name, CALLS[name])
        breakpoints.disable()
        booted.restore(kept)
        assert not found.reports
        assert sorted(seen) == sorted(wanted), path
        assert depth_of(seen) >= 0


def depth_of(seen):
    """The least number of entries that are open at any time."""
    depth = least = 0
    for end in seen:
        depth += 1 if end == "entry" else -1
        least = min(least, depth)
    return least


def test_the_debug_data_says_where_a_copy_is_entered(booted, table):
    low, high = span(table, 1, 6)
    index = Index([[(low, high)]])
    index.all[0] = dataclasses.replace(index.all[0], begins=table[4].address)
    assert made(booted, index, "entry")[2] == [table[4].offset]
    index.all[0] = dataclasses.replace(index.all[0], begins=high)  # it is none of its own
    assert made(booted, index, "entry")[2] == [table[1].offset]


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
