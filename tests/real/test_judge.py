"""Tests that kdtrace does what the dtrace(1) of a FreeBSD base system does."""

import json

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
