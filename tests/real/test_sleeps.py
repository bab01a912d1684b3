"""Tests of ``kinst why --sleep`` on FreeBSD: why threads sleep, and who wakes them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kinst_emu
from emu.machine.running_thread import thread_of
from tests.conftest import ARCHES, real_kernel

SOURCE = Path(__file__).parent / "sleeps.c"
SLEPT = 50_000_000  # nanoseconds that the child sleeps


def kinst(*words):
    return subprocess.run([sys.executable, "-m", "kinst_emu.commands.kinst", *words],
                          capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module", params=ARCHES)
def recorded(request, tmp_path_factory):
    if shutil.which("clang") is None and shutil.which("clang-19") is None:
        pytest.skip("clang is not installed: apt-get install clang")
    path = tmp_path_factory.mktemp("sleeps") / "sleeps.rec"
    done = kinst("record", "-k", str(real_kernel(request.param).path), str(SOURCE), "-o", str(path))
    assert done.returncode == 0, done.stderr
    return path


def asked(recorded, *words):
    done = kinst("why", str(recorded), "--sleep", *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def names(stack):
    return [line.partition("`")[2].split()[0].partition("+")[0] for line in stack]


def branches(answer):
    return [reason["test"]["line"] for reason in answer["reasons"]]


def test_the_longest_sleep_is_that_of_the_reader_and_the_writer_wakes_it(recorded):
    answer = asked(recorded)
    sleep = answer["sleep"]
    assert answer["question"].startswith("sleeps (pid ")
    assert sleep["message"] == "piperd" and sleep["channel"]
    assert SLEPT <= sleep["end"]["time"] - sleep["begin"]["time"] < 2 * SLEPT
    assert names(answer["stack"])[0] == "pipe_read" and "sys_read" in names(answer["stack"])
    assert answer["asleep"]["made"]["function"] == "pipe_read"
    assert answer["asleep"]["made"]["line"].endswith("sys_pipe.c:891")
    assert names(answer["waker"])[0] == "pipe_write" and sleep["wake"]["thread"] == "sleeps"
    # if (wpipe->pipe_state & PIPE_WANTR)
    assert any(line.endswith("sys_pipe.c:1370") for line in branches(answer["waking"]))
    assert any("wpipe->pipe_state" in one["name"] for reason in answer["waking"]["reasons"]
               for one in reason["compared"])
    assert not answer["interrupted"]


def test_a_thread_that_sleeps_for_a_time_is_woken_by_the_clock(recorded):
    rows = [one for one in asked(recorded)["others"] if "slept (nanslp)" in one["question"]]
    assert len(rows) == 1
    answer = asked(recorded, str(rows[0]["number"]))
    assert answer["channel"] == "nanowait" and answer["asleep"]["made"]["function"] == (
        "kern_clock_nanosleep")
    assert "callout_process" in names(answer["waker"])
    text = kinst("why", str(recorded), "--sleep", str(rows[0]["number"])).stdout
    assert "  on nanowait\n  it called _sleep()\n" in text and "\n  woken after 5" in text


def test_begin_and_end_are_where_the_thread_stops_and_goes_on(recorded):
    recording = kinst_emu.Recording(recorded)
    machine = recording.machine
    ended = 0
    for row in asked(recorded)["others"][::25]:
        sleep = asked(recorded, str(row["number"]))["sleep"]
        recording.go(sleep["begin"]["instructions"])
        assert machine.where(machine.pc) == "mi_switch+0x0"
        assert thread_of(machine.emulated) == sleep["thread"]["address"]
        back = machine.emulated.arch.return_address(machine.emulated)
        if sleep["end"] is None:
            continue
        recording.go(sleep["end"]["instructions"])
        assert machine.pc == back and thread_of(machine.emulated) == sleep["thread"]["address"]
        ended += 1
    assert ended


def test_numbers_outside_the_recording_are_refused(recorded):
    done = kinst("why", str(recorded), "--sleep", "1000000")
    assert done.returncode == 1 and "threads stopped running" in done.stderr
    assert len(done.stderr.splitlines()) == 1
