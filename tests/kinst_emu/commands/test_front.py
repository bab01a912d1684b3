"""Tests of version, completion, boot cache, limits, progress and closed output streams."""

import argparse
import importlib
import io
import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from images import catalog
from kinst.verify.laboratory.encodings import Report
from kinst.verify.laboratory.finding import finding
from kinst.verify.laboratory.outcome import Mismatch, Outcome
from kinst_emu.cli import command_line
from kinst_emu.commands.kinst import COMMANDS
from kinst_emu.report import relocate_report
from kinst_emu.report.relocate_report import MAX_KINDS, Result
from kinst_emu.terminal.status import CLEAR, StatusLine
from tests.conftest import ARCHES
from tests.kinst_emu.commands.test_commands import refused, run


def test_the_version_includes_the_main_dependencies():
    result = run("kinst", "--version")
    assert result.returncode == 0
    assert re.fullmatch(r"kinst \S+ \(unicorn \S+, capstone \S+, keystone-engine \S+\)\n",
                        result.stdout)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command):
    result = run("kinst", command, "--help")
    assert result.returncode == 0 and not result.stderr and "usage: " in result.stdout


@pytest.mark.parametrize("line, offers", [
    ("kinst bo", ["boot"]), ("kinst boot --inst", ["--instructions"]),
    ("kinst boot -k teaching/arm", ["teaching/arm64"]),
    ("kdtrace --trap-path d", ["direct", "double"]),
])
def test_shell_completion_offers_commands_options_and_kernels(line, offers, tmp_path):
    module = f"kinst_emu.commands.{line.split()[0]}"
    answer = tmp_path / "answer"
    # argcomplete writes to file descriptor 8 or to the file named in its environment variable.
    subprocess.run(
        [sys.executable, "-m", module], check=False, timeout=60,
        env=os.environ | {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)),
                          "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer)})
    assert [word.strip() for word in answer.read_text().split("\n")] == offers


def test_cache_clear_removes_only_cache_files(tmp_path):
    environment = os.environ | {"KINST_CACHE": str(tmp_path)}

    def kinst(*words):
        return subprocess.run([sys.executable, "-m", "kinst_emu.commands.kinst", *words],
                              capture_output=True, text=True, env=environment, check=True)

    kinst("call", "--unchecked", "-k", "teaching/riscv64", 'strlen("abc")')
    (tmp_path / "snapshots" / "notes.txt").write_text("mine")
    (tmp_path / "snapshots" / ".half.kinst.x.part").write_text("left by a killed process")
    shown = json.loads(kinst("cache", "--json").stdout)
    snapshots = [path.name[:8] for path in (Path(f["path"]) for f in shown["files"])
                 if path.parent.name == "snapshots"]
    assert snapshots == [".half.ki", "riscv64-"]
    assert shown["bytes"] == sum(f["bytes"] for f in shown["files"])
    count = f"{len(shown['files'])} files"
    assert count in kinst("cache").stdout
    assert f"removed {count}" in kinst("cache", "clear").stdout
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["notes.txt"]


@pytest.mark.parametrize("arch, code, row", [
    ("amd64", "call *8(%r12)", "41 ff 54 24 08  call qword ptr [r12 + 8]  emulate"),
    ("amd64", "lea rax, [rip + 16]", "lea rax, [rip + 0x10]  rewrite"),
    ("amd64", "lea 16(%rip), %rax", "lea rax, [rip + 0x10]  rewrite"),
    ("amd64", "mov $10, %eax", "b8 0a 00 00 00  mov eax, 0xa  copy"),
    ("amd64", "mov 0x10, %al", "movabs al, byte ptr [0x10]  copy"),
    ("arm64", "add x1, x10, #16", "add x1, x10, #0x10  copy"),
    ("arm64", "fmov d0, #1.0", "fmov d0, #1.00000000"),
    ("arm64", "mov v1.16b, v2.16b", "mov v1.16b, v2.16b  copy"),
    ("arm64", "cbz x3, #0x40000100", "03 08 00 b4  cbz x3, #0x40000100  emulate"),
])
def test_relocate_accepts_assembly_text(arch, code, row):
    result = run("kinst", "relocate", "--arch", arch, "--assemble", code)
    assert result.returncode == 0, result.stderr
    assert row in result.stdout and "1 distinct encodings, 0 mismatches" in result.stdout


