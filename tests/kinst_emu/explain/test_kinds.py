"""What is explained is said by --of; without it, by what is given."""

import pytest

from tests.kinst_emu.commands.test_commands import run

CALL = ("-c", 'strlen("a")')
COMMAND = ("-c", "$ cat /etc/motd")
TWO = ("--run", 'strlen("a")', "--run", 'strlen("b")', "--schedule", "A10 B A")


def explain(*words, kernel="teaching/amd64"):
    return run("kinst", "explain", "-k", kernel, "--memory", "64M", "--steps", *words)


def test_a_firing_is_what_a_call_is_asked_of():
    said, unsaid = explain("--of", "firing", "strlen:0", *CALL), explain("strlen:0", *CALL)
    assert said.returncode == 0 and said.stdout == unsaid.stdout
    assert "1. The instruction at strlen:0" in said.stdout


def test_runs_are_what_several_calls_are_asked_of():
    said, unsaid = (explain(*words, "strlen:0", *TWO, kernel="races/amd64")
                    for words in (("--of", "runs"), ()))
    assert said.returncode == 0 and said.stdout == unsaid.stdout and "All threads share" in (
        said.stdout)


@pytest.mark.parametrize("words, says", [
    (("--of", "firing", "strlen:0", *COMMAND), "explaining a firing needs a call, e.g. -c 'strlen"),
    (("--of", "firing", *CALL), "give the probed instruction, e.g. strlen:4"),
    (CALL, "give the probed instruction, e.g. strlen:4"),
    (("--of", "system-call", "open", *CALL), "explaining a system-call needs a command"),
    (("--of", "system-call", *COMMAND), "give the system call to explain, e.g. open"),
    (COMMAND, "give the system call to explain, e.g. open"),
    (("--of", "page-fault", *CALL), "explaining a page-fault needs a command"),
    (("page-fault", *CALL), "explaining a page-fault needs a command"),
    (("--of", "page-fault", "open", *COMMAND), "open: a page-fault takes no PLACE"),
    (("--of", "context-switch", "page-fault", *COMMAND), "page-fault: a context-switch takes"),
    (("--of", "firing", "strlen:0", *TWO), "--of firing: cannot be combined with --run"),
    (("--of", "runs", "strlen:0"), "--schedule, e.g. 'A37 B A'"),
    (("--of", "runs", *TWO), "give the probed instruction"),
    (("--of", "page-fault"), "explaining a page-fault needs a command"),
    (("strlen:0",), "give a call that makes the probe fire"),
    (("--of", "system-call", "page-fault", *COMMAND), "page-fault: not a system call"),
])
def test_what_does_not_fit_is_one_line(words, says):
    done = explain(*words)
    assert done.returncode == 1 and done.stdout == ""
    assert says in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_programs_are_of_a_kernel_that_has_some():
    done = run("kinst", "explain", "--arch", "amd64", "--of", "page-fault", *COMMAND)
    assert done.returncode == 1 and "the teaching kernels cannot run programs" in done.stderr


def test_a_kind_that_there_is_not_is_refused_with_those_that_there_are():
    done = explain("--of", "nothing", "strlen:0", *CALL)
    assert done.returncode != 0 and "system-call" in done.stderr and "Traceback" not in done.stderr
