"""Tests that the source distribution and the wheel can be built, installed and used."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.conftest import FULL

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = """
import kinst_emu
machine = kinst_emu.open("teaching/amd64").boot(memory="64M")
with machine.probe("kinst::strlen:", lambda firing: print(firing.probe)) as probes:
    assert machine.call("strlen", "hi") == 2
assert probes.count > 5
"""
TEST = """
def test_it(kernel):
    assert kernel.call("strlen", "hello") == 5
"""


def run(*command, cwd, environment):
    result = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True,
                            timeout=900)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


@pytest.mark.skipif(not FULL, reason="compiles everything, which takes minutes: set KINST_FULL")
def test_the_wheel_of_the_source_distribution_traces_and_serves_programs_and_pytest(tmp_path):
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("PYTHON", "VIRTUAL_ENV", "KINST_"))}
    environment |= {"KINST_CACHE": str(tmp_path / "cache"), "KINST_DATA": str(tmp_path / "data"),
                    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
                    "CFLAGS": "-O0 -g0"}  # fast to compile; the speed of the result is not tested

    def run(*command, cwd=tmp_path, **more):
        result = subprocess.run(command, cwd=cwd, env=environment | more, capture_output=True,
                                text=True, timeout=900)
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
        return result.stdout

    # No isolation is needed: the dependencies in pyproject.toml are already installed.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path / "dist"),
        str(ROOT))
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert list((tmp_path / "dist").glob("*.tar.gz"))
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    run(str(programs / "pip"), "install", "--quiet", str(wheel), "pytest")

    assert "teaching> " in run(str(programs / "kinst"), "boot", "-k", "teaching/amd64")
    trace = run(str(programs / "kdtrace"), "-k", "teaching/riscv64", "-n", "kinst::strlen:", "-c",
                'strlen("hi")')
    assert "strlen:0" in trace and 'strlen("hi") = 2' in trace
    run(str(programs / "kdtrace"), "-k", "teaching/amd64", "-q", "-n", "fbt::str*:entry", "--stack",
        "-c", 'strlen("hi")', "--report", "report.html")
    assert "<svg class=\"flame\"" in (tmp_path / "report.html").read_text()
    assert run(str(programs / "kinst"), "--version").startswith("kinst ")
    assert run(str(programs / "python"), "-c", SCRIPT).startswith("kinst:kernel:strlen:0\n")

    project = tmp_path / "project"
    project.mkdir()
    (project / "test_it.py").write_text(TEST)
    assert "1 passed" in run(str(programs / "pytest"), "-p", "kinst_emu", "-q", "-p",
                             "no:cacheprovider", cwd=project, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
