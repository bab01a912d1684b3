"""Tests that shared trampolines fail in concurrent runs, while per-thread trampolines work."""

import pytest

from images import catalog
from kinst_emu.explore.exploration import Runs, for_runs, stage_of
from kinst_emu.explore.explorer import PANIC, RACE, Explorer, Search
from tests.conftest import MEMORY
from tests.kinst_emu.commands.test_commands import run

PROBES = ("strlen:0", "strlen:1")
RUNS = ('strlen("abc")', 'strlen("defgh")')


def explored(trampolines, cpus, probes=PROBES, **asked):
    image = for_runs(catalog.find("races/amd64"), 2, cpus)
    runs = Runs(RUNS, probes=probes, trampolines=trampolines)
    stage, judge = stage_of(image, runs, MEMORY)
    return Explorer(stage, Search(**asked), judge)


@pytest.mark.parametrize("cpus", [1, 2])
def test_a_shared_trampoline_is_overwritten_with_one_preemption(cpus):
    explorer = explored("shared", cpus)
    found = explorer.run()
    harm = [one for one in found.findings if one.kind != RACE]
    assert [(one.kind, one.preemptions) for one in harm] == [(PANIC, 1)]
    assert found.results == {(3, 5)}
    played = explorer.stage.play(harm[0].turns, look=True)
    said = [event.text for event in explorer.stage.probed.events]
    assert played.end is not None and any("(instead of 'push rbp')" in text for text in said)


@pytest.mark.parametrize("cpus", [1, 2])
def test_a_per_thread_trampoline_is_never_written_by_another_thread(cpus):
    found = explored("thread", cpus, all_findings=True).run()
    assert found.complete and found.results == {(3, 5)}
    # On two CPUs, the vector stores to a word that both CPUs share.
    assert {one.kind for one in found.findings} <= {RACE}
    assert all("Xbpt" in one.message for one in found.findings) and len(found.findings) == cpus - 1


def test_emulated_instructions_can_be_probed_in_runs():
    found = explored("thread", 1, (*PROBES, "strlen:25"), all_findings=True, preemptions=1).run()
    assert found.findings == [] and found.results == {(3, 5)} and found.tried > 4


def explain(*arguments):
    return run("kinst", "explain", "-k", "races/amd64", "--memory", "64M", "strlen:0", *arguments)


def test_explain_shows_both_kinds_of_trampoline():
    ran = explain("--probe", "strlen:1", "--run", RUNS[0], "--run", RUNS[1], "--schedule",
                  "A37 B A")
    right, wrong = ran.stdout.split("2. All threads share")
    assert ran.returncode == 0 and ran.stderr == ""
    assert "A returns 0x3; B returns 0x5" in right and "instead of" not in right
    assert "executes mov rbp, rsp (instead of 'push rbp')" in wrong and "panics" in wrong


def test_invalid_arguments_are_refused_in_one_line():
    both = ("--run", RUNS[0], "--run", RUNS[1])
    for ran, said in (
            (explain(), "give a call that makes the probe fire"),
            (explain(*both), "--schedule"),
            (explain(*both, "--schedule", "A B", "-c", RUNS[0]), "-c: cannot be used with --run"),
            (explain("--schedule", "A B"), "--run"),
            (explain(*both, "--schedule", "C"), "turn 1"),
            (explain(*both, "--schedule", "A", "--probe", "strlen:2"), "no instruction begins"),
            (explain(*both, "--schedule", "A", "--probe", "nothing:0"), "nothing"),
            (run("kinst", "explore", "-k", "races/arm64", *both, "--probe", "strlen:0"),
             "this architecture has one trampoline for each probe"),
            (run("kinst", "explore", "-k", "races/amd64", *both, "--probe", "strlen:0", "--record",
                 "x.rec"), "--record: cannot be used with --probe")):
        assert ran.returncode == 1 and ran.stdout == "", (said, ran.stdout)
        assert said in ran.stderr and ran.stderr.count("\n") == 1, ran.stderr