@pytest.mark.parametrize("words, says", [
    (["--assemble", "frobnicate", "--arch", "amd64"], "is not an instruction of amd64"),
    (["--assemble", " ; ", "--arch", "amd64"], "the text contains no instruction"),
    (["--assemble", "nop", "--arch", "riscv64"],
     "does not support riscv64; give bytes with --encodings"),
    (["--assemble", ".fill 100,1,0x90", "--arch", "amd64"], "is not an instruction of amd64"),
    (["--assemble", "nop"], "--assemble needs --arch"),
    (["--assemble", "nop", "--encodings", "-", "--arch", "amd64"], "not both"),
    (["--encodings", os.devnull, "--arch", "amd64"], "the file contains no instructions"),
])
def test_relocating_nothing_is_an_error(words, says):
    refused(run("kinst", "relocate", *words), says)


def test_mismatches_are_grouped_by_kind_of_instruction(capsys):
    """One wrong row of a table can cause thousands of mismatches."""
    def mismatch(code):
        ran = Outcome({"rax": 0}, (), {}, 0, "")
        other = Outcome({"rax": 1}, (), {}, 0, "")
        return finding("copy", Mismatch(code, 0, 0, "copy", ran, other), code)

    # ADD with every pair of the low registers, and more kinds of mismatches than the report shows
    codes = [bytes((0x48, 0x01, 0xC0 | n)) for n in range(64)]
    codes += [bytes((0x0F, 0x40 | n, 0xC1)) for n in range(16)]
    codes += [bytes((0x0F, 0x90 | n, 0xC1)) for n in range(16)]
    places = {code: f"line {n}" for n, code in enumerate(codes, 1)}
    report = Report()
    for code in codes:
        report.add(mismatch(code))
    refused_too = {bytes((0x0F, 0xB0, n)): "uses memory" for n in range(0xC0, 0xE0)} | {
        b"\xfb": "changes the interrupt flag"}
    report.refused.update(refused_too)
    report.words.update(dict.fromkeys(refused_too, "refuse"))
    result = Result("amd64", 1, places | dict.fromkeys(refused_too, "refused"), report, None)
    relocate_report.show(result)
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[-1] == (f"{len(codes)} distinct encodings, {len(codes)} mismatches, 33 refused "
                         "(2 reasons), 0 unproven")  # the last line, visible without scrolling
    assert [line.split(maxsplit=1) for line in lines if "refused: " in line] == [
        ["32", "refused: uses memory"], ["1", "refused: changes the interrupt flag"]]
    assert "and 63 more of add, copy" in text
    assert text.count("reproduce: ") == MAX_KINDS
    assert f"{33 - MAX_KINDS} more kinds of instructions mismatch" in text
    assert len(relocate_report.as_json(result)["mismatches"]) == len(codes)


# -- boots ----------------------------------------------------------------------------------------


def test_a_boot_can_be_saved_and_continued_in_the_middle(tmp_path):
    whole = json.loads(run("kinst", "boot", "-k", "teaching/arm64", "--digest", "--json").stdout)
    middle = tmp_path / "middle"
    half = whole["instructions"] // 2
    run("kinst", "boot", "-k", "teaching/arm64", "--instructions", str(half), "--save", str(middle))
    again = json.loads(run("kinst", "boot", "-k", "teaching/arm64", "--restore", str(middle),
                           "--digest", "--json").stdout)
    assert again["stop"] == "console"
    assert (again["digest"], again["instructions"]) == (whole["digest"], whole["instructions"])


