"""Tests that kdtrace does what the dtrace(1) of a FreeBSD base system does."""

import json
import subprocess
import sys

import pytest

from images import catalog
from kinst_emu.cli.judged import JudgeTask, judged, random_program, script
from tests.conftest import ARCHES, real_kernel
from tests.dtrace.judge.test_found import FOUND, LAST
from tests.kinst_emu.commands.test_commands import run

MEMORY = 512 << 20
SEEDS = range(1, 13)  # of random programs that agree


def with_base(arch):
    """Return a kernel with a base system next to it."""
    image = real_kernel(arch)
    if not image.path.with_name(catalog.ROOT_FILE).is_file():
        pytest.skip(f"no base system for {arch}: put the root.ufs of 'kinst images fetch "
                    f"RELEASE/ARCH --base' next to {image.path}")
    return image


@pytest.fixture(scope="module", params=ARCHES)
def judge(request):
    image = with_base(request.param)
    return JudgeTask(str(image.path), image.kernel_identity, MEMORY).prepare()


@pytest.mark.parametrize("name", FOUND)
def test_dtrace_in_the_guest_prints_what_is_recorded(judge, name):
    program, status, _output, _errors = FOUND[name]
    assert judge.differences(program + LAST) == []
    assert judge.theirs(program + LAST).status == status


def test_self_variables_of_begin_reach_end(judge):
    program = ("#pragma D option quiet\nBEGIN { self->x = 5; }\nEND { trace(self->x); }\n"
               "tick-100ms { trace(self->x); }\n" + LAST)
    assert judge.differences(program) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_random_programs_agree(judge, seed):
    verdict = judged(judge, random_program(seed))
    assert not verdict.lines, "\n".join((*verdict.lines, verdict.smallest))


def test_a_mistake_is_found_and_made_small(judge, monkeypatch, tmp_path):
    """The mistake is that strlen() counts one character too many."""
    path = tmp_path / "script.d"
    path.write_text("BEGIN { trace(1); x = 5; }\n"
                    "BEGIN /x == 5/ { y = x; trace(strlen(\"abc\")); }\n"
                    "BEGIN { trace(2); }\n" + LAST)
    right = judge.ours
    monkeypatch.setattr(judge, "ours", lambda program: right(
        program.replace('strlen("abc")', 'strlen("abcd")')))
    verdict = judged(judge, script(path))
    assert any("+" in line and "4" in line for line in verdict.lines)
    statements = [line for line in verdict.smallest.splitlines() if "trace" in line]
    assert len(statements) == 1 and statements[0].count(";") == 1


def test_the_command_counts_what_agrees(tmp_path, monkeypatch):
    image = with_base("amd64")
    (tmp_path / "one.d").write_text("BEGIN { trace(1 + 2); exit(3); }\n")
    (tmp_path / "two.d").write_text("BEGIN { trace(nosuch); }\n")
    (tmp_path / "three.d").write_text('BEGIN { trace("\x01"); }\n')
    done = run("kinst", "xval", "-k", str(image.path), "--base", "--json", "--dtrace",
               str(tmp_path))
    found = json.loads(done.stdout)
    assert (found["programs"], found["agree"], found["refused_by_both"]) == (3, 1, 1)
    assert found["differ"] == [] and "cannot be typed" in found["not_compared"][0]["why"]
    assert done.returncode == 1


COUNTS = """#pragma D option quiet
syscall:::entry /execname == "ls"/ { @calls[probefunc] = count(); }
vfs:::, io::: /execname == "ls"/ { @[probeprov, probefunc, probename] = count(); }
"""


@pytest.mark.parametrize("arch", ARCHES)
def test_a_workload_has_the_same_events_for_both(arch, tmp_path):
    image = with_base(arch)
    (tmp_path / "counts.d").write_text(COUNTS)
    done = run("kinst", "xval", "-k", str(image.path), "--base", "--json", "--dtrace",
               str(tmp_path), "-c", "$ ls -l /etc")
    found = json.loads(done.stdout)
    assert found["agree"] == 1, done.stdout


