"""Tests of ``kinst explore`` on the command line."""

import html
import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.kinst_emu.commands.test_commands import refused, run

PURSE = ("--setup", "purse_reset()", "--check", "purse_check()")
BAD = ("--run", "purse_move_bad()", "--run", "purse_move_bad()")
GOOD = ("--run", "purse_move_good()", "--run", "purse_move_good()")


def explore(arch, *arguments):
    return run("kinst", "explore", "-k", f"races/{arch}", "--memory", "64M", *arguments)


def test_a_defect_is_shown_side_by_side_with_a_schedule_that_reproduces_it(arch):
    ran = explore(arch, *PURSE, *BAD)
    assert ran.returncode == 1 and ran.stderr == ""
    schedule = ran.stdout.split("schedule '")[1].split("'")[0]
    assert "check: purse_check() does not hold: the value is 0" in ran.stdout
    assert "purse_one = 0xfffffffffffffffe" in ran.stdout
    columns = [line.index("./races.c") for line in ran.stdout.splitlines()
               if "purse_one is" in line]
    assert len(set(columns)) == 2
    again = explore(arch, *PURSE, *BAD, "--schedule", schedule)
    assert again.returncode == 1 and "This schedule fails" in again.stdout
    other = explore(arch, *PURSE, *BAD, "--schedule", "B A")
    assert other.returncode == 0 and "This schedule does not fail" in other.stdout


def test_the_coverage_is_reported_and_the_absence_of_defects_is_never_claimed(arch):
    ran = explore(arch, *PURSE, *GOOD)
    assert ran.returncode == 0
    assert "executed in" in ran.stdout and "No failure was found in these" in ran.stdout
    assert "no races" not in ran.stdout


def test_findings_are_written_as_json_and_junit(arch, tmp_path):
    ran = explore(arch, *PURSE, *BAD, "--json", "--junit", str(tmp_path / "found.xml"))
    found = json.loads(ran.stdout)
    assert ran.returncode == 1 and found["findings"][0]["kind"] == "check"
    assert found["findings"][0]["preemptions"] == 1 and found["tried"] > 2
    suite = ElementTree.parse(tmp_path / "found.xml").getroot()
    assert suite.get("failures") == "1"
    assert any("purse_one" in line for line in found["findings"][0]["lines"])
    assert suite.find("testcase/failure").text == found["findings"][0]["schedule"]


def test_a_page_shows_when_each_line_ran_and_which_value_it_saw(arch, tmp_path):
    path = tmp_path / "found.html"
    ran = explore(arch, *PURSE, *BAD, "--html", str(path))
    assert ran.returncode == 1 and f"wrote {path}" in ran.stderr
    shown = html.unescape(path.read_text())
    schedule = ran.stdout.split("schedule '")[1].split("'")[0]
    assert f"<code>{schedule}</code>" in shown and "purse_one = 0xfffffffffffffffe" in shown
    # The page shows the source text of the lines.
    assert "./races.c:" in shown and "purse_one = purse_one - 6;" in shown
    assert "http" not in re.sub(r"http-equiv|xmlns=\S*", "", shown) and "{{" not in shown
    races = explore(arch, "--setup", "counter_reset()", "--run", "counter_bad()", "--run",
                    "counter_bad()", "--limit", "2", "--html", str(path))
    assert races.returncode == 1 and "volatile u64 counter" in path.read_text()
    good = explore(arch, *PURSE, *GOOD, "--limit", "4", "--html", str(path))
    assert good.returncode == 0 and "No failure was found" in path.read_text()


def test_invalid_arguments_are_refused_in_one_line(arch):
    for arguments, said in (
            (("--run", "purse_reset()"), "--run: 1 given"),
            ((*BAD, "--schedule", "A1 Z"), "turn 2"),
            ((*BAD, "--preemptions", "9"), "--preemptions 9"),
            ((*BAD, "--check", "purse_one ="), "expected"),
            ((*BAD, "--check", "nothing_there()"), "nothing_there"),
            (("--run", "7", "--run", "purse_reset()"), "must end with a function call"),
            (("--run", "purse_move_bad(1)", "--run", "purse_reset()"), "purse_move_bad"),
            ((*BAD, "--cpus", "3"), "--cpus 3: must be 1 (the runs share one CPU) or 2 (each has"),
            ((*BAD, "--cpus", "x"), "--cpus"),
            ((*BAD, "--junit", "/nowhere/at/all.xml"), "--junit")):
        ran = explore(arch, *arguments)
        assert ran.returncode == 1 and ran.stdout == "", arguments
        assert said in ran.stderr and ran.stderr.count("\n") == 1, ran.stderr


