"""Tests of recordings: instruction traces, origins, comparisons and debuggers."""

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import kinst_emu
from emu.qemu.gdb_remote import GdbRemote
from kinst_emu.cli.flows import window
from tests.conftest import ARCHES
from tests.kinst_emu.commands.test_commands import refused, run


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """Record a call on each architecture and return the recording files."""
    made = {}
    folder = tmp_path_factory.mktemp("calls")
    for arch in ARCHES:
        made[arch] = folder / f"{arch}.rec"
        result = run("kinst", "call", "-k", f"teaching/{arch}", 'strlen("some text")', "--record",
                     str(made[arch]))
        assert result.returncode == 0, result.stderr
    return made


@pytest.fixture
def call(calls, arch, tmp_path):
    """Copy a recorded call for one test, and return the copy's path."""
    return Path(shutil.copy(calls[arch], tmp_path / "call.rec"))


@pytest.mark.parametrize(("text", "parts"), [
    ("1:2", ("1", "2")), (":", ("start", "end")), ("50%:", ("50%", "end")),
    ("malloc#3:fbt::malloc:return#2", ("malloc#3", "fbt::malloc:return#2")),
    ("fbt::malloc:entry:fbt::malloc:return", ("fbt::malloc:entry", "fbt::malloc:return")),
    ("kinst::malloc:8:end", ("kinst::malloc:8", "end"))])
def test_a_window_consists_of_two_positions(text, parts):
    assert window(text) == parts


@pytest.mark.parametrize("text", ["", "malloc", "a:b:c", "fbt::malloc:entry"])
def test_an_invalid_window_is_refused(text):
    with pytest.raises(kinst_emu.KinstError, match="give two positions as FROM:TO"):
        window(text)


def test_a_call_is_traced_as_text_and_json_with_its_changes(call):
    text = run("kinst", "replay", str(call), "--trace-insns", "strlen:")
    assert text.returncode == 0 and "strlen+0x0" in text.stdout.splitlines()[0], text.stderr
    rows = [json.loads(line) for line in run(
        "kinst", "replay", str(call), "--trace-insns", "strlen:", "--as", "json", "--registers",
        "--stores").stdout.splitlines()]
    assert len(rows) == len(text.stdout.splitlines())
    assert rows[0]["at"] == "strlen+0x0" and any(row["registers"] for row in rows)


def test_a_trace_can_be_saved_to_a_file_and_shown_later(call, tmp_path):
    path = tmp_path / "call.trace"
    made = run("kinst", "replay", str(call), "--trace-insns", ":", "--registers", "-o", str(path))
    assert made.returncode == 0 and f"kinst trace {path}" in made.stdout, made.stderr
    direct = run("kinst", "replay", str(call), "--trace-insns", ":", "--registers")
    assert run("kinst", "trace", str(path)).stdout == direct.stdout
    for kind in ("calls", "tree", "flame", "json"):
        shown = run("kinst", "trace", str(path), "--as", kind)
        assert shown.returncode == 0 and "strlen" in shown.stdout, shown.stderr
    out = tmp_path / "out.pftrace"
    written = run("kinst", "trace", str(path), "--as", "perfetto", "-o", str(out))
    assert written.returncode == 0 and out.stat().st_size > 100, written.stderr


def test_a_trace_does_not_overwrite_its_recording(call, tmp_path):
    content = call.read_bytes()
    for words in (("--as", "json"), ()):
        refused(run("kinst", "replay", str(call), "--trace-insns", ":", "-o", str(call), *words),
                "is also the input file")
    assert call.read_bytes() == content


def test_a_truncated_trace_is_shown_with_a_warning(call, tmp_path):
    path = tmp_path / "call.trace"
    run("kinst", "replay", str(call), "--trace-insns", ":", "-o", str(path))
    path.write_bytes(path.read_bytes()[:-5])
    shown = run("kinst", "trace", str(path))
    assert shown.returncode == 1 and "strlen" in shown.stdout
    assert "ends early: the file is truncated" in shown.stderr and "Traceback" not in shown.stderr


def test_the_origin_of_a_register_is_found(call):
    found = json.loads(run("kinst", "replay", str(call), "--origin",
                           f"{argument(call)}@strlen", "--json").stdout)
    assert found["links"][-1]["how"] == "external input"
    text = run("kinst", "replay", str(call), "--origin", f"{argument(call)}@strlen")
    assert "external input" in text.stdout


def test_the_origin_of_a_result_is_in_the_called_function(call):
    """``--origin`` ignores the registers that are restored at the end of the call."""
    result = kinst_emu.Recording(call).machine.emulated.arch.result
    at_end = json.loads(run("kinst", "replay", str(call), "--origin", f"{result}@end",
                            "--json").stdout)
    assert at_end == json.loads(run("kinst", "replay", str(call), "--origin", result,
                                    "--json").stdout)
    assert at_end["links"][0]["how"] != "external input"


def argument(call):
    machine = kinst_emu.Recording(call).machine
    return machine.emulated.arch.arguments[0]


def test_reverse_to_goes_back_to_the_last_call_of_a_function(call):
    forwards = json.loads(run("kinst", "replay", str(call), "--to", "strlen", "--json").stdout)
    back = json.loads(run("kinst", "replay", str(call), "--reverse-to", "strlen",
                          "--json").stdout)
    assert back["position"] == forwards["position"]
    refused(run("kinst", "replay", str(call), "--to", "start", "--reverse-to", "strlen"),
            "not reached before")


