"""Tests of recording and replaying on the command line."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from emu.replay.inputs import ReplayError
from emu.replay.recording import STATE, Recorder, Recording
from images import catalog
from images.boots import booted
from tests.conftest import ARCHES
from tests.dtrace.programs import command
from tests.emu.replay.test_recording import START, written
from tests.kinst_emu.commands.test_commands import refused, run

WORKLOAD = """
def workload(machine):
    machine.type("strings\\r")
    machine.run(console="teaching> ")
    assert machine.call("strlen", "some text") == 9
"""


@pytest.fixture(scope="module")
def boots(tmp_path_factory):
    """Record a boot with two typed commands on each architecture, and return the files."""
    made = {}
    folder = tmp_path_factory.mktemp("boots")
    for arch in ARCHES:
        made[arch] = folder / f"{arch}.rec"
        result = run("kinst", "boot", "-k", f"teaching/{arch}", "-q", "--type", "strings\\r",
                     "--type", "strings\\r", "--record", str(made[arch]))
        assert result.returncode == 0, result.stderr
        assert f"kinst replay {made[arch]}" in result.stdout
    return made


@pytest.fixture
def boot(boots, arch, tmp_path):
    """Copy a recorded boot for one test, and return the copy's path."""
    return Path(shutil.copy(boots[arch], tmp_path / "boot.rec"))


def replayed(path, *words):
    result = run("kinst", "replay", str(path), "--json", *words)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_replay_ends_in_the_recorded_state(boot):
    found = replayed(boot)
    assert found["same"] is True and found["problem"] == ""
    result = run("kinst", "replay", str(boot))
    assert "teaching> " in result.stdout and "the state matches the recording" in result.stdout


def test_positions_are_reached_in_every_notation(boot):
    last = replayed(boot)["position"]
    assert replayed(boot, "--to", "end")["position"] == last
    assert replayed(boot, "--to", "start")["position"]["instructions"] == 0
    assert replayed(boot, "--to", "1234")["position"]["instructions"] == 1234
    half = replayed(boot, "--to", "50%")["position"]["instructions"]
    assert half == last["instructions"] // 2
    assert replayed(boot, "--to", f"{last['time'] // 2}ns")["position"]["time"] >= last["time"] // 2
    first = replayed(boot, "--to", "strlen")
    assert first["at"] == "strlen+0x0" and "kernel`strlen+0x0" in first["stack"][0]
    second = replayed(boot, "--to", "strlen#2")
    assert second["position"]["instructions"] > first["position"]["instructions"]
    entered = replayed(boot, "--to", "fbt::strlen:entry#2")["position"]["instructions"]
    assert second["position"]["instructions"] <= entered <= second["position"]["instructions"] + 4
    returned = replayed(boot, "--to", "fbt::strlen:return")
    assert (first["position"]["instructions"] < returned["position"]["instructions"]
            < second["position"]["instructions"])
    after = replayed(boot, "--from", "strlen#2", "--to", "fbt::strlen:return")
    assert after["position"]["instructions"] > second["position"]["instructions"]


def test_registers_and_memory_are_shown(boot, arch):
    found = replayed(boot, "--to", "strlen", "--memory", "strlen:4", "--memory", "0xdead0000")
    assert found["registers"] and found["pc"] == found["memory"][0]["address"]
    assert len(bytes.fromhex(found["memory"][0]["content"])) == 4
    assert found["memory"][1]["content"] is None
    result = run("kinst", "replay", str(boot), "-q", "--to", "strlen")
    assert "kernel`strlen+0x0" in result.stdout and "at instruction " in result.stdout


@pytest.mark.parametrize("arch", ["arm64"])
@pytest.mark.parametrize("words, says", [
    (["--to", "nothing"], "no symbol 'nothing'"), (["--to", "strlen#0"], "is not a position"),
    (["--to", "strlen#99999"], "is not reached"), (["--to", "101%"], "100%"),
    (["--to", "99999999999999"], "after the end"), (["--to", "99s"], "virtual time"),
    (["--to", "panic"], "panic is not reached"),
    (["--to", "kinst::strlen:9999"], "kinst::strlen:9999"),
    (["--memory", "foo"], "'foo' is not a place in memory"),
    (["--limit", "100"], "exceeds the limit of 100"),
    (["--memory", "sp:x"], "--memory"), (["-k", "teaching/nothing"], "no such file"),
])
def test_invalid_positions_and_places_are_refused_with_one_line(boot, words, says):
    refused(run("kinst", "replay", str(boot), "-q", *words), says)


