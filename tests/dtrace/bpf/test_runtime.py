"""Tests that Python callers of the BPF runtime cannot reach outside its memory."""

import random

import pytest

from dtrace.bpf._runtime import Runtime, RuntimeFault
from dtrace.bpf.layout import Aggregate, Fault, Helper, Policy, Region

WORK, SCRATCH = Region.WORK.address, Region.SCRATCH.address
HUGE = (1 << 64) - 16


def made(**changed):
    given = {
        "sizes": {Region.WORK: 4096, Region.RECORD: 1 << 20, Region.SCRATCH: 4096},
        "variables": [], "dynamic": 0, "functions": [], "aggregation": 1 << 20, "buffer": 1 << 16,
        "policy": 0, "speculations": (4, 0), "string": 256} | changed
    return Runtime(given["sizes"], bytes(8), given["variables"], given["dynamic"],
                   given["functions"], given["aggregation"], given["buffer"], given["policy"],
                   given["speculations"], given["string"], {})


@pytest.mark.parametrize("changed", [
    {"functions": [(Aggregate.LQUANTIZE, 10, (0, 0, 5))]},
    {"functions": [(Aggregate.LLQUANTIZE, 10, (10, 0, 5, 0))]},
    {"functions": [(Aggregate.LLQUANTIZE, 10, (10, 0, 1 << 40, 10))]},
    {"functions": [(Aggregate.STDDEV, 1, ())]}, {"functions": [(77, 1, ())]},
    {"functions": [(Aggregate.COUNT, 0, ())]}, {"sizes": {100_000_000: 8}},
    {"sizes": {Region.WORK: -1}}, {"string": 1}, {"string": 1 << 20}, {"buffer": 1 << 40},
    {"speculations": (5000, 1)}, {"variables": [(1 << 30, 0, False, 0)], "dynamic": 1 << 20},
])
def test_invalid_sizes_and_parameters_are_refused(changed):
    with pytest.raises((ValueError, OverflowError)):
        made(**changed)


def half():
    runtime = Runtime.__new__(Runtime)
    with pytest.raises(ValueError):
        runtime.__init__({}, b"", [], 0, [], 0, 1 << 40, 0, (0, 0), 16, {})
    return runtime


@pytest.mark.parametrize("runtime", [Runtime.__new__(Runtime), half()])
def test_an_uninitialized_runtime_refuses_every_call(runtime):
    for ask in (lambda: runtime.set_context(0, 1), lambda: runtime.run(0),
                lambda: runtime.read(WORK, 1), lambda: runtime.call(Helper.LOAD, WORK, 8),
                lambda: runtime.records(), lambda: runtime.aggregated(), lambda: runtime.probe,
                lambda: runtime.firing_action(), lambda: runtime.load(bytes(8))):
        with pytest.raises((RuntimeError, ValueError)):
            ask()


def test_an_open_record_cannot_be_moved_to_another_buffer():
    runtime = made()
    speculation = runtime.call(Helper.SPECULATION)
    for _ in range(20):
        runtime.begin_clause()
        runtime.call(Helper.RECORD, 1, 1 << 19, 8)
        runtime.call(Helper.SPECULATE, speculation, 0)
        runtime.call(Helper.COMMIT)
        runtime.call(Helper.RECORD, 1, 8, 8)
        runtime.call(Helper.DISCARD_SPECULATION, speculation + 1)
        runtime.call(Helper.COMMIT)
    assert runtime.records() == []


@pytest.mark.parametrize("size", [HUGE, HUGE - 8, 1 << 20, (1 << 64) - 1])
def test_a_record_larger_than_its_region_is_refused(size):
    for runtime in (made(), made(sizes={Region.WORK: 64})):
        with pytest.raises(RuntimeFault):
            runtime.call(Helper.RECORD, 1, size, 8)
        runtime.call(Helper.COMMIT)
        assert runtime.records() == []


def test_a_key_cannot_grow_past_its_region():
    runtime = made(sizes={Region.WORK: 17, Region.SCRATCH: 64}, string=9)
    runtime.write(SCRATCH, b"123456789")
    with pytest.raises(RuntimeFault) as caught:
        runtime.call(Helper.KEY_TEXT, WORK, SCRATCH)
    assert caught.value.fault == Fault.TUPLE_OVERFLOW