@pytest.mark.parametrize("words, says", [
    (["--save", "/nowhere/at/all"], "--save /nowhere/at/all: its directory does not exist"),
    (["--save", "/tmp"], "is a directory"), (["--type", r"a\q"], r"\q"),
])
def test_invalid_options_are_refused_before_the_boot(words, says):
    result = run("kinst", "boot", "-k", "teaching/amd64", *words)
    refused(result, says)
    assert result.stdout == ""


def test_a_memory_size_that_differs_from_the_snapshot_is_refused(tmp_path):
    path = tmp_path / "snapshot"
    run("kinst", "boot", "-k", "teaching/amd64", "--memory", "64M", "--save", str(path))
    refused(run("kinst", "boot", "-k", "teaching/amd64", "--restore", str(path),
                "--memory", "128M"), "has 64M of RAM")


# -- help ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*COMMANDS, "kdtrace"])
def test_help_examples_are_accepted_by_their_command(name):
    module = (command_line if name == "kdtrace" else
              importlib.import_module(f"kinst_emu.commands.{name}"))
    words = ["kdtrace"] if name == "kdtrace" else ["kinst", name]
    shown = run(words[0], *words[1:], "--help").stdout
    parser = command_line.make_parser() if name == "kdtrace" else argparse.ArgumentParser()
    if name != "kdtrace":
        module.add_options(parser)
    assert module.EXAMPLES
    for example in module.EXAMPLES:
        assert f"  {example}\n" in shown
        given = shlex.split(example)
        assert given[: len(words)] == words
        parser.parse_args(given[len(words) :])


def test_an_added_image_is_reported_as_json(tmp_path):
    kernel = catalog.find("teaching/amd64").path
    added = json.loads(run("kinst", "images", "add", str(kernel), "--name", "told/amd64",
                           "--json").stdout)
    assert [image["name"] for image in added] == ["told/amd64"]
    assert Path(added[0]["path"]).read_bytes() == kernel.read_bytes()


def test_the_names_of_the_teaching_kernels_are_reserved():
    kernel = catalog.find("teaching/amd64").path
    refused(run("kinst", "images", "add", str(kernel), "--name", "teaching/amd64"),
            "use another --name")


def test_an_installed_program_builds_the_teaching_kernels(monkeypatch, tmp_path):
    monkeypatch.setenv("KINST_DATA", str(tmp_path))
    built = json.loads(run("kinst", "images", "build", "--json").stdout)
    assert {image["name"] for image in built} == {f"teaching/{arch}" for arch in (
        *ARCHES, "amd64-illumos")}
    monkeypatch.setattr(catalog, "TEACHING", tmp_path / "nowhere")
    assert {i.name: str(i.path) for i in catalog.known() if i.path and "teaching" in i.name} == {
        image["name"]: image["path"] for image in built}
    assert catalog.find("teaching/arm64").machine == "AARCH64"


# -- streams --------------------------------------------------------------------------------------


@pytest.mark.parametrize("program, words", [
    ("kinst", ["images"]), ("kdtrace", ["-k", "teaching/amd64", "-l", "-n", "fbt::strlen:"]),
])
def test_a_closed_standard_output_is_reported_in_one_line(program, words):
    result = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", f"kinst_emu.commands.{program}",
         *words], stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    assert result.returncode == 1
    assert re.fullmatch(r"\w+: standard output is closed\n", result.stderr)


def test_trace_rows_and_console_output_appear_in_execution_order():
    result = run("kdtrace", "-k", "teaching/amd64", "-n", "fbt::describe:entry", "-n",
                 "fbt::cnputs:entry", "-c", 'cnputs("one\\n"); cnputs("two\\n")')
    assert result.returncode == 0, result.stderr
    words = [line.split()[-1] for line in result.stdout.splitlines()[1:5]]
    assert words == ["cnputs:entry", "one", "cnputs:entry", "two"]


