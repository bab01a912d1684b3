"""Tests of the messages about optional packages."""

import importlib.metadata
import importlib.util
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from emu.host import extras
from emu.host.errors import KinstError

PROJECT = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text())


def without(monkeypatch, *names):
    """Make packages look as if they were not installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec",
                        lambda name: None if name in names else find(name))


def test_each_extra_of_the_project_is_known():
    assert sorted(extras.EXTRAS) == sorted({*PROJECT["project"]["optional-dependencies"]} - {"dev"})


@pytest.mark.parametrize("extra", extras.EXTRAS)
def test_the_message_has_the_command_that_installs_the_packages_for_this_python(
        extra, monkeypatch):
    assert extras.missing(extra) == []
    extras.need(extra, "--it")
    without(monkeypatch, *extras.EXTRAS[extra])
    with pytest.raises(KinstError, match="--it needs packages that are not installed; run: ") as e:
        extras.need(extra, "--it")
    words = shlex.split(str(e.value).partition("run: ")[2])
    assert words[:4] == [sys.executable, "-m", "pip", "install"]
    assert list(map(Requirement, words[4:])) == list(map(
        Requirement, PROJECT["project"]["optional-dependencies"][extra]))


def test_without_pip_or_metadata_the_command_is_still_useful(monkeypatch):
    without(monkeypatch, "pip")

    def unknown(_name):
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "requires", unknown)
    assert shlex.split(extras.command("shell")) == [
        "uv", "pip", "install", "--python", sys.executable, "IPython"]
