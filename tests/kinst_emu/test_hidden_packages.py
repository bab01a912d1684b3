"""Tests that a user file that hides a kinst-emu package is reported in one line."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def python(folder, *words):
    return subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True,
                          env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}, check=False)


@pytest.mark.parametrize("name", ["images.py", "emu/__init__.py", "dtrace.py"])
def test_a_file_that_hides_a_package_is_named_in_one_line(tmp_path, name):
    hidden = tmp_path / name
    hidden.parent.mkdir(exist_ok=True)
    hidden.write_text("")
    (tmp_path / "script.py").write_text("import kinst_emu\nkinst_emu.open\n")
    line = f"{hidden} hides the package '{Path(name).parts[0].removesuffix('.py')}' of kinst-emu"
    ran = python(tmp_path, "script.py")
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].startswith(f"ImportError: {line}: rename that file")
    ran = python(tmp_path, "-m", "kinst_emu.commands.kinst", "boot", "-k", "teaching/amd64")
    assert ran.returncode == 1 and ran.stdout == ""
    (said,) = ran.stderr.splitlines()
    assert said.startswith(f"kinst-emu: {line}: rename that file")


def test_a_folder_without_python_files_hides_nothing(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "script.py").write_text("import kinst_emu\nprint(kinst_emu.PROMPTS)\n")
    ran = python(tmp_path, "script.py")
    assert ran.returncode == 0 and ran.stdout, ran.stderr


def test_the_pytest_plugin_leaves_other_projects_alone(tmp_path):
    (tmp_path / "images.py").write_text("")
    (tmp_path / "test_other.py").write_text("import images\n\ndef test_it():\n    pass\n")
    ran = python(tmp_path, "-m", "pytest", "-q", "test_other.py")  # the plugin is installed
    assert ran.returncode == 0 and "1 passed" in ran.stdout, ran.stdout + ran.stderr