def test_a_check_that_never_returns_fails(arch):
    ran = explore(arch, "--setup", "move_reset()", "--run", "move_there()", "--run",
                  "move_there()", "--check", "work_wait_bad()", "--limit", "3")
    assert ran.returncode == 1 and "did not return within" in ran.stdout


def kdtrace(arch, *arguments):
    return run("kdtrace", "-k", f"races/{arch}", "--memory", "64M", *arguments)


def test_probes_trace_a_schedule_and_do_not_change_it(arch):
    moved = (*PURSE[:2], *BAD, "--schedule", "A20 B A", "--digest")
    entries = kdtrace(arch, *moved, "-q", "-n", 'fbt::purse_move_bad:{printf("%d%s ", cpu, '
                      'probename == "entry" ? "in" : "out")}')
    all_of_it = kdtrace(arch, *moved, "-q", "-n", "kinst::purse_move_bad:{@[cpu] = count()}")
    one_by_one = kdtrace(arch, *moved[:-2], "A B", "-q", "-n",
                         'fbt::purse_move_bad:{printf("%d%s ", cpu, '
                         'probename == "entry" ? "in" : "out")}')
    assert entries.stdout.startswith("0in 1in 0out 1out \n") or entries.stdout.startswith(
        "0in 1in 1out 0out \n"), entries.stdout + entries.stderr
    assert one_by_one.stdout.startswith("0in 0out 1in 1out \n"), one_by_one.stderr
    digests = [ran.stdout.split("digest ")[1] for ran in (entries, all_of_it)]
    assert digests[0] == digests[1]
    assert entries.returncode == all_of_it.returncode == one_by_one.returncode == 0


def test_kdtrace_refuses_invalid_schedule_options_in_one_line(arch):
    probe = ("-n", "fbt::purse_move_bad:entry")
    for arguments, said in (
            (BAD, "--run, --setup: work only with --schedule"),
            ((*BAD, "--schedule", "A B", "-c", "boot"), "leave out -c"),
            ((*BAD, "--schedule", "A B", "--cpus", "2"), "leave out -c"),
            ((*BAD, "--schedule", "A1 Z"), "turn 2"),
            (("--schedule", "A B"), "--run: 0 given"),
            ((*BAD, "--schedule", "A B", "--machine", "qemu"), "--schedule")):
        ran = kdtrace(arch, *probe, *arguments)
        assert ran.returncode == 1 and ran.stdout == "", arguments
        lines = [line for line in ran.stderr.splitlines() if "matched" not in line]
        assert len(lines) == 1 and said in lines[0], (arguments, ran.stderr)


def test_runs_that_share_a_cpu_are_shown_recorded_and_traced(arch, tmp_path):
    path = tmp_path / "one.rec"
    found = explore(arch, *PURSE, *BAD, "--cpus", "1", "--record", str(path))
    assert found.returncode == 1 and "purse_one = 0xfffffffffffffffe" in found.stdout
    schedule = found.stdout.split("schedule '")[1].split("'")[0]
    again = explore(arch, *PURSE, *BAD, "--cpus", "1", "--schedule", schedule)
    assert again.returncode == 1 and "This schedule fails" in again.stdout
    played = run("kinst", "replay", str(path))
    assert played.returncode == 0 and "the state matches the recording" in played.stdout
    probe = ("-qn", 'fbt::purse_move_bad:{printf("%d%s ", cpu, '
             'probename == "entry" ? "in" : "out")}')
    traced = kdtrace(arch, *PURSE[:2], *BAD, "--cpus", "1", "--schedule", schedule, *probe)
    assert traced.stdout == "0in 0in 0out 0out \n" and traced.returncode == 0
    assert run("kdtrace", "--replay", str(path), *probe).stdout == traced.stdout


def test_runs_cannot_share_a_cpu_of_a_kernel_without_threads():
    ran = run("kinst", "explore", "-k", "teaching/amd64", "--cpus", "1", "--run", "fibonacci(3)",
              "--run", "fibonacci(4)")
    assert ran.returncode == 1 and ran.stdout == "" and "kthread_add" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_check_may_be_a_d_expression(arch):
    holds = ("--setup", "purse_reset()", "--check", "`purse_one == 4 && `purse_other == 6")
    bad = explore(arch, *holds, *BAD)
    assert bad.returncode == 1 and "`purse_other == 6 does not hold" in bad.stdout
    good = explore(arch, *holds, *GOOD)
    assert good.returncode == 0 and "No failure was found" in good.stdout
    wide = explore(arch, *GOOD, "--limit", "3", "--check", "(`purse_one & 0) | 0x100000000")
    assert wide.returncode == 0, wide.stdout
    for wrong, said in (("`purse_one ==", "does not compile"), ("`nothing > 1", "`nothing")):
        ran = explore(arch, *GOOD, "--check", wrong)
        assert ran.returncode == 1 and ran.stdout == "" and said in ran.stderr
        assert ran.stderr.count("\n") == 1