@pytest.mark.parametrize("arch", ARCHES)
def test_lists_of_probes_differ_only_for_known_reasons(arch):
    image = with_base(arch)
    done = subprocess.run([
        sys.executable, "-m", "kinst_emu.commands.kinst", "xval", "-k", str(image.path), "--base",
        "--json", "--dtrace", "--probes", "--random", "40", "--seed", "5"], text=True,
        capture_output=True, timeout=900, check=False)
    found = json.loads(done.stdout)
    assert found["unexplained"] == 0, [
        line for table in ("names", "details") for one in found[table].values()
        for line in one["unexplained"]]
    assert found["names"]["fbt"]["dtrace"] > 30000  # static functions, too
    assert found["names"]["kinst"]["equal"] > 1000
    for provider in ("syscall", "sdt", "profile", "proc", "sched", "vfs", "io", "ip", "tcp", "udp",
                     "lockstat"):
        assert found["names"][provider]["equal"] == found["names"][provider]["dtrace"], provider


def test_the_suite_is_judged_by_its_own_rules(tmp_path):
    image = with_base("amd64")
    (tmp_path / "aggs").mkdir()
    (tmp_path / "aggs" / "tst.both.d").write_text(
        "#pragma D option quiet\nBEGIN { trace(1 + 2); exit(0); }\n")
    (tmp_path / "aggs" / "tst.both.d.out").write_text("3\n")
    (tmp_path / "aggs" / "err.D_IDENT_UNDEF.both.d").write_text("BEGIN { trace(nosuch); }\n")
    (tmp_path / "aggs" / "tst.neither.d").write_text("BEGIN { exit(1); }\n")
    (tmp_path / "aggs" / "tst.event.d").write_text(
        "syscall::read:entry { exit(0); }\n")
    (tmp_path / "aggs" / "tst.script.ksh").write_text("exit 0\n")
    words = ("kinst", "xval", "-k", str(image.path), "--base", "--json", "--dtrace",
             str(tmp_path), "--suite", "--store", str(tmp_path / "results"))
    done = run(*words)
    found = json.loads(done.stdout)
    assert {one["name"].partition("/")[2]: one["word"] for one in found["tests"]} == {
        "tst.both.d": "both pass", "err.D_IDENT_UNDEF.both.d": "both pass",
        "tst.neither.d": "neither passes", "tst.event.d": "both pass"}
    assert found["classes"]["aggs"]["shell scripts"] == 1
    assert done.returncode == 0
    again = run(*words)  # from the store
    assert json.loads(again.stdout) == found


@pytest.mark.parametrize("arch", ARCHES)
def test_buffers_are_consumed_while_the_guest_waits(arch, tmp_path):
    """clear() between the firings of a timer takes effect before the next one."""
    image = with_base(arch)
    path = tmp_path / "clear.d"
    path.write_text(
        "#pragma D option quiet\n#pragma D option aggrate=1ms\n#pragma D option switchrate=50ms\n"
        "tick-100ms { @ = sum(1); n++; }\n"
        "tick-100ms /n == 5/ { clear(@); }\n"
        "tick-100ms /n == 8/ { printa(\"%@d\\n\", @); exit(0); }\n")
    for workload in ([], ["-c", "$ sleep 5"]):
        done = run("kdtrace", "-k", str(image.path), "--base", "-s", str(path), *workload)
        assert done.stdout.strip() == "3", done.stdout + done.stderr


def test_the_name_of_an_ifunc_selects_its_implementation():
    image = real_kernel("amd64")
    done = run("kdtrace", "-k", str(image.path), "-l", "-n", "fbt::memset:entry")
    assert done.stdout.split()[-3:-1] == ["kernel", "memset_std"], done.stdout + done.stderr
