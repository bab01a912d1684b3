"""Tests of exploring interleavings from a Python program."""

import pytest

import kinst_emu
from dtrace.calls.prototypes import Prototypes
from images import catalog
from kinst_emu.commands.explore import _coverage
from kinst_emu.explore.exploration import Runs, for_runs, stage_of
from kinst_emu.explore.explorer import Explorer, Search

SEATS = ("seat_take_bad()", "seat_take_bad()")


def test_a_python_test_can_assert_that_no_interleaving_of_two_calls_fails(arch):
    kernel = kinst_emu.open(f"races/{arch}")
    found = kernel.explore("seat_take_bad()", "seat_take_bad()", setup="seat_reset()",
                           memory="64M")
    assert [one.kind for one in found.findings] == ["result"]
    again = kernel.boot("64M").explore(
        "seat_take_bad()", "seat_take_bad()", setup="seat_reset()", memory="64M",
        schedule=found.findings[0].schedule)
    assert [one.kind for one in again.findings] == ["result"]
    assert not kernel.explore("seat_take_good()", "seat_take_good()", setup="seat_reset()",
                              memory="64M").findings
    with pytest.raises(kinst_emu.KinstError, match="1 given"):
        kernel.explore("seat_take_good()")


def test_without_debug_data_the_results_are_reported_as_not_compared(arch, monkeypatch):
    monkeypatch.setattr(Prototypes, "types", lambda self: None)
    kernel = kinst_emu.open(f"races/{arch}")
    found = kernel.explore(*SEATS, setup="seat_reset()", memory="64M", races=False)
    assert found.findings == [] and found.not_compared == list(SEATS)
    assert "NOT compared: the results of seat_take_bad(), because the" in _coverage(found)
    with pytest.raises(kinst_emu.KinstError, match="the result type of seat_check is unknown"):
        kernel.explore(*SEATS, setup="seat_reset()", memory="64M", check="seat_check() > -1")


def test_a_wrong_result_does_not_hide_a_failing_check(arch):
    image = for_runs(catalog.find(f"races/{arch}"), 2)
    stage, _none = stage_of(image, Runs(SEATS, "seat_reset()"), 64 << 20)
    given = []

    def judge(played):
        given.append(tuple(sorted(played.results.items())))
        return None if len(set(given)) <= 2 else f"given {given[-1]}"
    found = Explorer(stage, Search(races=False), judge).run()
    assert [one.kind for one in found.findings] == ["result", "check"]
    assert found.findings[0].turns == found.findings[1].turns
