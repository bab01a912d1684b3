"""Orders tried from a Python program."""

import pytest

import kinst_emu
from dtrace.calls.prototypes import Prototypes
from images import catalog
from kinst_emu.commands.explore import _seen
from kinst_emu.explore.exploration import Runs, for_runs, stage_of
from kinst_emu.explore.explorer import Explorer, Search

SEATS = ("seat_take_bad()", "seat_take_bad()")


def test_a_test_can_say_that_no_order_of_two_calls_does_harm(arch):
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


def test_without_debug_data_it_is_said_that_results_are_not_compared(arch, monkeypatch):
    monkeypatch.setattr(Prototypes, "types", lambda self: None)
    kernel = kinst_emu.open(f"races/{arch}")
    found = kernel.explore(*SEATS, setup="seat_reset()", memory="64M", races=False)
    assert found.findings == [] and found.not_compared == list(SEATS)
    assert "NOT compared: what is given by seat_take_bad(): the debug data" in _seen(found)
    with pytest.raises(kinst_emu.KinstError, match="does not tell what seat_check gives"):
        kernel.explore(*SEATS, setup="seat_reset()", memory="64M", check="seat_check() > -1")


def test_a_wrong_result_does_not_hide_a_check_that_fails(arch):
    image = for_runs(catalog.find(f"races/{arch}"), 2)
    stage, _none = stage_of(image, Runs(SEATS, "seat_reset()"), 64 << 20)
    given = []

    def judge(played):
        given.append(tuple(sorted(played.results.items())))
        return None if len(set(given)) <= 2 else f"given {given[-1]}"
    found = Explorer(stage, Search(races=False), judge).run()
    assert [one.kind for one in found.findings] == ["result", "check"]
    assert found.findings[0].order == found.findings[1].order
