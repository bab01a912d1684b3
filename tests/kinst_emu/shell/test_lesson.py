"""Tests that the lesson accepts a task if and only if it has been done."""

import subprocess
import sys

import pytest
from IPython.core.interactiveshell import InteractiveShell

import kinst_emu
from kinst_emu.shell.extension import load, teach
from kinst_emu.shell.lesson import TASKS

# Size in bytes of a breakpoint at the first instruction of a function, keyed by architecture
COUNT = {"amd64": 1, "arm64": 4, "riscv64": 2}


def begun(arch, capsys):
    shell = InteractiveShell()
    session = load(shell)
    session.open_kernel(kinst_emu.open(f"teaching/{arch}"), "64M")
    teach(shell, session)
    said = capsys.readouterr().out
    assert f"1 of {len(TASKS)}" in said
    return shell


def solutions(arch, shell):
    """Return the code that solves each task."""
    first = shell.user_ns["kernel"].instructions("strlen")[0]
    bias = 1 if arch == "amd64" else 0
    return [
        'call("strlen", "hello")', f'answer("{first.verdict.split()[0]}")',
        'p = probe("kinst::strlen:0"); call("strlen", "hello")',
        f'answer(machine.read(kernel.symbol("strlen"), {len(first.code)}))',
        f'p.close(); answer(kernel.symbol("strlen") + {bias})',
        "step(); step(); step(); back()",
        "get_ipython().run_cell_magic('dtrace', \"-c 'strtoul(\\\"42\\\", 0, 10)'\", "
        "'fbt:::entry { @[probefunc] = count(); }')",
        'machine.restore(start); p = probe("kinst::strlen:"); call("strlen", "hello"); p.close()']


def test_each_task_accepts_its_solution_and_nothing_less(arch, capsys):
    shell = begun(arch, capsys)
    lines = solutions(arch, shell)
    assert len(lines) == len(TASKS)
    for number, line in enumerate(lines, 1):
        for less in ("1 + 1", "answer('nothing')", "answer(7)", "answer(b'')", "nosuch"):
            shell.run_cell(less)
            said = "".join(capsys.readouterr())
            assert "Right" not in said, (number, less)
            assert not less.startswith("answer") or "That is not it" in said
        result = shell.run_cell(line)
        said = capsys.readouterr().out
        assert result.success and "Right. " in said, (number, line, said)
        assert ("The lesson is over" if number == len(TASKS)
                else f"{number + 1} of {len(TASKS)}") in said


def test_a_run_with_other_results_does_not_count_as_undisturbed(capsys):
    shell = begun("amd64", capsys)
    for line in solutions("amd64", shell)[:-1]:
        shell.run_cell(line)
    capsys.readouterr()
    result = shell.run_cell('machine.restore(start); p = probe("kinst::strlen:"); '
                            'call("strlen", "hello!"); p.close()')
    assert result.success and "Right" not in capsys.readouterr().out
    result = shell.run_cell(solutions("amd64", shell)[-1])
    assert result.success and "Right" in capsys.readouterr().out


def test_the_lesson_command_starts_and_gives_hints(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "kinst_emu.commands.kinst", "lesson", "--arch", "riscv64",
         "--memory", "64M"], input='hint()\ncall("strlen", "hello")\n', capture_output=True,
        text=True, timeout=120, env=None)
    assert done.returncode == 0, done.stderr
    assert "1 of 8. A call" in done.stdout and 'call("strlen", "hello")' in done.stdout
    assert "2 of 8. Its instructions" in done.stdout and "Traceback" not in done.stdout


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.title)
def test_each_task_has_a_text_a_hint_and_an_explanation(task):
    assert len(task.text) > 40 and task.hint and len(task.behind) > 20