def test_a_check_that_never_holds_or_is_void_is_reported(arch):
    wrong = explore(arch, *PURSE[:2], *GOOD, "--check", "purse_check() == 7")
    assert wrong.returncode == 1 and "The check fails in every serial schedule" in wrong.stdout
    void = explore(arch, *PURSE[:2], *GOOD, "--check", "purse_reset()")
    assert void.returncode == 1 and void.stdout == "" and "its function is void" in void.stderr
    right = explore(arch, *PURSE, *BAD)
    assert "The check fails" not in right.stdout
    assert "stopped at the first failure" in right.stdout


def test_a_recorded_schedule_is_replayed_to_the_nth_call_of_a_function(arch, tmp_path):
    path = tmp_path / "purse.rec"
    explore(arch, *PURSE, *BAD, "--schedule", "A3 B A", "--record", str(path))
    reached = [run("kinst", "replay", str(path), "--to", f"purse_move_bad#{n}") for n in (1, 2, 3)]
    assert [one.returncode for one in reached] == [0, 0, 1]
    assert ["CPU 1" in one.stdout.splitlines()[0] for one in reached[:2]] == [False, True]
    assert "is not reached: found only 2 of 3 occurrences" in reached[2].stderr


def test_results_are_compared_even_if_arguments_are_unchecked(arch):
    found = json.loads(explore(arch, "--setup", "seat_reset()", "--run", "seat_take_bad()",
                               "--run", "seat_take_bad()", "--unchecked", "--json").stdout)
    assert found["not_compared"] == [] and len(found["serial"]) > 1
    assert [one["kind"] for one in found["findings"]] == ["result"]


def test_a_schedule_is_executed_even_if_a_serial_schedule_fails(arch):
    waits = ("--setup", "work_reset(); work_give_bad()", "--run", "work_wait_bad()", "--run",
             "work_reset()", "--no-races")
    wrong = explore(arch, *waits)
    assert wrong.returncode == 1 and "schedule 'B A'" in wrong.stdout
    one = explore(arch, *waits, "--schedule", "A B")
    assert one.returncode == 0 and "This schedule does not fail" in one.stdout
    assert "NOT compared: the results of the runs, because a serial schedule already fails" in (
        one.stdout)


# -- several processes ----------------------------------------------------------------------------

THREE = (*BAD, "--run", "purse_move_bad()", "--preemptions", "3", "--no-races")


def test_worker_processes_end_when_a_search_stops_early(arch):
    one, two = (explore(arch, *PURSE, *THREE, "--jobs", jobs, "--json") for jobs in ("1", "2"))
    assert one.returncode == two.returncode == 1, two.stderr
    found = [json.loads(ran.stdout) for ran in (one, two)]
    for ran in found:
        del ran["seconds"]
    assert found[0] == found[1] and found[0]["stopped_early"]


@pytest.mark.parametrize(("which", "who"), [
    (signal.SIGINT, "all"), (signal.SIGKILL, "a worker"), (signal.SIGTERM, "it"),
    (signal.SIGKILL, "it")])
def test_worker_processes_end_with_their_parent(which, who):
    """Interrupt all processes, as Ctrl-C does, or kill a worker or the parent."""
    words = [sys.executable, "-m", "kinst_emu.commands.kinst", "explore", "-k", "races/amd64",
             "--memory", "64M", *PURSE, *GOOD, *GOOD, "--preemptions", "4", "--jobs", "2"]
    ran = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                           start_new_session=True)
    children = Path(f"/proc/{ran.pid}/task/{ran.pid}/children")
    until = time.monotonic() + 30
    while len(workers := children.read_text().split()) < 2:
        assert time.monotonic() < until and ran.poll() is None, ran.communicate()
        time.sleep(0.05)
    time.sleep(0.3)
    if who == "all":
        os.killpg(ran.pid, which)
    else:
        os.kill(int(workers[0]) if who == "a worker" else ran.pid, which)
    out, err = ran.communicate(timeout=30)
    if which is signal.SIGINT:
        assert "executed in" in out and "Traceback" not in err + out
    elif who == "a worker":
        assert ran.returncode == 1 and err.startswith("kinst: --jobs: a worker process was lost")
        assert err.count("\n") == 1
    until = time.monotonic() + 10
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_command_as_setup_needs_a_system():
    refused(explore("amd64", "--setup", "$ ls", *BAD), "--setup: a command needs a system")
