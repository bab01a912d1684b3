"""Orders tried from a Python program."""

import pytest

import kinst_emu


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