def on_a_terminal(words, until=None):
    """Run a command on a pseudo-terminal and return its output as (seconds, bytes) pairs."""
    process, terminal = pty.fork()
    if process == 0:
        os.execve(sys.executable, [sys.executable, *words], {**os.environ, "TERM": "xterm"})
    began, seen = time.monotonic(), []
    while True:
        ready = select.select([terminal], [], [], 60)[0]
        if not ready:
            os.kill(process, signal.SIGKILL)
        try:
            data = os.read(terminal, 65536) if ready else b""
        except OSError:  # the command has closed the terminal
            data = b""
        if not data:
            break
        seen.append((time.monotonic() - began, data))
    os.waitpid(process, 0)
    os.close(terminal)
    return seen


def test_the_progress_of_long_operations_is_shown_on_a_terminal():
    seen = on_a_terminal(["-m", "kinst_emu.commands.kinst", "call", "-k", "teaching/riscv64",
                          "fibonacci(34)"])
    text = b"".join(data for _at, data in seen).decode()
    assert "calling fibonacci(34) ... " in text
    # The progress text has been erased.
    assert text.rpartition(CLEAR)[2].endswith("fibonacci(34) = 5702887 (0x5704e7)\r\n")
    assert " ... " not in text.rpartition(CLEAR)[2]


def test_a_traced_boot_shows_its_first_console_lines():
    result = run("kdtrace", "-k", "teaching/amd64", "-n", "fbt::worker:entry", "-c", "boot")
    lines = result.stdout.splitlines()
    assert lines[0] == "The teaching kernel"


def test_a_trace_row_ends_a_partial_console_line():
    result = run("kdtrace", "-k", "teaching/amd64", "-n", "fbt::cnputs:return", "-c",
                 'cnputs("abc")')
    lines = result.stdout.splitlines()
    assert lines[0] == "abc" and lines[1].startswith("CPU ") and lines[-1] == "" not in lines[:-1]


def test_errors_do_not_go_to_stdout_when_stderr_is_closed():
    result = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-m", "kinst_emu.commands.kinst",
         "call", "-k", "teaching/amd64", "--json", "nosuch()"], stdout=subprocess.PIPE, check=False)
    assert (result.returncode, result.stdout) == (1, b"")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_status_line_is_not_drawn_inside_a_partial_line(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    line = StatusLine(screen)
    line.start()
    with line.working("waiting"):
        print("half", end="")
        time.sleep(1.5)
        assert screen.getvalue() == "half"
    line.stop()


def test_the_status_line_fits_the_terminal(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    line = StatusLine(screen)
    line.start()
    with line.working("a\nb" + "x" * 200):
        deadline = time.monotonic() + 30
        while " s" not in screen.getvalue() and time.monotonic() < deadline:
            time.sleep(0.05)
    line.stop()
    drawn = screen.getvalue().split(CLEAR)[1]
    assert drawn.startswith("a bxx") and len(drawn) == 79 and drawn.endswith(" s")


def test_the_status_line_appears_after_a_pause_and_is_cleared_for_output(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    line = StatusLine(screen)
    line.start()
    with line.working("waiting"):
        deadline = time.monotonic() + 30
        while "waiting ... " not in screen.getvalue() and time.monotonic() < deadline:
            time.sleep(0.05)
        print("said")
    line.stop()
    assert sys.stdout is screen
    text = screen.getvalue()
    assert re.search(re.escape(CLEAR) + r"waiting \.\.\. \d+ s", text)
    assert f"{CLEAR}said\n" in text


def test_the_status_line_is_not_drawn_during_output(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    line = StatusLine(screen)
    line.start()
    with line.working("talking"):
        for n in range(20):
            print(n)
            time.sleep(0.05)
    line.stop()
    assert "talking" not in screen.getvalue()
