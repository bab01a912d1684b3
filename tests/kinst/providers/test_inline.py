"""Tests of probes on inline copies, with an index that the tests construct."""

import dataclasses
import itertools
import random

import pytest

from dwarf.index import Function
from emu.machine.call import Caller
from kinst.probes.breakpoints import Breakpoints
from kinst.probes.inline_copies import InlineCopies
from kinst.probes.kinds import ProbeKind
from kinst.probes.probed_code import ProbeError
from kinst.providers import inline
from kinst.providers.copy_ends import MAX_PIECES
from kinst.relocation.trap import trap_of
from kinst.relocation.verdict import ConditionalJump
from tests.kinst.providers.test_provider import run


class Index:
    """Stand-in for a DebugIndex with inline and out-of-line copies of one function."""

    def __init__(self, copies, whole=()):
        self.all = [Function(i, "tiny", tuple(pieces), None, True, 0, 0, 0, 0)
                    for i, pieces in enumerate(copies)]
        self.all += [Function(99, "tiny", tuple(pieces), None, False, 0, 0, 0, 0)
                     for pieces in whole]

    def named(self, name):
        return self.all

    def copies(self, name):
        return [f for f in self.all if f.inlined and f.pieces]

    def is_declared(self, name):
        return name == "tiny"

    def symbols(self, name):
        return ["_ZL4tinyi"] if name == "mangled" else []


@pytest.fixture
def table(booted):
    """Return the instructions of crc32, in which the tests place inline copies."""
    return Breakpoints(booted).instructions(booted.symbol("crc32"))


def span(table, first, last):
    """Return the start and end addresses of a sequence of instructions."""
    return table[first].address, table[last].address + len(table[last].code)


def made(booted, index, end):
    breakpoints = Breakpoints(booted)
    found = inline.create(breakpoints, index, "tiny", end)
    offsets = [breakpoints.probe(n).instruction.offset for n in found.numbers]
    return breakpoints, found, offsets


def test_a_contiguous_copy_has_one_entry_and_one_return(booted, table):
    index = Index([[span(table, 2, 4)]])
    assert made(booted, index, "entry")[2] == [table[2].offset]
    assert made(booted, index, "return")[2] == [table[4].offset]
    assert made(booted, index, "entry")[1].text == [f"kinst::crc32:{table[2].offset}"]


def test_a_copy_of_one_instruction_enters_and_returns_there(booted, table):
    index = Index([[span(table, 3, 3)]])
    assert made(booted, index, "entry")[2] == made(booted, index, "return")[2] == [table[3].offset]


def test_a_split_copy_is_entered_at_its_lowest_piece_and_left_at_each(booted, table):
    index = Index([[span(table, 5, 6), span(table, 1, 2)]])
    assert made(booted, index, "entry")[2] == [table[1].offset]
    assert {table[2].offset, table[6].offset} <= set(made(booted, index, "return")[2])


def test_a_copy_at_the_end_of_its_caller_returns_at_the_last_instruction(booted, table):
    index = Index([[span(table, len(table) - 2, len(table) - 1)]])
    assert made(booted, index, "return")[2] == [table[-1].offset]


def test_two_copies_at_one_address_share_one_probe(booted, table):
    index = Index([[span(table, 2, 4)], [span(table, 2, 3)]])
    assert made(booted, index, "entry")[2] == [table[2].offset]
    alone = made(booted, Index([[span(table, 2, 4)]]), "return")[2]
    assert made(booted, index, "return")[2] == alone == sorted(set(alone))


def test_a_copy_with_too_many_pieces_is_reported(booted, table):
    pieces = [(table[2].address + 4096 * n, table[2].address + 4096 * n + 1)
              for n in range(MAX_PIECES + 1)]
    _b, found, offsets = made(booted, Index([pieces, [span(table, 3, 4)]]), "entry")
    assert offsets == [table[3].offset]
    (report,) = found.reports
    assert f"it has {len(pieces)} pieces of code" in report


