"""Tests of the kinds of explanations, chosen by --of or by the other arguments."""

import pytest

from tests.kinst_emu.commands.test_commands import run

CALL = ("-c", 'strlen("a")')
COMMAND = ("-c", "$ cat /etc/motd")
TWO = ("--run", 'strlen("a")', "--run", 'strlen("b")', "--schedule", "A10 B A")


def explain(*words, kernel="teaching/amd64"):
    return run("kinst", "explain", "-k", kernel, "--memory", "64M", "--steps", *words)


def test_explaining_one_call_defaults_to_a_firing():
    explicit, implicit = explain("--of", "firing", "strlen:0", *CALL), explain("strlen:0", *CALL)
    assert explicit.returncode == 0 and explicit.stdout == implicit.stdout
    assert "1. The instruction at strlen:0" in explicit.stdout


def test_explaining_several_calls_defaults_to_runs():
    given, implicit = (explain(*words, "strlen:0", *TWO, kernel="races/amd64")
                    for words in (("--of", "runs"), ()))
    assert given.returncode == 0 and given.stdout == implicit.stdout and "All threads share" in (
        given.stdout)


@pytest.mark.parametrize("words, says", [
    (("--of", "firing", "strlen:0", *COMMAND), "explaining a firing needs a call, e.g. -c 'strlen"),
    (("--of", "firing", *CALL), "give the probed instruction, e.g. strlen:4"),
    (CALL, "give the probed instruction, e.g. strlen:4"),
    (("--of", "system-call", "open", *CALL), "explaining a system-call needs a command"),
    (("--of", "system-call", *COMMAND), "give the system call to explain, e.g. open"),
    (COMMAND, "give the system call to explain, e.g. open"),
    (("--of", "page-fault", *CALL), "explaining a page-fault needs a command"),
    (("page-fault", *CALL), "explaining a page-fault needs a command"),
    (("--of", "page-fault", "open", *COMMAND), "open: PLACE cannot be given for a page-fault"),
    (("--of", "context-switch", "page-fault", *COMMAND),
     "page-fault: PLACE cannot be given for a context-switch"),
    (("--of", "firing", "strlen:0", *TWO), "--of firing: cannot be combined with --run"),
    (("--of", "runs", "strlen:0"), "--schedule, e.g. 'A37 B A'"),
    (("--of", "runs", *TWO), "give the probed instruction"),
    (("--of", "page-fault"), "explaining a page-fault needs a command"),
    (("strlen:0",), "give a call that makes the probe fire"),
    (("--of", "system-call", "page-fault", *COMMAND), "page-fault: not a system call"),
])
def test_conflicting_arguments_are_refused_with_one_line(words, says):
    done = explain(*words)
    assert done.returncode == 1 and done.stdout == ""
    assert says in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_explaining_a_command_requires_a_kernel_that_runs_programs():
    done = run("kinst", "explain", "--arch", "amd64", "--of", "page-fault", *COMMAND)
    assert done.returncode == 1 and "the teaching kernels cannot run programs" in done.stderr


def test_an_unknown_kind_is_refused_with_the_list_of_kinds():
    done = explain("--of", "nothing", "strlen:0", *CALL)
    assert done.returncode != 0 and "system-call" in done.stderr and "Traceback" not in done.stderr
