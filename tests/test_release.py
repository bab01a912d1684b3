"""Tests that the parts of a release agree: version, manuals, options and commands."""

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from emu.arch.parts import NAMES
from emu.guests.registry import FREEBSD
from kinst_emu.cli.command_line import make_parser
from kinst_emu.commands.kinst import COMMANDS, whole_parser

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def manuals():
    spec = importlib.util.spec_from_file_location("man", ROOT / "docs" / "man.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.pages()


def options(parser):
    """Return the long options of a parser and of all its subcommands."""
    names = set()
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue  # the manual does not mention old option names
        names |= {option for option in action.option_strings if option.startswith("--")}
        if isinstance(action.choices, dict):
            for command in action.choices.values():
                names |= options(command)
    return names


def test_the_manuals_have_every_option_and_every_command(manuals):
    for name, parser in (("kinst", whole_parser()), ("kdtrace", make_parser())):
        page = manuals[f"{name}.1"].replace("\\-", "-")
        assert f"kinst-emu {PROJECT['version']}" in page
        missing = {option for option in options(parser) - {"--help"}
                   if not re.search(rf"{re.escape(option)}\b", page)}
        assert not missing, name
    assert all(f"kinst {command}" in manuals["kinst.1"] for command in COMMANDS)
    assert "kinst explain -k teaching/arm64" in manuals["kinst.1"].replace("\\-", "-")


def test_the_manual_lists_the_excluded_functions(manuals):
    page = manuals["kdtrace.1"].replace("\\-", "-")
    section = page[page.index(".SH EXCLUDED FUNCTIONS") : page.index(".SH EXAMPLES")]
    for arch in NAMES:
        unsafe = FREEBSD[arch].traps.exclusions
        part = section[section.index(f"\n{arch}\n"):].split(".TP")[0]
        words = set(re.findall(r"[\w*]+", part))
        assert unsafe.names | unsafe.copied <= words
        assert {f"{prefix}*" for prefix in unsafe.prefixes} <= words


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_groff_reports_no_warning_about_the_manuals(manuals):
    for page in manuals.values():
        done = subprocess.run(["groff", "-man", "-ww", "-z"], input=page, capture_output=True,
                              text=True, check=True)
        assert done.stderr == ""


@pytest.mark.parametrize("python", ["/nonexistent/python3", "sh", "cat"])
def test_no_wheel_is_built_for_something_that_is_no_python(python):
    done = subprocess.run(["sh", "./make-wheels.sh"], cwd=ROOT, capture_output=True, text=True,
                          env=os.environ | {"PYTHONS": python}, timeout=60, check=False)
    assert done.returncode == 1 and not done.stdout
    assert done.stderr == (f"make-wheels.sh: PYTHONS: {python} is no Python of 3.11 3.12 3.13 3.14 "
                           "with venv and C headers\n")


def test_the_version_appears_only_in_pyproject_and_the_changelog():
    version = re.compile(rf"(?<![\d.]){re.escape(PROJECT['version'])}(?![\d.])")
    places = [path.name for path in (
        *ROOT.glob("*.*"), *(ROOT / "docs").glob("*.*"), *(ROOT / "kinst_emu").rglob("*.py"))
        if path.is_file() and path.suffix in (".py", ".toml", ".md", ".cff")
        and version.search(path.read_text())]
    assert sorted(places) == ["CHANGELOG.md", "pyproject.toml"]