def test_the_recording_of_a_call_over_the_limit_is_kept(arch, tmp_path):
    path = tmp_path / "call.rec"
    result = run("kinst", "call", "-k", f"teaching/{arch}", "--record", str(path), "fibonacci(30)",
                 "--limit", "100000")
    assert result.returncode == 1 and f"kinst replay {path}" in result.stdout
    assert replayed(path)["same"] is True


def test_the_recording_of_a_faulting_call_is_kept(tmp_path):
    path = tmp_path / "call.rec"
    result = run("kinst", "call", "-k", "teaching/arm64", "--record", str(path), "strlen(1)",
                 "--unchecked")
    assert result.returncode == 1 and "faulted" in result.stderr
    assert replayed(path)["same"] is True


def test_calls_and_programs_and_boots_are_recorded(arch, tmp_path):
    path, program = tmp_path / "file.rec", tmp_path / "keys.py"
    program.write_text(WORKLOAD)
    for words in (["record", "-o", str(path), "strlen(\"text\")"],
                  ["record", "-o", str(path), str(program)],
                  ["boot", "--record", str(path), "--type", "strings\\r"],
                  ["call", "--no-boot", "--record", str(path), "fibonacci(4)"]):
        result = run("kinst", words[0], "-k", f"teaching/{arch}", *words[1:])
        assert result.returncode == 0 and "recorded " in result.stdout, result.stderr
        assert replayed(path)["same"] is True


def test_recordings_can_start_from_a_saved_state(arch, tmp_path):
    path, saved = tmp_path / "file.rec", tmp_path / "saved"
    assert not run("kinst", "boot", "-k", f"teaching/{arch}", "-q", "--save", str(saved)).returncode
    for words in (["boot", "-q", "--restore", str(saved), "--type", "strings\\r"],
                  ["call", "--snapshot", str(saved), "strlen(\"a\")"]):
        result = run("kinst", words[0], "-k", f"teaching/{arch}", *words[1:], "--record", str(path))
        assert result.returncode == 0, result.stderr
        saved_content = saved.read_bytes()
        saved.unlink()
        assert replayed(path)["same"] is True
        saved.write_bytes(saved_content)


@pytest.mark.parametrize("text, says", [
    ("x = 1", "no function workload"), ("def workload(m):\n    1 / 0\n", ":2: ZeroDivisionError"),
    ("def workload(", "SyntaxError"),
    ("def workload(m):\n    m.restore(m.keep())\n", "cannot return to a saved state"),
])
def test_a_failing_program_is_reported_in_one_line(tmp_path, text, says):
    program = tmp_path / "w.py"
    program.write_text(text)
    result = run("kinst", "record", "-k", "teaching/amd64", "-o", str(tmp_path / "f.rec"),
                 str(program))
    refused(result, says)


@pytest.mark.parametrize("text", [
    "open('ran', 'w')\n", "def wrkload(machine):\n    pass\n", "workload = 3\n"])
def test_a_program_without_a_workload_changes_no_files(tmp_path, text):
    program, path = tmp_path / "w.py", tmp_path / "f.rec"
    program.write_text(text.replace("ran", str(tmp_path / "ran")))
    words = ["record", "-k", "teaching/amd64", "-o", str(path), str(program)]
    refused(run("kinst", *words), "no function workload(machine)")
    assert not path.exists() and not (tmp_path / "ran").exists()
    path.write_bytes(b"mine")
    refused(run("kinst", *words), "no function workload(machine)")
    assert path.read_bytes() == b"mine"
    assert sorted(tmp_path.iterdir()) == [path, program]
    refused(run("kinst", *words[:-1], str(tmp_path / "nothing.py")), "nothing.py: cannot be read")


def test_a_workload_may_be_imported_or_assigned(tmp_path):
    (tmp_path / "elsewhere.py").write_text(
        "def workload(machine):\n    machine.call('fibonacci', 3)")
    begin = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    for text in ("from elsewhere import workload", "from elsewhere import *",
                 "import elsewhere\nworkload = elsewhere.workload"):
        program, path = tmp_path / "w.py", tmp_path / "f.rec"
        program.write_text(begin + text)
        result = run("kinst", "record", "-k", "teaching/amd64", "-o", str(path), str(program))
        assert result.returncode == 0, result.stderr
        executed = re.match(r"recorded (\d+) instructions", result.stdout)
        assert executed and int(executed[1]) > 10 and replayed(path)["same"] is True
        path.unlink()


