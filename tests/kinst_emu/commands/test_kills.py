"""Tests that killed commands leave no processes or partial files and can be run again."""

import os
import random
import signal
import subprocess
import sys
import time
import uuid

import pytest

from images import catalog
from tests.killing import COMMANDS, MARK, SIGNALS, Victim, processes

SEED = 54
SECONDS = 1.5  # maximum time before a kill, in seconds; bench/kills kills at any time
HERE = ("boot", "record", "relocate", "explore", "xval")  # bench/kills tests all commands


@pytest.mark.parametrize("command", [one for one in COMMANDS if one.name in HERE],
                         ids=lambda command: command.name)
def test_a_killed_command_leaves_nothing_and_can_run_again(command, tmp_path):
    victim = Victim(command, str(catalog.find("teaching/amd64").path), tmp_path, SECONDS)
    generator = random.Random(f"{SEED} {command.name}")
    for how in generator.sample(SIGNALS, 2):
        victim.kill(how, generator.uniform(0.2, victim.seconds))
    victim.again()


def test_processes_are_found_by_their_environment_mark():
    mark = uuid.uuid4().hex
    assert processes(mark) == []
    with subprocess.Popen(["sleep", "60"], env={**os.environ, MARK: mark},
                          start_new_session=True) as process:
        # The kernel shows a new program's environment a moment after execve() has returned.
        end = time.monotonic() + 10
        while not (marked := processes(mark)) and time.monotonic() < end:
            time.sleep(0.05)
        process.kill()
        assert [number for number, _line in marked] == [process.pid]


def test_an_interrupt_ends_a_long_sweep_within_five_seconds(tmp_path):
    """Send SIGINT to the whole process group, as a terminal does."""
    words = ("-k", "teaching/amd64", "--states", "3000", "--jobs", "2", "--store",
             str(tmp_path / "a.db"))
    with subprocess.Popen([sys.executable, "-m", "kinst_emu.commands.kinst", "relocate", *words],
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          start_new_session=True) as process:
        assert process.stderr is not None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(4)  # the workers are busy
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(5)
        finally:
            process.kill()
        assert process.stderr.read().endswith("kinst: interrupted\n") and process.returncode == 130
