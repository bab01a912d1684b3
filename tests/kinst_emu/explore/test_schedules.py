"""Tests of schedules as texts, of strategies that choose schedules, and of data races."""

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
from kinst_emu.explore.races import data_races
from kinst_emu.explore.schedule import ScheduleTurn, read_schedule, schedule_text
from kinst_emu.explore.strategies import (
    EveryPlace,
    Preemptions,
    priority_schedules,
    random_schedules,
    serial_schedules,
)

TURNS = st.lists(st.builds(ScheduleTurn, st.integers(0, 3), st.none() | st.integers(0, 10**11)),
                 min_size=1, max_size=50)


@given(TURNS)
def test_reading_the_text_of_a_schedule_restores_the_schedule(turns):
    assert read_schedule(schedule_text(turns), 4) == tuple(turns)


@given(st.text(max_size=60))
def test_arbitrary_text_is_a_schedule_or_refused_with_one_line(text):
    try:
        turns = read_schedule(text, 2)
    except KinstError as error:
        assert "\n" not in str(error) and str(error).startswith("--schedule")
    else:
        assert all(turn.run < 2 for turn in turns)


@pytest.mark.parametrize(("text", "what"), [
    ("", "is empty"), ("A C", "turn 2 is for run C"), ("A1 b", "turn 2"), ("A-1", "turn 1"),
    ("A " * 1001, "1001 turns"), ("A" * 20_000, "characters"), ("A1234567890123", "turn 1")])
def test_an_invalid_schedule_is_refused_with_its_position(text, what):
    with pytest.raises(KinstError, match=what):
        read_schedule(text, 2)


def run_of(*uses):
    """Return a run with the given accesses (place, instruction, whether it is a store)."""
    made = RunAccesses(max(index for _p, index, _s in uses) + 1)
    for place, index, stores in uses:
        made.places[place].append((index, stores))
        made.every[place].append(index)
    return made


def test_a_place_is_shared_if_one_run_stores_to_it_and_another_uses_it():
    runs = [run_of((1, 0, True), (2, 1, False), (3, 2, True)),
            run_of((1, 0, False), (2, 1, False), (4, 2, True))]
    assert shared_places(runs) == {1}
    assert [points(run, {1}) for run in runs] == [[0], [0]]


def outcome(schedule, runs, shared):
    """Return the sequence of accesses to each shared place in a schedule."""
    left = [0] * len(runs)
    sequence = []
    for turn in (*schedule, *(ScheduleTurn(run) for run in range(len(runs)))):
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
def test_every_schedule_with_up_to_two_preemptions_or_an_equivalent_one_is_tried(one, other):
    """Compare the tried schedules with those that preempt at every pair of instructions."""
    runs = [run_of(*sorted(one, key=lambda u: u[1])), run_of(*sorted(other, key=lambda u: u[1]))]
    tree = Preemptions(runs, 2)
    tried = {outcome(schedule, runs, tree.shared)
             for n in (1, 2) for schedule in tree.schedules(n, 1)} | {
                 outcome(schedule, runs, tree.shared) for schedule in serial_schedules(2)}
    every = set()
    for a, b in itertools.product(range(1, runs[0].length), range(1, runs[1].length)):
        for x, y, p, q in ((0, 1, a, b), (1, 0, b, a)):
            every.add(outcome((ScheduleTurn(x, p), ScheduleTurn(y)), runs, tree.shared))
            every.add(outcome(
                (ScheduleTurn(x, p), ScheduleTurn(y, q), ScheduleTurn(x)), runs, tree.shared))
    assert every <= tried


