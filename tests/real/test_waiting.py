"""Tests of traces without a workload: a base system waits at its root shell's prompt."""

import pytest

from images import catalog
from tests.conftest import ARCHES, real_kernel
from tests.kinst_emu.commands.test_commands import run

IDENTITY = ("BEGIN { printf(\"%d %d %d %d\\n\", $pid, $ppid, $uid, $gid); "
            "system(\"echo $$ $PPID $(id -ru) $(id -rg)\"); }")


@pytest.fixture(params=ARCHES, scope="module")
def traced(request):
    """Return a function that runs kdtrace on a base system."""
    image = real_kernel(request.param)
    if not image.path.with_name(catalog.ROOT_FILE).is_file():
        pytest.skip(f"no base system for {request.param}: put the root.ufs of 'kinst images fetch "
                    f"RELEASE/ARCH --base' next to {image.path}")
    return lambda *words: run("kdtrace", "-k", str(image.path), "--base", *words)


def test_pid_is_that_of_the_guests_shell_which_runs_the_commands_of_system(traced):
    ran = traced("-wqn", IDENTITY)
    ours, shells, *rest = ran.stdout.split("\n")
    assert ours == shells and int(ours.split()[0]) > 100 and rest == ["", ""], ran.stderr


def test_commands_run_while_the_guest_waits_and_tracing_continues(traced):
    ran = traced("-wqn", "tick-1s /i < 3/ { system(\"cd /tmp; echo %d; sleep 2; false\", i++); } "
                 "proc:::exec-success /progenyof($pid)/ { @[execname] = count(); } "
                 "tick-12s { exit(0); } END { system(\"pwd\"); }")
    assert ran.returncode == 0, ran.stderr
    said = ran.stdout.split()
    assert said[:4] == ["0", "1", "2", "/tmp"] and said[4:] == ["sleep", "3"], ran.stdout


def test_a_command_that_runs_when_tracing_ends_is_completed(traced):
    ran = traced("-wqn", "tick-1s /!i++/ { system(\"sleep 5; echo done\"); } tick-3s { exit(3); }")
    assert (ran.returncode, ran.stdout.split()) == (3, ["done"]), ran.stderr


def test_a_status_other_than_0_is_reported(traced):
    ran = traced("-wn", "BEGIN { system(\"(exit 3)\"); }")
    assert "dtrace: '(exit 3)' exited with status 3" in ran.stderr


def test_probes_do_not_disturb_a_guest_that_waits(traced):
    digests = [traced("-qn", program, "--digest").stdout.split("digest ")[1] for program in (
        "tick-3s { exit(0); }", "tick-3s { exit(0); } fbt::sched_*:,kinst::mi_switch: "
        "{ @[execname] = count(); }")]
    assert digests[0] == digests[1]


def test_a_guest_that_waits_too_long_ends_the_trace(traced):
    ran = traced("-qn", "tick-30s { printf(\"late\"); } tick-900ms { printf(\"%d \", i++); }",
                 "--idle", "3")
    assert ran.returncode == 0 and "has been idle for 3 virtual seconds" in ran.stderr
    assert ran.stdout.split()[:3] == ["0", "1", "2"] and "late" not in ran.stdout


def test_a_command_that_is_not_complete_does_not_end_the_trace(traced):
    ran = traced("-wqn", "BEGIN { system(\"echo 'a\"); } tick-1s /i++ == 1/ { exit(7); } "
                 "END { system(\"echo ok\"); }")
    assert (ran.returncode, ran.stdout.split()) == (7, ["ok"]), ran.stderr
    assert "is not a complete command" in ran.stderr


def test_commands_before_exit_in_begin_are_run(traced):
    ran = traced("-wqn", "BEGIN { system(\"echo a\"); exit(4); } END { system(\"echo e\"); }")
    assert (ran.returncode, ran.stdout.split()) == (4, ["a", "e"]), ran.stderr


def test_output_of_the_guest_is_not_idle_time(traced):
    ran = traced("-wqn", "BEGIN { system(\"while :; do sleep 1; echo hi; done &\"); } "
                 "tick-9s { exit(0); }", "--idle", "5")
    assert ran.stdout.split().count("hi") >= 7 and "idle" not in ran.stderr
