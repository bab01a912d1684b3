"""How long a thread has had a CPU, from words as the kernel keeps them."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtrace.run.thread_time import ThreadTime
from emu.guest import ThreadClock

CLOCK = ThreadClock(
    ran=("thread", "ran"), since=("cpu", "since"), reader="reader", through="short",
    timecounter="hands", members=(("hands", "counter"), ("counter", "get")),
    ticks={"wide": 1, "narrow": 16})
PLACES = {("thread", "ran"): (8, 8), ("cpu", "since"): (16, 8), ("hands", "counter"): (24, 8),
          ("counter", "get"): (32, 8)}
READER, HANDS, FUNCTIONS = 0x100, 0x108, {"wide": 0x1000, "narrow": 0x2000, "short": 0x3000,
                                          "other": 0x4000}
THREAD, CPU = 0x5000, 0x6000


def time_of(words, places=PLACES):
    symbols = SimpleNamespace(
        find={"reader": SimpleNamespace(address=READER),
              "hands": SimpleNamespace(address=HANDS)}.get,
        function_at=lambda address: next(
            (SimpleNamespace(name=name, address=at) for name, at in FUNCTIONS.items()
             if at <= address < at + 16), None))
    machine = SimpleNamespace(image=SimpleNamespace(symbols=symbols))
    return ThreadTime(machine, CLOCK, lambda *member: places.get(member),
                      lambda address, _size: words[address])


def words(function, ran, since, timecounter="narrow"):
    return {READER: FUNCTIONS[function], HANDS: 0x200, 0x218: 0x300,
            0x320: FUNCTIONS[timecounter], THREAD + 8: ran, CPU + 16: since}


@given(st.integers(0, 1 << 60), st.integers(0, 1 << 60), st.integers(0, 1 << 40))
def test_it_is_what_was_counted_and_what_has_passed_since_then(ran, since, passed):
    assert time_of(words("wide", ran, since)).of(THREAD, CPU, since + passed) == ran + passed


@given(st.integers(0, 1 << 40), st.integers(0, (1 << 31) - 1))
def test_a_counter_of_32_bits_goes_past_its_end(since, passed):
    # What the kernel has in front of the 32 bits is its own affair.
    for front in (0, 7 << 32):
        kept = words("short", 5, front + (since & 0xFFFF_FFFF))
        assert time_of(kept).of(THREAD, CPU, (since + passed) * 16 + 3) == (5 + passed) * 16


def test_a_switch_that_is_a_moment_ahead_is_now():
    assert time_of(words("wide", 50, 1_000)).of(THREAD, CPU, 990) == 50
    assert time_of(words("short", 50, 1_000)).of(THREAD, CPU, 990 * 16) == 50 * 16


@pytest.mark.parametrize("kept", [
    words("other", 1, 1), words("short", 1, 1, "other"),
    words("wide", 1, 1) | {READER: FUNCTIONS["wide"] + 4}, words("wide", 1, 1) | {READER: 0}],
    ids=["another function", "another timecounter", "no function begins there", "none"])
def test_what_the_machine_does_not_drive_is_not_known(kept):
    assert time_of(kept).of(THREAD, CPU, 10) is None


def test_without_debug_data_or_a_thread_it_is_not_known():
    kept = words("wide", 1, 1)
    assert time_of(kept).known and not time_of(kept, {}).known
    assert time_of(kept, {}).of(THREAD, CPU, 10) is None
    assert time_of(kept).of(0, CPU, 10) is None