@given(USES, USES, st.data())
def test_a_schedule_is_skipped_only_for_an_equivalent_one_even_with_loops(one, other, data):
    """Compare also those accesses that the search omits because they are repeated in loops."""
    runs = [run_of(*sorted(one, key=lambda u: u[1])), run_of(*sorted(other, key=lambda u: u[1]))]
    for run in runs:
        for place, uses in run.places.items():
            kept = data.draw(st.integers(1, len(uses)))
            run.cut += len(uses) - kept
            run.places[place] = uses[:kept]
    tree = Preemptions(runs, 1)
    tried = {outcome(schedule, runs, tree.shared) for schedule in tree.schedules(1, 1)} | {
        outcome(schedule, runs, tree.shared) for schedule in serial_schedules(2)}
    for x, y in ((0, 1), (1, 0)):
        for index in tree.points[x]:
            schedule = (*([ScheduleTurn(x, index)] if index else []), ScheduleTurn(y),
                        ScheduleTurn(x))
            assert outcome(schedule, runs, tree.shared) in tried


@pytest.mark.parametrize("most", [1, 2])
def test_every_place_has_each_schedule_once_although_the_runs_share_nothing(most):
    runs = [RunAccesses(length=4), RunAccesses(length=3)]
    tree = EveryPlace(runs, most)
    found = list(tree.schedules(most, 1))
    wanted = {1: {f"{one}{n} {other} {one}" for one, other, length in (("A", "B", 4), ("B", "A", 3))
                  for n in range(1, length)},
              2: {f"{one}{n} {other}{m} {one} {other}"
                  for one, other, length, more in (("A", "B", 4, 3), ("B", "A", 3, 4))
                  for n in range(1, length) for m in range(1, more)}}[most]
    assert {schedule_text(schedule) for schedule in found} == wanted
    assert len(found) == len(wanted) == tree.estimate(most) and tree.listed and not tree.skipped
    assert list(Preemptions(runs, most).schedules(most, 1)) == []


def test_random_and_priority_schedules_have_all_runs_and_few_preemptions():
    runs = [run_of((1, 50, True)), run_of((1, 30, True)), run_of((1, 9, False))]
    for schedule in itertools.islice(random_schedules(runs, 3, 5), 300):
        assert {turn.run for turn in schedule} == {0, 1, 2} and preemptions_of(schedule) <= 3
    depths = [preemptions_of(schedule)
              for schedule in itertools.islice(priority_schedules(runs, 3, 5), 300)]
    assert max(depths) == 2 and len(set(depths)) > 1


# -- data races -----------------------------------------------------------------------------------

LOAD, STORE = 0, 1


def entries(*accesses):
    """Encode accesses given as (CPU, pc, address, size, kind)."""
    return b"".join(ENTRY.pack(n, pc, address, 0, size, kind, cpu, 0)
                    for n, (cpu, pc, address, size, kind) in enumerate(accesses))


def races(*accesses, atomic=()):
    return [race.places for race in data_races(entries(*accesses), 2, lambda pc: pc in atomic)]


def test_two_unsynchronized_accesses_are_a_race_if_one_is_a_store():
    assert races((0, 1, 64, 8, STORE), (1, 2, 64, 8, LOAD)) == [(1, 2)]
    assert races((0, 1, 64, 8, LOAD), (1, 2, 64, 8, STORE)) == [(1, 2)]
    assert races((0, 1, 64, 8, LOAD), (1, 2, 64, 8, LOAD)) == []
    assert races((0, 1, 64, 4, STORE), (1, 2, 68, 4, STORE)) == [], "the bytes do not overlap"
    assert races((0, 1, 66, 4, STORE), (1, 2, 68, 4, STORE)) == [(1, 2)]
    assert races((0, 1, 64, 8, STORE), (0, 2, 64, 8, STORE)) == []


def test_an_access_to_other_bytes_of_a_granule_does_not_hide_a_race():
    first, beside = (0, 1, 64, 4, STORE), (0, 2, 68, 4, STORE)
    assert races(first, beside, (1, 3, 64, 4, LOAD)) == [(1, 3)]
    assert races(first, beside, (1, 3, 64, 4, STORE), (1, 4, 68, 4, STORE)) == [(1, 3), (2, 4)]