def test_diverging_runs_are_compared(call, arch, tmp_path):
    other = tmp_path / "other.rec"
    run("kinst", "call", "-k", f"teaching/{arch}", 'strlen("some other text")', "--record",
        str(other))
    same = run("kinst", "diff", str(call), str(call))
    assert same.returncode == 0 and "are the same" in same.stdout, same.stderr
    found = run("kinst", "diff", str(call), str(other))
    assert found.returncode == 1 and "the runs diverge" in found.stdout, found.stderr
    assert "strlen" in found.stdout
    parts = json.loads(run("kinst", "diff", str(call), str(other), "--json").stdout)
    assert parts["addresses"][0] != parts["addresses"][1]


def test_different_builds_are_compared_call_by_call(call, arch, tmp_path):
    """The second build has the same code but a different build ID and different data."""
    from images import catalog

    image = catalog.find(f"teaching/{arch}")
    kernel = tmp_path / "kernel"
    content = bytearray(image.path.read_bytes())
    at = content.index(b"teaching> ")
    content[at : at + 8] = b"TEACHING"
    kernel.write_bytes(content)
    other = tmp_path / "other.rec"
    made = run("kinst", "call", "-k", str(kernel), "--no-boot", 'strlen("ab")', "--record",
               str(other))
    assert made.returncode == 0, made.stderr
    first = tmp_path / "first.rec"
    run("kinst", "call", "-k", f"teaching/{arch}", "--no-boot", 'strlen("abc")', "--record",
        str(first))
    found = run("kinst", "diff", str(first), str(other), "--kernel-b", str(kernel))
    assert found.returncode == 0 and "call by call" in found.stdout, found.stdout + found.stderr


@pytest.mark.parametrize("arch", ["arm64"])
@pytest.mark.parametrize(("words", "said"), [
    (("--registers",), "--registers: works only with --trace-insns"),
    (("--as", "text"), "--as: works only with --trace-insns"),
    (("--trace-insns", "x"), "give two positions as FROM:TO"),
    (("--trace-insns", "end:start"), "before its start"),
    (("--trace-insns", ":", "--as", "perfetto"), "give a file with -o"),
    (("--trace-insns", ":", "--to", "1"), "--to: cannot be used with --trace-insns"),
    (("--origin", "nothing", "--gdb", "1"), "--origin: cannot be combined with --gdb"),
    (("--origin", "sp@start", "--to", "50%"), "give only one"),
    (("--trace-insns", ":", "--as", "tree", "--stores"), "cannot be used with --as tree"),
    (("--trace-insns", ":", "--json"), "--json: cannot be used with --trace-insns"),
    (("--origin", "nothing"), "the kernel has no symbol 'nothing'"),
    (("--gdb", "http"), "is neither a port number"),
    (("--who-wrote", "no->where"), "is not a place in memory"),
    (("--who-wrote", "1 2"), "unexpected '2'"),
])
def test_invalid_options_are_refused_with_one_line(call, words, said):
    refused(run("kinst", "replay", str(call), *words), said)


def test_a_debugger_controls_a_recording_and_a_boot(call, arch):
    for words in (("replay", str(call)), ("boot", "-k", f"teaching/{arch}", "-q")):
        with subprocess.Popen(
                [sys.executable, "-m", "kinst_emu.commands.kinst", *words, "--gdb", "0"],
                stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            line = server.stderr.readline()
            port = int(line.rpartition(":")[2].strip().rstrip("'"))
            remote = GdbRemote(socket.create_connection(("127.0.0.1", port)), 60)
            assert remote.ask("qfThreadInfo") == "m1"
            remote.send("qRcmd," + b"position".hex())
            assert "instruction" in bytes.fromhex(remote.receive()[1:]).decode()
            assert remote.receive() == "OK"
            assert remote.ask("D") == "OK"
            remote.close()
            assert server.wait(60) == 0


def test_a_debugger_can_use_standard_input_and_output(call):
    done = subprocess.run(
        [sys.executable, "-m", "kinst_emu.commands.kinst", "replay", str(call), "--gdb", "-"],
        input=b"$?#3f$D#44", capture_output=True, timeout=60)
    assert done.returncode == 0 and b"$T05thread:1;#" in done.stdout, done.stderr


# -- from Python -----------------------------------------------------------------------------------

def test_a_recording_can_be_used_from_python(call):
    recording = kinst_emu.Recording(call)
    first = recording.machine.emulated.arch.arguments[0]
    found = [(m.position, m.arguments[0]) for m in recording.firings("kinst::strlen:0")]
    assert len(found) == 1
    recording.go(found[0][0])
    assert recording.machine.string(found[0][1]) == "some text"
    assert recording.machine.where(recording.machine.pc) == "strlen+0x0"
    recording.step(3).back(3)
    assert recording.position == found[0][0]
    assert recording.origin(first)[-1].how.value == "external input"
    assert recording.position == found[0][0]
    text = found[0][1]
    wrote = next(recording.who_wrote(text, 4))
    assert (wrote.where, wrote.new) == ("from outside", b"some")
    assert recording.same() and recording.position == recording.end


def test_the_machine_of_a_recording_is_read_only(call):
    machine = kinst_emu.Recording(call).machine
    for do in (lambda: machine.call("strlen", "x"), lambda: machine.write(machine.sp, b"x"),
               machine.step, lambda: machine.type("x"), lambda: machine.probe("fbt:::"),
               lambda: setattr(machine, "pc", 1)):
        with pytest.raises(kinst_emu.KinstError, match="belongs to a recording"):
            do()
