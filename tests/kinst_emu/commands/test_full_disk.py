"""Tests that on a full disk, commands fail with one line that names the file."""

import os
import resource
import stat
import subprocess
import sys

import pytest

from tests.kinst_emu.commands.test_commands import refused, run

FULL = "/dev/full"
KERNEL = ("-k", "teaching/amd64")
CALL = ("-c", 'strlen("a")')
PAGE = ("kinst", "explain", *KERNEL, "strlen:4", *CALL, "--html")
TRACED = ("kinst", "replay", "RECORDING", "-q", "--trace-insns", ":")
PROGRAM = ("kdtrace", "-q", *KERNEL, *CALL, "-n", "fbt::strlen:entry { trace(1); }")


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    path = tmp_path_factory.mktemp("full") / "call.rec"
    assert run("kinst", "record", *KERNEL, "-o", str(path), 'strlen("a")').returncode == 0
    return path


@pytest.mark.parametrize("words", [
    PAGE, ("kinst", "quiz", "--sheet", "1", "--html"),
    ("kinst", "boot", "-q", *KERNEL, "--save"),
    ("kinst", "relocate", *KERNEL, "strlen", "--junit"),
    ("kinst", "relocate", *KERNEL, "strlen", "--store"),
    *((*TRACED, "--as", kind, "-o")
      for kind in ("trace", "text", "json", "calls", "tree", "flame")),
    ("kdtrace", "-q", *KERNEL, *CALL, "-n", "fbt::strlen:entry", "--stack", "-o"),
    ("kdtrace", "-q", *KERNEL, *CALL, "-n", "fbt::strlen:entry", "--report"),
    (*PROGRAM, "-o"), (*PROGRAM, "--json", "-o"), (*PROGRAM, "--report"), (*PROGRAM, "--emit-elf"),
], ids=" ".join)
def test_an_unwritable_output_is_reported_with_its_file(recording, words):
    result = run(*(str(recording) if word == "RECORDING" else word for word in words), FULL)
    refused(result, f"{FULL}: ", "dtrace" if words[0] == "kdtrace" else "kinst")
    assert "No space left on device" in result.stderr or (
        "--store" in words and "cannot be written: database or disk is full" in result.stderr)
    assert stat.S_ISCHR(os.stat(FULL).st_mode)  # the device was written to, not replaced


def test_an_unwritable_perfetto_trace_is_reported_with_its_file(recording):
    pytest.importorskip("perfetto")
    words = [str(recording) if word == "RECORDING" else word for word in TRACED]
    refused(run(*words, "--as", "perfetto", "-o", FULL), f"{FULL}: No space left on device")


def test_an_unwritable_plot_is_reported_with_its_file(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "p.svg"
    path.symlink_to(FULL)
    refused(run("kdtrace", "-q", *KERNEL, *CALL, "-n", "fbt::strlen:entry { @ = count(); }",
                "--plot", str(path)), f"{path}: No space left on device", "dtrace")


def test_an_unwritable_freopen_target_is_reported():
    refused(run("kdtrace", "-wq", *KERNEL, *CALL, "-n",
                f'fbt::strlen:entry {{ freopen("{FULL}"); trace(1); }}'),
            f"{FULL}: No space left on device", "dtrace")


@pytest.mark.parametrize("program, words", [
    ("kinst", ("call", *KERNEL, 'strlen("a")')), ("kinst", ("call", *KERNEL, 'cnputs("a")')),
    ("kdtrace", (*KERNEL, *CALL, "-n", "fbt::strlen:entry")), ("kdtrace", (*PROGRAM[1:],))])
def test_a_full_standard_output_is_reported(program, words):
    with open(FULL, "w") as full:
        result = subprocess.run([sys.executable, "-m", f"kinst_emu.commands.{program}", *words],
                                stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    said = [line for line in result.stderr.splitlines() if "matched" not in line]
    assert result.returncode == 1 and len(said) == 1, result.stderr
    assert said[0].endswith(": standard output: No space left on device")


@pytest.mark.parametrize("words", [PAGE, ("kinst", "boot", "-q", *KERNEL, "--save")])
def test_a_file_over_the_size_limit_is_reported_and_removed(tmp_path, words):
    run("kinst", "call", *KERNEL, 'strlen("a")')  # fill the boot cache
    path = tmp_path / "out"
    result = subprocess.run(
        [sys.executable, "-m", "kinst_emu.commands.kinst", *words[1:], str(path)],
        capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))
    refused(result, f"{path}: ")
    assert "File too large" in result.stderr and list(tmp_path.iterdir()) == []


def test_a_page_can_be_written_to_a_pipe():
    done = subprocess.run([sys.executable, "-m", "kinst_emu.commands.kinst", *PAGE[1:],
                           "/dev/stdout"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("<!DOCTYPE html>"), done.stderr