def test_dynamic_variables_stay_within_their_size_limit():
    runtime = made(variables=[(8, 0, False, 500)], dynamic=1 << 33)
    for key in range(2000):
        runtime.write(WORK, key.to_bytes(8, "little") + bytes(400))
        runtime.call(Helper.ASSIGN, 0, WORK, 408, 7)
    assert runtime.take_drops()[1] == 0
    runtime = made(variables=[(8, 0, False, 8)], dynamic=1024)
    for key in range(2000):
        runtime.write(WORK, key.to_bytes(8, "little"))
        runtime.call(Helper.ASSIGN, 0, WORK, 8, key + 1)
    assert runtime.take_drops()[1] > 1900


@pytest.mark.parametrize("helper", [*Helper, 250])
@pytest.mark.parametrize("value", [0, 1, 8, HUGE, (1 << 64) - 1, WORK, WORK + 4090, SCRATCH])
def test_no_helper_crashes_on_any_argument(helper, value):
    runtime = made(variables=[(8, 0, False, 8), (16, 1, True, 16), (32, 2, False, 0)],
                   dynamic=4096,
                   functions=[(Aggregate.COUNT, 1, ()), (Aggregate.QUANTIZE, 127, ())])
    for other in (0, 1, 8, 1 << 19, HUGE, WORK, SCRATCH + 1):
        for arguments in ((value, other, 8, 1, 1), (other, value, other, 8, 1),
                          (0, value, 8, other, 1), (WORK, other, value, 8, 1)):
            try:
                runtime.call(int(helper), *arguments)
            except RuntimeFault as fault:
                assert fault.fault in list(Fault)


def test_a_ring_keeps_whole_records_however_they_wrap():
    runtime = made(buffer=1 << 10, policy=Policy.RING)
    for number in range(20_000):
        runtime.begin_clause()
        at = runtime.call(Helper.RECORD, number, 8 + number % 700, 20)
        runtime.write(at, number.to_bytes(8, "little"))
        runtime.call(Helper.COMMIT)
    found = runtime.records()
    assert [clause for clause, *_rest in found] == list(range(20_000 - len(found), 20_000))
    assert len(found) == (1 << 10) // 20
    assert all(int.from_bytes(content[:8], "little") == clause
               for clause, _cpu, content, _time in found)


@pytest.mark.parametrize("count, kept", [(4227, 4227), (4228, 4228), (4229, 4228), (4230, 4228)])
def test_a_ring_drops_only_as_many_old_records_as_needed(count, kept):
    """The ring buffer can run out of memory before its records reach the configured size.

    4,228 records of 744 bytes fill it after the larger records before them are used up.
    """
    runtime = made(buffer=512 << 10, policy=Policy.RING)
    for number in range(3817 + count):
        runtime.begin_clause()
        runtime.call(Helper.RECORD, number, 800 if number < 3817 else 720, 100)
        runtime.call(Helper.COMMIT)
    found = [clause for clause, _cpu, _content, _time in runtime.records()]
    assert found == list(range(3817 + count - kept, 3817 + count))


@pytest.mark.parametrize("seed", range(6))
def test_a_ring_keeps_the_newest_records_that_fit(seed):
    """The ring buffer drops old records only when a new record does not fit."""
    rng, size = random.Random(seed), 4096
    runtime = made(buffer=size, policy=Policy.RING)
    room, sizes, last_read = 4 * size + (1 << 20), [], -1
    for number in range(3000):
        sizes.append((rng.choice((8, 800, 40_000, 300_000)), rng.choice((1, 20, 700))))
        runtime.begin_clause()
        runtime.call(Helper.RECORD, number, *sizes[-1])
        runtime.call(Helper.COMMIT)
        if rng.random() < 0.01:
            found = [clause for clause, _cpu, _content, _time in runtime.records()]
            assert found == list(range(number + 1 - len(found), number + 1)) and found
            assert sum(sizes[n][1] for n in found) <= size
            before = found[0] - 1
            if before > last_read:  # the preceding record was dropped, not already read
                assert (sum(sizes[n][1] for n in found) + sizes[before][1] > size
                        or sum(sizes[n][0] + 24 for n in found) + 2 * max(sizes)[0] > room)
            last_read = number