def test_an_inline_function_with_its_own_code_also_gets_fbt_probes(booted, table):
    symbol = booted.symbol("strlen")
    index = Index([[span(table, 2, 4)]], [[(symbol.address, symbol.address + symbol.size)]])
    breakpoints = Breakpoints(booted)
    found = inline.create(breakpoints, index, "strlen", "entry")
    assert [breakpoints.probe(n).provider for n in found.numbers] == ["kinst", "fbt"]
    assert found.text == [f"kinst::crc32:{table[2].offset}", "fbt::strlen:entry"]


def test_copies_that_cannot_be_probed_are_reported_and_skipped(booted, table):
    long = next(i for i in table if len(i.code) > 2 and i.offset)
    inside = long.address + 1
    excluded = booted.symbol("cpu_switch")
    index = Index([[(inside, inside + 1)], [(0x10, 0x20)], [span(table, 3, 4)],
                   [(excluded.address, excluded.address + 4)] if excluded.size else [(0x30, 0x40)]])
    _b, found, offsets = made(booted, index, "entry")
    assert offsets == [table[3].offset] and len(found.reports) == 3
    assert any("not an instruction of crc32" in report for report in found.reports)
    assert any("is not in a function" in report for report in found.reports)


def test_a_function_without_copies_or_code_is_refused(booted):
    with pytest.raises(ProbeError, match="no function 'tiny'"):
        inline.create(Breakpoints(booted), Index([]), "tiny", "entry")


def events(machine, pieces, entries, name, arguments):
    """Return the entries and returns of an inline copy, found by single-stepping a call."""
    trap = trap_of(machine.guest, machine.arch.name)
    caller = Caller(machine)
    values = [caller.place(a) if isinstance(a, bytes) else a for a in arguments]
    seen, active, waiting = [], [], []
    inside = frozenset(at for low, high in pieces for at in range(low, high))
    before = None  # address of the previous instruction if it was inside the copy

    def step(pc):
        nonlocal before
        sp = machine.sp
        over = bool(waiting) and waiting[-1] == (pc, sp)
        if before is not None and before != "in a call" and (over or pc not in inside) and active:
            active.pop()
            seen.append("return")
        if over:  # the call has returned
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
    """Call a function, passing the address of each instruction to ``step`` before execution."""
    back = machine.guest.entry_address(machine.image)
    machine.arch.prepare_call(machine, tuple(values), back)
    machine.pc = address
    while machine.pc != back:
        step(machine.pc)
        machine.step()
    step(machine.pc)


def first_reached(trap, table, pieces):
    """Return the addresses at which control can first reach the pieces of an inline copy.

    The search starts at the beginning of the function.  If it finds a jump through a table, it
    continues at the instructions that no other instruction leads to.
    """
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
    return {past_padding(at, table, padding, pieces) for at in found or {pieces[0][0]}}


def past_padding(at, table, padding, pieces):
    """Return the first address of a copy, from an entry on, that is not padding."""
    addresses = [one.address for one in table]
    behind = [a for a in addresses[addresses.index(at):] if a not in padding][:1]
    return behind[0] if behind and all(
        any(low <= a < high for low, high in pieces) for a in addresses
        if at <= a <= behind[0]) else at


CALLS = {"crc32": [0, b"abcdefg", 7], "fibonacci": [5], "classify": [5, 27], "tail_even": [7]}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("seed", range(12))
def test_a_copy_fires_once_for_each_entry_and_return(booted, name, seed):
    """The inline copy consists of random pieces of a function with loops, branches and calls."""
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
    """Return the minimum of entries minus returns over all prefixes of a sequence."""
    depth = least = 0
    for end in seen:
        depth += 1 if end == "entry" else -1
        least = min(least, depth)
    return least


def test_the_debug_data_determines_where_a_copy_is_entered(booted, table):
    low, high = span(table, 1, 6)
    index = Index([[(low, high)]])
    index.all[0] = dataclasses.replace(index.all[0], begins=table[4].address)
    assert made(booted, index, "entry")[2] == [table[4].offset]
    index.all[0] = dataclasses.replace(index.all[0], begins=high)  # an address outside the copy
    assert made(booted, index, "entry")[2] == [table[1].offset]


def test_an_entry_probe_knows_its_copies(booted, table):
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