@pytest.fixture
def elsewhere(tmp_path):
    """Record a call on a kernel outside the catalog; return the recording's and kernel's paths."""
    kernel, path = tmp_path / "kernels" / "mine", tmp_path / "call.rec"
    kernel.parent.mkdir()
    content = bytearray(catalog.find("teaching/amd64").path.read_bytes())
    at = content.index(b"The teaching kernel")
    content[at : at + 3] = b"One"
    kernel.write_bytes(content)
    result = run("kinst", "call", "-k", str(kernel), "strlen(\"x\")", "--record", str(path))
    assert result.returncode == 0 and f"kinst replay {path}" in result.stdout, result.stderr
    return path, kernel


def test_the_command_printed_after_recording_plays_the_recording(elsewhere):
    path, kernel = elsewhere
    assert Recording(path).start.kernel == str(kernel)
    assert replayed(path)["same"] is True
    status, out, said = command("--replay", str(path), "-q", "-n",
                                "fbt::strlen:entry { trace(7); }")
    assert status == 0 and "7" in out, said


def test_a_missing_or_changed_kernel_is_reported_in_one_line(elsewhere):
    path, kernel = elsewhere
    content = kernel.read_bytes()
    kernel.unlink()
    refused(run("kinst", "replay", str(path)), f"{kernel}, the recorded path, is not a file")
    os.mkfifo(kernel)  # reading the FIFO would block forever
    refused(run("kinst", "replay", str(path)), f"{kernel}, the recorded path, is not a file")
    kernel.unlink()
    kernel.write_bytes(catalog.find("teaching/amd64").path.read_bytes())
    refused(run("kinst", "replay", str(path)), f"{kernel}, the recorded path, is now another build")
    kernel.write_bytes(b"text")
    refused(run("kinst", "replay", str(path)), f"{kernel}, the recorded path, is not a kernel")
    moved = kernel.with_name("moved")
    moved.write_bytes(content)
    assert replayed(path, "-k", str(moved))["same"] is True


def test_a_recording_without_a_kernel_path_needs_the_k_option(elsewhere, monkeypatch):
    path, kernel = elsewhere
    monkeypatch.setattr("emu.replay.recording.MAX_KERNEL", 0)
    machine = booted(catalog.find(str(kernel)))
    with Recorder(machine, path, STATE, "as older versions wrote it"):
        machine.type(b"?")
    monkeypatch.undo()
    assert Recording(path).start.kernel == ""
    refused(run("kinst", "replay", str(path)), "which is not a known kernel; specify it with -k")
    assert replayed(path, "-k", str(kernel))["same"] is True


@pytest.mark.parametrize("hint", ["/\x1b[31m/kernel", "/" + "k" * 4000, "a\0b", "/\ud800",
                                  "/dev/zero", "/" * 4096])
def test_an_invalid_kernel_path_in_a_recording_is_harmless(tmp_path, hint):
    path = written(tmp_path / "f.rec", json.dumps(
        {**START, "build_id": "feed", "kernel": hint}).encode())
    result = run("kinst", "replay", str(path))
    refused(result, "specify it with -k")
    assert "\x1b" not in result.stderr and len(result.stderr) < 700


def test_a_recording_can_be_traced(boot, arch):
    digest = json.loads(run("kinst", "boot", "-k", f"teaching/{arch}", "--digest", "--json",
                            "--type", "strings\\r", "--type", "strings\\r").stdout)["digest"]
    status, out, said = command(
        "--replay", str(boot), "--digest", "-n",
        "fbt::strlen:entry { @[probefunc] = count(); @t = max(timestamp); }")
    assert status == 0 and digest in out and "strlen" in out, said
    for words, says in ((["-c", "boot"], "-c: "), (["--memory", "64M"], "--memory"),
                        (["-k", "teaching/nothing"], "no such file")):
        status, _out, said = command("--replay", str(boot), *words, "-n", "BEGIN { exit(0); }")
        assert status == 1 and says in said and len(said.splitlines()) == 1


def test_a_killed_writer_leaves_a_playable_recording(arch, tmp_path):
    path, program = tmp_path / "file.rec", tmp_path / "keys.py"
    program.write_text("def workload(machine):\n    while True:\n"
                       "        machine.call('fibonacci', 12)\n")
    with subprocess.Popen([sys.executable, "-m", "kinst_emu.commands.kinst", "record", "-k",
                           f"teaching/{arch}", "-o", str(path), str(program)]) as process:
        end = time.monotonic() + 60
        while time.monotonic() < end and (not path.exists() or path.stat().st_size < 20_000):
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    found = replayed(path)
    assert found["same"] is None and found["problem"]
    assert found["position"]["instructions"] == Recording(path).last.instructions > 0


