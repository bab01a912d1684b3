"""Probes in the runs' way: one trampoline for all goes wrong, one for each thread does not."""

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
def test_a_trampoline_that_all_share_is_written_over_by_one_preemption(cpus):
    explorer = explored("shared", cpus)
    found = explorer.run()
    harm = [one for one in found.findings if one.kind != RACE]
    assert [(one.kind, one.preemptions) for one in harm] == [(PANIC, 1)]
    assert found.results == {(3, 5)}
    played = explorer.stage.play(harm[0].order, look=True)
    said = [event.text for event in explorer.stage.probed.events]
    assert played.end is not None and any("(and not 'push rbp')" in text for text in said)


@pytest.mark.parametrize("cpus", [1, 2])
def test_a_trampoline_of_its_own_is_never_written_by_another_thread(cpus):
    found = explored("thread", cpus, all_findings=True).run()
    assert found.whole and found.results == {(3, 5)}
    # On two CPUs the vector itself stores to a word that they share.
    assert {one.kind for one in found.findings} <= {RACE}
    assert all("Xbpt" in one.said for one in found.findings) and len(found.findings) == cpus - 1


def test_emulated_instructions_are_probed_too():
    found = explored("thread", 1, (*PROBES, "strlen:25"), all_findings=True, preemptions=1).run()
    assert found.findings == [] and found.results == {(3, 5)} and found.tried > 4


def explain(*arguments):
    return run("kinst", "explain", "-k", "races/amd64", "--memory", "64M", "strlen:0", *arguments)


def test_both_are_explained_beside_each_other():
    ran = explain("--probe", "strlen:1", "--run", RUNS[0], "--run", RUNS[1], "--schedule",
                  "A37 B A")
    right, wrong = ran.stdout.split("2. All threads share")
    assert ran.returncode == 0 and ran.stderr == ""
    assert "A gives 0x3; B gives 0x5" in right and "and not" not in right
    assert "executes mov rbp, rsp (and not 'push rbp')" in wrong and "panics" in wrong


def test_what_cannot_be_is_refused_in_one_line():
    both = ("--run", RUNS[0], "--run", RUNS[1])
    for ran, said in (
            (explain(), "give what makes the probe fire"),
            (explain(*both), "--schedule"),
            (explain(*both, "--schedule", "A B", "-c", RUNS[0]), "-c: not with --run"),
            (explain("--schedule", "A B"), "--run"),
            (explain(*both, "--schedule", "C"), "turn 1"),
            (explain(*both, "--schedule", "A", "--probe", "strlen:2"), "no instruction begins"),
            (explain(*both, "--schedule", "A", "--probe", "nothing:0"), "nothing"),
            (run("kinst", "explore", "-k", "races/arm64", *both, "--probe", "strlen:0"),
             "arm64 has one trampoline for each probe"),
            (run("kinst", "explore", "-k", "races/amd64", *both, "--probe", "strlen:0", "--record",
                 "x.rec"), "--record: not with --probe")):
        assert ran.returncode == 1 and ran.stdout == "", (said, ran.stdout)
        assert said in ran.stderr and ran.stderr.count("\n") == 1, ran.stderr
