"""Tests of the CPU time of a thread, which is computed from kernel variables."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtrace.run.thread_time import ThreadTime
from emu.guest.guest import ThreadClock

CLOCK = ThreadClock(
    ran=("thread", "ran"), since=("cpu", "since"), tid=("thread", "tid"),
    adders=frozenset({"wide"}), reader="reader", through="short",
    timecounter="hands", members=(("hands", "counter"), ("counter", "get")),
    ticks={"wide": 1, "narrow": 16})
PLACES = {("thread", "ran"): (8, 8), ("cpu", "since"): (16, 8), ("thread", "tid"): (0, 4),
          ("hands", "counter"): (24, 8),
          ("counter", "get"): (32, 8)}
READER, HANDS, FUNCTIONS = 0x100, 0x108, {"wide": 0x1000, "narrow": 0x2000, "short": 0x3000,
                                          "other": 0x4000}
THREAD, CPU = 0x5000, 0x6000


def time_of(words, places=PLACES, names=("reader", "hands")):
    symbols = SimpleNamespace(
        find={name: SimpleNamespace(address=at)
              for name, at in (("reader", READER), ("hands", HANDS)) if name in names}.get,
        function_at=lambda address: next(
            (SimpleNamespace(name=name, address=at) for name, at in FUNCTIONS.items()
             if at <= address < at + 16), None))
    machine = SimpleNamespace(image=SimpleNamespace(symbols=symbols))
    return ThreadTime(machine, CLOCK, lambda *member: places.get(member),
                      lambda address, _size: words[address])


def words(function, ran, since, timecounter="narrow"):
    return {READER: FUNCTIONS[function], HANDS: 0x200, 0x218: 0x300,
            0x320: FUNCTIONS[timecounter], THREAD: 1, THREAD + 8: ran, CPU + 16: since}


@given(st.integers(0, 1 << 60), st.integers(0, 1 << 60), st.integers(0, 1 << 40))
def test_thread_time_adds_the_time_since_the_last_switch(ran, since, passed):
    assert time_of(words("wide", ran, since)).of(THREAD, CPU, since + passed) == ran + passed


@given(st.integers(0, 1 << 40), st.integers(0, (1 << 32) - (1 << 16)))
def test_a_32_bit_counter_may_wrap_around(since, passed):
    # The upper 32 bits of the saved counter value are arbitrary.
    for front in (0, 7 << 32):
        kept = words("short", 5, front + (since & 0xFFFF_FFFF))
        assert time_of(kept).of(THREAD, CPU, (since + passed) * 16 + 3) == (5 + passed) * 16


def test_a_switch_time_slightly_in_the_future_counts_as_now():
    assert time_of(words("wide", 50, 1_000)).of(THREAD, CPU, 990) == 50
    assert time_of(words("short", 50, 1_000)).of(THREAD, CPU, 990 * 16) == 50 * 16


@pytest.mark.parametrize("kept", [
    words("other", 1, 1), words("short", 1, 1, "other"),
    words("wide", 1, 1) | {READER: FUNCTIONS["wide"] + 4}, words("wide", 1, 1) | {READER: 0}],
    ids=["another function", "another timecounter", "no function begins there", "none"])
def test_thread_time_is_unknown_for_other_clock_functions(kept):
    assert time_of(kept).of(THREAD, CPU, 10) is None


def test_missing_debug_data_and_symbols_are_named():
    kept = words("wide", 1, 1)
    assert not time_of(kept).problem
    for place in PLACES:
        rest = {one: at for one, at in PLACES.items() if one != place}
        assert "debug data" in time_of(kept, rest).problem
    assert time_of(kept, names=("hands",)).problem == "symbol reader not found"
    assert time_of(kept, names=("reader",)).problem == "symbol hands not found"
    assert time_of(kept, {}).of(THREAD, CPU, 10) is None
    assert time_of(kept).of(0, CPU, 10) is None


def test_time_does_not_go_back_unless_the_address_is_reused_by_another_thread():
    kept = words("wide", 1_000, 0)
    time = time_of(kept)
    assert time.of(THREAD, CPU, 500) == 1_500
    kept[THREAD + 8], kept[CPU + 16] = 1_100, 900
    assert time.of(THREAD, CPU, 910) == 1_500
    assert time.of(THREAD, CPU, 1_400) == 1_600
    assert time.of(THREAD, CPU, 1_300) == 1_500, "the time of a restored machine is wrong"
    kept[THREAD], kept[THREAD + 8] = 2, 0
    assert time.of(THREAD, CPU, 1_400) == 500


def test_time_is_being_added_only_inside_the_adding_functions():
    time = time_of(words("wide", 0, 0))
    begin = FUNCTIONS["wide"]
    assert [time.adding(at) for at in (begin, begin + 4, FUNCTIONS["narrow"] + 4, 0)] == [
        False, True, False, False]
