"""Tests of D programs on a machine, combined with probes, calls, snapshots and runs."""

import pytest

import kinst_emu


@pytest.fixture
def machine(image):
    return kinst_emu.open(image.path).boot()


def test_closing_a_program_during_a_run_is_refused_and_loses_nothing(machine):
    programs = []
    with machine.probe("fbt::strlen:return", lambda firing: programs[0].close()):
        programs.append(machine.trace("fbt::strlen:entry { trace(1); } END { trace(2); }"))
        with pytest.raises(kinst_emu.KinstError, match="running"):
            machine.call("strlen", "abc")
        programs[0].close()
    assert [record.values for record in programs[0].records] == [[1], [2]]
    assert machine.call("strlen", "abc") == 3


def test_probes_and_programs_may_be_closed_in_any_order(machine):
    plain = machine.digest()
    seen = []
    probes = machine.probe("fbt::strlen:entry", lambda firing: seen.append(firing.name))
    program = machine.trace("fbt::strlen:entry { @ = count(); }")
    machine.call("strlen", "a")
    probes.close()
    machine.call("strlen", "a")
    program.close()
    program.close()
    machine.call("strlen", "a")
    assert seen == ["entry"] and program.aggregations == {"@": {(): 2}}
    assert machine.digest() != plain  # the calls changed the state


def test_a_program_leaves_no_trace_in_the_machine(machine):
    state = machine.keep()
    machine.call("strlen", "abc")
    plain = machine.digest()
    machine.restore(state)
    with machine.trace("fbt::strlen: { @[probename] = count(); }") as program:
        machine.call("strlen", "abc")
        assert machine.digest() == plain
    assert machine.digest() == plain and program.firings >= 2


def test_timers_continue_from_the_time_of_a_restored_state(machine):
    early = machine.keep()
    machine.run(nanoseconds=50_000_000)
    late = machine.keep()
    with machine.trace("tick-1ms { @ = count(); }") as program:
        machine.restore(early)
        machine.run(nanoseconds=5_500_000)
        machine.restore(late)
        machine.run(nanoseconds=5_500_000)
        assert 8 <= program.aggregations["@"][()] <= 11


def test_failed_programs_leave_existing_probes_enabled(machine):
    with machine.probe("fbt::strlen:entry") as probes:
        for wrong in ("BEGIN {", "fbt::nosuch:entry {}", 'BEGIN { system("x"); }'):
            with pytest.raises(kinst_emu.KinstError):
                machine.trace(wrong)
        machine.call("strlen", "a")
    assert probes.count == 1
    with machine.trace("fbt::strlen:entry {}"), pytest.raises(kinst_emu.KinstError, match="close"):
        machine.trace("fbt::strlen:entry {}")
    with pytest.raises(kinst_emu.KinstError, match="R_PC"):
        machine.trace("BEGIN { trace(R_PC); }", options={"nolibs": True})
