"""Orders as texts, and which are tried."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emu.host.errors import KinstError
from emu.unicorn._accesses import shared_entries
from kinst_emu.explore.accesses import (
    ENTRY,
    HELD,
    RunAccesses,
    RunStretch,
    of_serial,
    points,
    read_accesses,
    shared_places,
)
from kinst_emu.explore.explorer import preemptions_of
from kinst_emu.explore.order import OrderTurn, order_text, read_order
from kinst_emu.explore.races import data_races
from kinst_emu.explore.strategies import Preemptions, priority_orders, random_orders, serial_orders

TURNS = st.lists(st.builds(OrderTurn, st.integers(0, 3), st.none() | st.integers(0, 10**11)),
                 min_size=1, max_size=50)


@given(TURNS)
def test_an_orders_text_is_read_as_it_was(turns):
    assert read_order(order_text(turns), 4) == tuple(turns)


@given(st.text(max_size=60))
def test_any_text_is_an_order_or_refused_in_one_line(text):
    try:
        turns = read_order(text, 2)
    except KinstError as error:
        assert "\n" not in str(error) and str(error).startswith("--schedule")
    else:
        assert all(turn.run < 2 for turn in turns)


@pytest.mark.parametrize(("text", "what"), [
    ("", "is empty"), ("A C", "turn 2 is of run C"), ("A1 b", "turn 2"), ("A-1", "turn 1"),
    ("A " * 1001, "1001 turns"), ("A" * 20_000, "characters"), ("A1234567890123", "turn 1")])
def test_what_is_none_is_named(text, what):
    with pytest.raises(KinstError, match=what):
        read_order(text, 2)


def run_of(*uses):
    """A run with these uses: (place, instruction, whether it stores)."""
    made = RunAccesses(max(index for _p, index, _s in uses) + 1)
    for place, index, stores in uses:
        made.places[place].append((index, stores))
        made.every[place].append(index)
    return made


def test_places_are_shared_where_one_stores_and_another_uses_them():
    runs = [run_of((1, 0, True), (2, 1, False), (3, 2, True)),
            run_of((1, 0, False), (2, 1, False), (4, 2, True))]
    assert shared_places(runs) == {1}
    assert [points(run, {1}) for run in runs] == [[0], [0]]


def outcome(order, runs, shared):
    """What order the accesses to shared places come in."""
    left = [0] * len(runs)
    sequence = []
    for turn in (*order, *(OrderTurn(run) for run in range(len(runs)))):
        run = runs[turn.run]
        end = run.length if turn.count is None else left[turn.run] + turn.count
        for index in range(left[turn.run], min(end, run.length)):
            sequence += [(place, turn.run, index) for place in sorted(shared & run.places.keys())
                         if index in run.every[place]]
        left[turn.run] = max(left[turn.run], end)
    by_place = {place: tuple((run, index) for p, run, index in sequence if p == place)
                for place in shared}
    return tuple(sorted(by_place.items()))


USES = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5), st.booleans()), min_size=1,
                max_size=5, unique_by=lambda use: use[:2])


@given(USES, USES)
def test_all_orders_with_so_few_preemptions_are_tried_but_those_that_are_the_same(one, other):
    """Held to every pair of places, by instruction."""
    runs = [run_of(*sorted(one, key=lambda u: u[1])), run_of(*sorted(other, key=lambda u: u[1]))]
    tree = Preemptions(runs, 2)
    tried = {outcome(order, runs, tree.shared)
             for n in (1, 2) for order in tree.orders(n, 1)} | {
                 outcome(order, runs, tree.shared) for order in serial_orders(2)}
    every = set()
    for a, b in itertools.product(range(1, runs[0].length), range(1, runs[1].length)):
        for x, y, p, q in ((0, 1, a, b), (1, 0, b, a)):
            every.add(outcome((OrderTurn(x, p), OrderTurn(y)), runs, tree.shared))
            every.add(outcome((OrderTurn(x, p), OrderTurn(y, q), OrderTurn(x)), runs, tree.shared))
    assert every <= tried


@given(USES, USES, st.data())
def test_an_order_is_left_out_only_for_one_that_is_the_same_in_loops_too(one, other, data):
    """Where a run is not preempted before each access: those that stand for none have an order."""
    runs = [run_of(*sorted(one, key=lambda u: u[1])), run_of(*sorted(other, key=lambda u: u[1]))]
    for run in runs:
        for place, uses in run.places.items():
            kept = data.draw(st.integers(1, len(uses)))
            run.cut += len(uses) - kept
            run.places[place] = uses[:kept]
    tree = Preemptions(runs, 1)
    tried = {outcome(order, runs, tree.shared) for order in tree.orders(1, 1)} | {
        outcome(order, runs, tree.shared) for order in serial_orders(2)}
    for x, y in ((0, 1), (1, 0)):
        for index in tree.points[x]:
            order = (*([OrderTurn(x, index)] if index else []), OrderTurn(y), OrderTurn(x))
            assert outcome(order, runs, tree.shared) in tried


def test_random_and_priority_orders_name_all_runs_and_keep_to_their_number():
    runs = [run_of((1, 50, True)), run_of((1, 30, True)), run_of((1, 9, False))]
    for order in itertools.islice(random_orders(runs, 3, 5), 300):
        assert {turn.run for turn in order} == {0, 1, 2} and preemptions_of(order) <= 3
    depths = [preemptions_of(order) for order in itertools.islice(priority_orders(runs, 3, 5), 300)]
    assert max(depths) == 2 and len(set(depths)) > 1


# -- data races -----------------------------------------------------------------------------------

LOAD, STORE = 0, 1


def entries(*accesses):
    """(CPU, pc, address, size, kind)."""
    return b"".join(ENTRY.pack(n, pc, address, 0, size, kind, cpu, 0)
                    for n, (cpu, pc, address, size, kind) in enumerate(accesses))


def races(*accesses, atomic=()):
    return [race.places for race in data_races(entries(*accesses), 2, lambda pc: pc in atomic)]


def test_two_accesses_without_order_are_a_race_where_one_stores():
    assert races((0, 1, 64, 8, STORE), (1, 2, 64, 8, LOAD)) == [(1, 2)]
    assert races((0, 1, 64, 8, LOAD), (1, 2, 64, 8, STORE)) == [(1, 2)]
    assert races((0, 1, 64, 8, LOAD), (1, 2, 64, 8, LOAD)) == []
    assert races((0, 1, 64, 4, STORE), (1, 2, 68, 4, STORE)) == [], "not the same bytes"
    assert races((0, 1, 66, 4, STORE), (1, 2, 68, 4, STORE)) == [(1, 2)]
    assert races((0, 1, 64, 8, STORE), (0, 2, 64, 8, STORE)) == []


def test_an_access_beside_another_in_the_same_eight_bytes_does_not_hide_it():
    first, beside = (0, 1, 64, 4, STORE), (0, 2, 68, 4, STORE)
    assert races(first, beside, (1, 3, 64, 4, LOAD)) == [(1, 3)]
    assert races(first, beside, (1, 3, 64, 4, STORE), (1, 4, 68, 4, STORE)) == [(1, 3), (2, 4)]


def test_a_lock_orders_what_is_under_it_and_not_what_is_behind_it():
    taken, released = 10, 11
    one = [(0, taken, 8, 4, LOAD), (0, taken, 8, 4, STORE), (0, 1, 64, 8, STORE),
           (0, released, 8, 4, STORE)]
    other = [(1, taken, 8, 4, LOAD), (1, taken, 8, 4, STORE), (1, 2, 64, 8, LOAD),
             (1, released, 8, 4, STORE)]
    assert races(*one, *other, atomic={taken}) == []
    late = (0, 3, 64, 8, STORE)
    assert races(*one, late, *other, atomic={taken}) == [(2, 3)]
    assert races(*one, *other[2:], atomic={taken}) == [(1, 2)]


def test_each_pair_of_instructions_is_told_once():
    many = [access for n in range(50) for access in (
        (0, 1, 64 + 8 * n, 8, STORE), (1, 2, 64 + 8 * n, 8, LOAD))]
    assert races(*many) == [(1, 2)]

def test_instructions_that_change_memory_are_no_race_of_threads_on_one_cpu():
    adds = entries(*((run, 7 + run, 64, 8, kind) for run in (0, 1) for kind in (LOAD, STORE)))
    both = b"".join(ENTRY.pack(*one._replace(position=2 * one.cpu)) for one in read_accesses(adds))
    assert data_races(both, 2, lambda _pc: False)
    assert data_races(both, 2, lambda _pc: False, one_cpu=True) == []
    plain = entries((0, 7, 64, 8, STORE), (1, 8, 64, 8, LOAD))
    assert len(data_races(plain, 2, lambda _pc: False, one_cpu=True)) == 1


def test_sections_that_hold_the_cpu_order_each_other_and_what_is_outside_is_a_race():
    def found(first, second):
        return data_races(entries((0, 1, 64, 8, STORE | first), (1, 2, 64, 8, STORE | second)), 2,
                          lambda _pc: False)
    assert found(HELD, HELD) == [] and len(found(HELD, 0)) == len(found(0, HELD)) == 1
    handed = entries((0, 1, 64, 8, STORE), (0, 2, 128, 8, STORE | HELD),
                     (1, 3, 128, 8, LOAD | HELD), (1, 4, 64, 8, STORE))
    assert data_races(handed, 2, lambda _pc: False) == []


def test_what_each_run_did_is_counted_from_its_own_begin():
    raw = b"".join(ENTRY.pack(position, 1, 64, 0, 8, STORE, cpu, position) for position, cpu in (
        (100, 0), (105, 0), (120, 1)))
    runs = of_serial(raw, [RunStretch(100, 107, 0, 0), RunStretch(107, 130, 1, 0)], 2)
    assert runs[0].places[8] == [(0, True), (5, True)] and runs[1].places[8] == [(13, True)]
    assert [run.length for run in runs] == [7, 23]


ACCESS = st.tuples(st.integers(0, 2), st.integers(0, 40).map(lambda n: 4 * n), st.integers(1, 40),
                   st.sampled_from([LOAD, STORE]))


@given(st.lists(ACCESS, max_size=40))
def test_the_shared_entries_are_those_that_a_slower_look_finds(accesses):
    raw = entries(*((cpu, n, at, size, kind) for n, (cpu, at, size, kind) in enumerate(accesses)))

    def places(at, size):
        return set(range(at // 8, (at + size - 1) // 8 + 1))

    wanted = [n for n, (_cpu, at, size, _kind) in enumerate(accesses) if any(
        len({c for c, a, s, _k in accesses if place in places(a, s)}) > 1
        and any(k == STORE for _c, a, s, k in accesses if place in places(a, s))
        for place in places(at, size))]
    assert [access.position for access in read_accesses(shared_entries(raw))] == wanted


def test_what_are_no_entries_is_refused():
    for bad in (b"x" * 47, ENTRY.pack(0, 0, 0, 0, 65, 0, 0, 0), ENTRY.pack(0, 0, 0, 0, 8, 0, 8, 0)):
        with pytest.raises(ValueError):
            shared_entries(bad)