def test_a_lock_synchronizes_accesses_under_it_but_not_after_it():
    taken, released = 10, 11
    one = [(0, taken, 8, 4, LOAD), (0, taken, 8, 4, STORE), (0, 1, 64, 8, STORE),
           (0, released, 8, 4, STORE)]
    other = [(1, taken, 8, 4, LOAD), (1, taken, 8, 4, STORE), (1, 2, 64, 8, LOAD),
             (1, released, 8, 4, STORE)]
    assert races(*one, *other, atomic={taken}) == []
    late = (0, 3, 64, 8, STORE)
    assert races(*one, late, *other, atomic={taken}) == [(2, 3)]
    assert races(*one, *other[2:], atomic={taken}) == [(1, 2)]


def test_each_pair_of_instructions_is_reported_once():
    many = [access for n in range(50) for access in (
        (0, 1, 64 + 8 * n, 8, STORE), (1, 2, 64 + 8 * n, 8, LOAD))]
    assert races(*many) == [(1, 2)]


def test_read_modify_write_instructions_of_threads_on_one_cpu_do_not_race():
    adds = entries(*((run, 7 + run, 64, 8, kind) for run in (0, 1) for kind in (LOAD, STORE)))
    both = b"".join(ENTRY.pack(*one._replace(position=2 * one.cpu)) for one in read_accesses(adds))
    assert data_races(both, 2, lambda _pc: False)
    assert data_races(both, 2, lambda _pc: False, one_cpu=True) == []
    plain = entries((0, 7, 64, 8, STORE), (1, 8, 64, 8, LOAD))
    assert len(data_races(plain, 2, lambda _pc: False, one_cpu=True)) == 1


def test_sections_without_preemption_synchronize_with_each_other_only():
    def found(first, second):
        return data_races(entries((0, 1, 64, 8, STORE | first), (1, 2, 64, 8, STORE | second)), 2,
                          lambda _pc: False)
    assert found(HELD, HELD) == [] and len(found(HELD, 0)) == len(found(0, HELD)) == 1
    handed = entries((0, 1, 64, 8, STORE), (0, 2, 128, 8, STORE | HELD),
                     (1, 3, 128, 8, LOAD | HELD), (1, 4, 64, 8, STORE))
    assert data_races(handed, 2, lambda _pc: False) == []


def test_positions_of_accesses_count_the_instructions_of_their_own_run():
    raw = b"".join(ENTRY.pack(position, 1, 64, 0, 8, STORE, cpu, position) for position, cpu in (
        (100, 0), (105, 0), (120, 1)))
    runs = of_serial(raw, [RunStretch(100, 107, 0, 0), RunStretch(107, 130, 1, 0)], 2)
    assert runs[0].places[8] == [(0, True), (5, True)] and runs[1].places[8] == [(13, True)]
    assert [run.length for run in runs] == [7, 23]


ACCESS = st.tuples(st.integers(0, 2), st.integers(0, 40).map(lambda n: 4 * n), st.integers(1, 40),
                   st.sampled_from([LOAD, STORE]))


@given(st.lists(ACCESS, max_size=40))
def test_shared_entries_match_a_slower_implementation(accesses):
    raw = entries(*((cpu, n, at, size, kind) for n, (cpu, at, size, kind) in enumerate(accesses)))

    def places(at, size):
        return set(range(at // 8, (at + size - 1) // 8 + 1))

    wanted = [n for n, (_cpu, at, size, _kind) in enumerate(accesses) if any(
        len({c for c, a, s, _k in accesses if place in places(a, s)}) > 1
        and any(k == STORE for _c, a, s, k in accesses if place in places(a, s))
        for place in places(at, size))]
    assert [access.position for access in read_accesses(shared_entries(raw))] == wanted


def test_invalid_access_entries_are_refused():
    for bad in (b"x" * 47, ENTRY.pack(0, 0, 0, 0, 65, 0, 0, 0), ENTRY.pack(0, 0, 0, 0, 8, 0, 8, 0)):
        with pytest.raises(ValueError):
            shared_entries(bad)