def test_one_file_cannot_be_used_for_two_options(tmp_path):
    path = str(tmp_path / "same")
    for option in ("--save", "--restore"):
        refused(run("kinst", "boot", "-k", "teaching/amd64", "--record", path, option, path),
                "is also the file of --save or --restore")
    refused(run("kinst", "record", "-k", "teaching/amd64", "-o", "/dev/null", "boot"),
            "not a regular file")


def test_a_file_that_is_not_a_recording_is_refused_with_one_line(tmp_path):
    path = tmp_path / "file.rec"
    path.write_bytes(b"nothing")
    refused(run("kinst", "replay", str(path)), "not a recording")
    with pytest.raises(ReplayError):
        Recording(path)
    refused(run("kinst", "record", "-k", "teaching/amd64", "-o", str(tmp_path / "no" / "f"),
                "boot"), "no/f")


def test_who_wrote_reports_writers_and_values(boot):
    found = replayed(boot, "--who-wrote", "sp:8", "--before", "strlen#2")
    assert found["size"] == 8 and len(found["writes"]) == 2
    last, before = (write["position"]["instructions"] for write in found["writes"])
    assert before < last < replayed(boot, "--to", "strlen#2")["position"]["instructions"]
    assert found["writes"][1]["new"] == found["writes"][0]["old"]
    result = run("kinst", "replay", str(boot), "--who-wrote", "strlen")
    assert result.returncode == 0 and result.stdout.startswith("no store to strlen")
    for words, says in ((["--who-wrote", "foo"], "'foo' is not a place"),
                        (["--who-wrote", "0x123456789000"], "0x123456789000"),
                        (["--who-wrote", "sp:99"], "1 to 64 bytes"),
                        (["--who-wrote", "sp", "--to", "50%", "--before", "50%"], "give only"),
                        (["--before", "50%"], "--before")):
        refused(run("kinst", "replay", str(boot), *words), says)


def test_a_workload_is_recorded_and_replayed_by_one_command(arch, tmp_path):
    kernel = f"teaching/{arch}"
    found = run("kinst", "replay", "-k", kernel, 'strlen("abc")', "--to", "strlen", "--json")
    assert found.returncode == 0, found.stderr
    recording = tmp_path / "call.rec"
    assert run("kinst", "record", "-k", kernel, "-q", "-o", str(recording), 'strlen("abc")'
               ).returncode == 0
    assert json.loads(found.stdout) == replayed(recording, "--to", "strlen")


@pytest.mark.parametrize("words, says", [
    (("nothing.rec",), "kinst: nothing.rec: cannot be read: No such file or directory\n"),
    (("-k", "teaching/amd64", "nothing.rec"),
     "kinst: nothing.rec: cannot be read: No such file or directory\n"),
    (('strlen("a")',), 'kinst: strlen("a"): is not a recording; to run it, give a kernel with '
     "-k\n"),
    (("-k", "teaching/amd64", 'strlen("a")', "--to", "failure"),
     f"kinst: {catalog.find('teaching/amd64').path}: this kernel has no system calls\n"),
])
def test_what_is_neither_a_recording_nor_a_workload_is_one_clear_line(words, says):
    result = run("kinst", "replay", *words)
    assert result.returncode == 1 and result.stderr == says and not result.stdout


@pytest.mark.parametrize("words", [
    ("--disk", "/nonexistent"), ("--cpus", "4"), ("--env", "a=b"), ("--files", "/nonexistent"),
    ("--static",), ("--idle", "5"), ("--base",), ("--single",), ("--entropy", "x")])
def test_options_of_a_workload_are_refused_for_a_recording(words, boots):
    recording = str(boots["amd64"])
    result = run("kinst", "replay", recording, *words)
    assert result.returncode == 1 and not result.stdout
    assert result.stderr == (f"kinst: {words[0]}: {recording} is a recording already, with the "
                             "machine that it was made on\n")


def test_a_c_file_with_an_argument_like_a_recording_is_a_workload(tmp_path):
    source = tmp_path / "t.c"
    source.write_text("int main(void) { return 0; }\n")
    result = run("kinst", "replay", f"{source} in.rec")
    assert result.stderr == (f"kinst: {source} in.rec: is not a recording; to run it, give a "
                             "kernel with -k\n")