def test_a_copy_that_is_entered_again_without_a_loop_was_abandoned(booted, table):
    """The copies of the dispatcher and of its Python twin agree."""
    branch = next(n for n, i in enumerate(table) if isinstance(i.verdict, ConditionalJump)
                  and table[0].address < i.verdict.target < i.address)
    first = next(n for n, i in enumerate(table) if i.address == table[branch].verdict.target)
    for pieces, loops in (([span(table, first, branch)], True), ([span(table, 1, 2)], False),
                          ([span(table, 1, 2), (booted.symbol("strlen").address,
                                                booted.symbol("strlen").address + 1)], True)):
        breakpoints, found, _offsets = made(booted, Index([pieces]), "entry")
        native, number = breakpoints.dispatcher, found.numbers[0]
        assert native.loops_at(number) == loops
        twin = InlineCopies(native)
        entered = [twin.enter(number, booted.sp), twin.enter(number, booted.sp)]
        assert [native.enter_copy(number), native.enter_copy(number)] == entered
        assert entered == [True, not loops]
        left = [twin.leave(number), twin.leave(number)]
        assert [native.leave_copy(number), native.leave_copy(number)] == left == [True, False]


def test_a_copy_is_forgotten_when_its_frame_is_gone(booted, table):
    kept = booted.snapshot()
    breakpoints, found, _offsets = made(booted, Index([[span(table, 1, 2)]]), "entry")
    native, number = breakpoints.dispatcher, found.numbers[0]
    twin, sp = InlineCopies(native), booted.sp
    for distance, left in ((64, [True, False]), (1 << 21, [True, True])):  # in another stack
        for at in (sp, sp + distance):
            booted.write_register(booted.arch.sp, at)
            assert twin.enter(number, at) and native.enter_copy(number)
        assert [twin.leave(number), twin.leave(number)] == left
        assert [native.leave_copy(number), native.leave_copy(number)] == left
        assert not twin.leave(number) and not native.leave_copy(number)
    booted.restore(kept)


def test_what_is_outside_is_entered_first_and_left_last(booted, table):
    """The probes are created in another order; each of the copies is one instruction."""
    function = booted.symbol("crc32")
    for order in itertools.permutations(("inner", "outer", "offset", "function")):
        breakpoints = Breakpoints(booted)
        end = breakpoints.boundaries(function)[1][0]  # a return instruction
        last = next(i for i in table if i.offset == end)
        first = next(i for i in table if i.offset == breakpoints.boundaries(function)[0])
        names = {}
        for one in order:
            for at, name in ((first, "entry"), (last, "return")):
                piece = [(at.address, at.address + len(at.code))]
                if one == "function":
                    numbers = breakpoints.add_boundaries(function, name == "entry",
                                                         name == "return")
                elif one == "offset":
                    numbers = [breakpoints.add(function, ProbeKind.OFFSET, at)]
                else:
                    index = Index([piece])
                    index.all = [dataclasses.replace(index.all[0], number=one == "inner")]
                    numbers = inline.create(breakpoints, index, "tiny", name).numbers
                names |= dict.fromkeys(numbers, one)
        fired = [[names[n] for n in breakpoints.dispatcher.probes_at(at.address) if n in names]
                 for at in (first, last)]
        assert [one for one in fired[0] if one != "offset"] == ["function", "outer", "inner"]
        assert [one for one in fired[1] if one != "offset"] == ["inner", "outer", "function"]


def test_two_descriptions_of_one_copy_have_the_same_probes(booted, table):
    breakpoints, index = Breakpoints(booted), Index([[span(table, 3, 4)], [span(table, 7, 8)]])
    first = inline.create(breakpoints, index, "tiny", "entry")
    assert inline.create(breakpoints, index, "tiny", "entry", module="ker*") == first
    assert inline.create(breakpoints, index, "tiny", "return").numbers != first.numbers
    assert not inline.create(breakpoints, index, "tiny", "entry", module="no*", whole=False).text
    breakpoints.dispatcher.remove(first.numbers[0])
    again = inline.create(breakpoints, index, "tiny", "entry").numbers
    assert again[0] not in first.numbers and again[1] == first.numbers[1]
    breakpoints.remove_all()
    assert inline.create(breakpoints, index, "tiny", "entry").numbers == first.numbers
