"""Nothing is left of a command that is killed: no process, no half file; it can be run again."""

import os
import random
import signal
import subprocess
import sys
import uuid

import pytest

from images import catalog
from tests.killing import COMMANDS, MARK, SIGNALS, Victim, processes

SEED = 54
SECONDS = 1.5  # in which they are killed; bench/kills does it at any time, and often
HERE = ("boot", "record", "relocate", "explore", "xval")  # and all of them there


@pytest.mark.parametrize("command", [one for one in COMMANDS if one.name in HERE],
                         ids=lambda command: command.name)
def test_nothing_is_left_of_a_command_that_is_killed(command, tmp_path):
    victim = Victim(command, str(catalog.find("teaching/amd64").path), tmp_path, SECONDS)
    generator = random.Random(f"{SEED} {command.name}")
    for how in generator.sample(SIGNALS, 2):
        victim.kill(how, generator.uniform(0.2, victim.seconds))
    victim.again()


def test_processes_are_found_by_their_mark():
    mark = uuid.uuid4().hex
    assert processes(mark) == []
    with subprocess.Popen(["sleep", "60"], env={**os.environ, MARK: mark},
                          start_new_session=True) as process:
        assert [number for number, _line in processes(mark)] == [process.pid]
        process.kill()


def test_an_interrupt_ends_a_long_sweep_within_five_seconds(tmp_path):
    """As a terminal sends it: to all processes of it."""
    words = ("-k", "teaching/amd64", "--states", "3000", "--jobs", "2", "--store",
             str(tmp_path / "a.db"))
    with subprocess.Popen([sys.executable, "-m", "kinst_emu.commands.kinst", "relocate", *words],
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          start_new_session=True) as process:
        assert process.stderr is not None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(4)  # its workers work
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(5)
        finally:
            process.kill()
        assert process.stderr.read().endswith("kinst: interrupted\n") and process.returncode == 130
