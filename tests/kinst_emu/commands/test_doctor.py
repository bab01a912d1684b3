"""Tests of ``kinst doctor``."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from emu.host.extras import EXTRAS
from kinst_emu.commands.doctor import TOOLS, USES
from tests.kinst_emu.commands.test_commands import run


def findings(**changes):
    done = subprocess.run(
        [sys.executable, "-m", "kinst_emu.commands.kinst", "doctor", "--json"], text=True,
        capture_output=True, check=False, env=os.environ | changes)
    assert not done.stderr
    return done.returncode, {(row["part"], row["name"]): row for row in json.loads(done.stdout)}


def test_each_kernel_library_program_and_extra_is_listed():
    status, found = findings()
    assert status == 0
    assert found["libraries", "unicorn"]["state"] == "ok"
    assert found["kernels", "teaching/amd64"]["state"] == "ok"
    assert {name for part, name in found if part == "programs"} == {
        names[0] for names, _needed, _packages in TOOLS}
    assert set(USES) == set(EXTRAS) == {
        name for part, name in found if part == "optional packages"}
    assert all(bool(row["advice"]) == (row["state"] != "ok") for row in found.values())


def test_a_missing_program_is_reported_with_what_needs_it_and_its_package(tmp_path):
    (tmp_path / "clang").symlink_to(shutil.which("true"))
    status, found = findings(PATH=str(tmp_path))
    assert status == 0
    assert found["programs", "clang"]["found"] == str(tmp_path / "clang")
    qemu = found["programs", "qemu-system-riscv64"]
    assert qemu["state"] == "missing" and "riscv64" in qemu["needed"]
    assert qemu["advice"] == "on Debian: apt-get install qemu-system-misc opensbi"


def test_kernels_are_listed_with_their_base_systems(tmp_path):
    place = tmp_path / "images/mine/amd64"
    place.mkdir(parents=True)
    (place / "kernel").write_bytes(b"")
    (place / "root.ufs").write_bytes(b"")
    _status, found = findings(KINST_DATA=str(tmp_path))
    assert found["kernels", "mine/amd64"]["found"] == f"{place / 'kernel'}, with a base system"
    missing = found["kernels", "15.0-RELEASE/riscv64"]
    assert missing["state"] == "missing"
    assert missing["advice"] == "kinst images fetch 15.0-RELEASE/riscv64"


@pytest.mark.parametrize("variable, needed", [
    ("KINST_CACHE", "fast boots"), ("KINST_DATA", "kinst images add, fetch and build")])
def test_a_directory_that_cannot_be_written_is_wrong(variable, needed, tmp_path):
    (tmp_path / "file").write_text("")
    status, found = findings(**{variable: str(tmp_path / "file" / "below")})
    wrong = [row for row in found.values() if row["state"] == "wrong"]
    assert status == 1 and len(wrong) == 1 and variable in wrong[0]["advice"]
    assert needed in wrong[0]["needed"]


def test_the_preprocessor_is_looked_for_as_kdtrace_does(tmp_path):
    (tmp_path / "cpp-14").symlink_to(shutil.which("true"))
    (tmp_path / "clang-19").symlink_to(shutil.which("true"))
    _status, found = findings(PATH=str(tmp_path))
    assert found["programs", "cpp"]["state"] == "missing"
    assert found["programs", "clang"]["state"] == "ok"


def test_the_size_of_the_cache_is_that_of_its_files(tmp_path):
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "snapshots" / "x.kinst").write_bytes(bytes(5 << 20))
    _status, found = findings(KINST_CACHE=str(tmp_path))
    assert found["directories", "cache"]["found"].startswith(f"{tmp_path}: 5 MiB")


def test_the_report_names_each_part_once():
    done = run("kinst", "doctor")
    assert done.returncode == 0
    parts = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert parts == ["host:", "libraries:", "kernels:", "programs:", "optional packages:",
                     "directories:"]
