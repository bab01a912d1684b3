"""Tests of what stores to the words of locks mean."""

import pytest

from dtrace.flow.lock_events import NO_LOCK, Lock, _Event, _interpret, _Word
from emu.guest.guest import LockKind, LockMembers

MUTEX = LockKind("struct mtx", "mtx_lock", 7, 0, name="mutex")
SX = LockKind("struct sx", "sx_lock", 31, 1, name="sx", sharers=5)
MEMBERS = LockMembers("struct lock_object", "lo_flags", 24, 15, (MUTEX, SX),
                      entered=(("enter", "leave", "epoch"),))
ONE, TWO = 0xFFFF_0000_0000_1000, 0xFFFF_0000_0000_2000
M, S, T = 0x100, 0x200, 0x300
BEGIN, END = 5, 1000


def interpreted(*rows, words=((M, MUTEX, 0), (S, SX, 1), (T, MUTEX, 0))):
    """Interpret rows of (time, thread, place, value, and the time at which a lock was asked for).
    """
    names = {M: "m", S: "s", T: "t"}
    events = [_Event(row[0], row[0], row[1], row[2], row[3], (row[0],),
                     row[5] if len(row) > 5 else -1, row[4] if len(row) > 4 else -1)
              for row in rows]
    return _interpret({place: _Word(Lock(place, kind.name, names[place]), kind, value)
                       for place, kind, value in words}, events, MEMBERS, BEGIN, END)


def told(holdings):
    return [(one.lock.name, one.thread, one.shared, one.position, one.released, one.held)
            for one in holdings]


def test_a_mutex_is_held_from_its_owner_to_no_owner():
    assert told(interpreted((10, ONE, M, ONE), (30, ONE, M, 0))) == [
        ("m", ONE, False, 10, 30, 20)]


def test_flags_in_the_word_change_nothing():
    found = interpreted((10, ONE, M, ONE), (15, TWO, M, ONE | 2), (20, ONE, M, ONE | 3),
                        (30, ONE, M, 0))
    assert told(found) == [("m", ONE, False, 10, 30, 20)]


def test_sharers_are_told_apart_by_their_threads():
    found = interpreted((10, ONE, S, 0x21), (12, TWO, S, 0x41), (20, ONE, S, 0x21),
                        (35, TWO, S, 0x01))
    assert told(found) == [("s", ONE, True, 10, 20, 10), ("s", TWO, True, 12, 35, 23)]


def test_an_upgrade_and_a_downgrade_are_not_new_acquisitions():
    found = interpreted((10, ONE, S, 0x21), (20, ONE, S, ONE), (30, ONE, S, 0x21), (40, ONE, S, 1))
    assert told(found) == [("s", ONE, True, 10, 20, 10), ("s", ONE, False, 20, 30, 10),
                           ("s", ONE, True, 30, 40, 10)]
    assert [one.changed for one in found] == [False, True, True]


def test_a_lock_held_at_the_start_or_end_of_the_window_is_said_to_be():
    found = interpreted((50, TWO, M, 0), (60, ONE, T, ONE), words=(
        (M, MUTEX, TWO), (S, SX, 0x41), (T, MUTEX, 0)))
    assert told(found) == [("m", TWO, False, None, 50, 50 - BEGIN),
                           ("s", 0, True, None, None, END - BEGIN),
                           ("s", 0, True, None, None, END - BEGIN),
                           ("t", ONE, False, 60, None, END - 60)]


def test_locks_are_nested_in_the_locks_that_their_thread_holds():
    found = interpreted((10, ONE, M, ONE), (12, TWO, T, TWO), (20, ONE, S, ONE), (30, ONE, M, 0),
                        (40, ONE, S, 1))
    assert [[lock.name for lock in one.within] for one in found] == [[], [], ["m"]]


def test_a_thread_waits_only_while_another_holds_the_lock():
    found = interpreted((10, ONE, M, ONE), (30, ONE, M, 0), (35, TWO, M, TWO, 15),
                        (40, TWO, M, 0), (55, TWO, M, TWO, 50), (60, TWO, M, 0),
                        (70, TWO, M, TWO, 58))
    assert [one.waited for one in found] == [0, 20, 0, 0]


def test_a_lock_may_be_released_by_another_thread():
    (one,) = interpreted((10, ONE, M, ONE), (30, TWO, M, 0))
    assert (one.thread, one.releaser) == (ONE, TWO)


def test_calls_acquire_and_release_what_has_no_word():
    found = interpreted((10, ONE, 0x900, 1, -1, 0), (20, ONE, 0x900, 1, -1, 0),
                        (25, ONE, 0x900, 0, -1, 0), (40, ONE, 0x900, 0, -1, 0))
    assert [(one.lock.kind, one.position, one.released) for one in found] == [
        ("epoch", 10, 40), ("epoch", 20, 25)]


@pytest.mark.parametrize("reused", [ONE, 0x21])
def test_memory_that_is_no_lock_any_more_is_not_interpreted(reused):
    found = interpreted((10, ONE, S, ONE), (20, ONE, S, NO_LOCK), (30, ONE, S, 1),
                        (40, ONE, S, reused), (50, ONE, S, 1))
    assert [(one.position, one.released) for one in found] == [(10, 20), (40, 50)]


def test_a_lock_that_is_handed_over_is_not_held_by_the_thread_any_more():
    nobody = (1 << 64) - 32
    found = interpreted((10, ONE, S, ONE), (20, ONE, S, nobody), (30, ONE, M, ONE), (40, ONE, M, 0),
                        (50, TWO, S, 1))
    assert told(found) == [("s", ONE, False, 10, 20, 10), ("s", nobody, False, 20, 50, 30),
                           ("m", ONE, False, 30, 40, 10)]
    assert found[1].changed and found[2].within == ()


def test_a_jump_in_the_number_of_sharers_is_one_acquisition():
    assert len(interpreted((10, ONE, S, 10_000 << 5 | 1))) == 1
