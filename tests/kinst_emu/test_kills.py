"""Nothing is left of a command that is killed: no process, no half file; it can be run again."""

import random

import pytest

from images import catalog
from tests.killing import COMMANDS, SIGNALS, Victim, processes

SEED = 54
SECONDS = 1.5  # in which they are killed; bench/kills does it at any time, and often


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_nothing_is_left_of_a_command_that_is_killed(command, tmp_path):
    victim = Victim(command, str(catalog.find("teaching/amd64").path), tmp_path, SECONDS)
    generator = random.Random(f"{SEED} {command.name}")
    for how in generator.sample(SIGNALS, 2):
        victim.kill(how, generator.uniform(0.2, victim.seconds))
    victim.again()


def test_processes_are_found_by_their_mark(tmp_path):
    assert processes("nobody has this one") == []
