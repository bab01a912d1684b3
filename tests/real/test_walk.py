"""Tests that the commands of docs/panic.md and docs/panic-program.md find the bugs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import real_kernel

ROOT = Path(__file__).parents[2]
NAMES = {"kinst": "kinst_emu.commands.kinst", "kdtrace": "kinst_emu.commands.kdtrace"}


def blocks(page):
    """Return the commands on a page in order, each with its output lines."""
    commands = []
    for line in (ROOT / "docs" / page).read_text().splitlines():
        if line.startswith("    $ "):
            commands.append((line[6:], []))
        elif line.startswith("    ") and commands:
            commands[-1][1].append(line.strip())
    return commands


def comparable(line):
    """Return a line without its numbers, which differ between kernels of an architecture."""
    return re.sub(r"\s+", " ", re.sub(r"\b(0x[0-9a-f]+|\d[\d.]*)\b", "N", line)).strip()


@pytest.mark.parametrize("page", ["panic.md", "panic-program.md"])
def test_the_commands_of_the_page_find_the_bug(page, tmp_path):
    kernel = real_kernel("arm64").path
    (tmp_path / "kernel").symlink_to(kernel)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    if (debug := kernel.with_name(kernel.name + ".debug")).exists():
        (tmp_path / "kernel.debug").symlink_to(debug)
    seen = {}
    commands = blocks(page)
    assert len(commands) > 4
    for command, shown in commands:
        # Replace numbers on the page with those that earlier commands printed on this kernel.
        for name, value in seen.items():
            command = command.replace(name, value)
        program, _space, rest = command.partition(" ")
        done = subprocess.run(
            f"exec '{sys.executable}' -m {NAMES[program]} {rest}", shell=True, cwd=tmp_path,
            capture_output=True, text=True, timeout=300)
        output = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
        assert "Traceback" not in done.stderr
        words = {comparable(line) for line in output}
        for line in shown:
            if line != "..." and not re.match(r"^x\d+ 0x", line):
                assert comparable(line) in words, (command, line, output[-30:])
        for theirs, ours in zip(numbers(shown), numbers(output), strict=False):
            seen.setdefault(theirs, ours)


def numbers(lines):
    """Return the first large number of each line that shows a position or the register x0."""
    return [n for line in lines if re.match(r"^\d{6,} |^x0 ", line)
            for n in re.findall(r"\b(?:0xffff[0-9a-f]{12}|\d{6,12})\b", line)[:1]]


@pytest.mark.parametrize("word", ["who-wrote", "origin", "gdb", "trace-insns"])
def test_the_readme_or_the_replay_page_names_the_option(word):
    assert f"--{word}" in (ROOT / "README.md").read_text() + (ROOT / "docs/replay.md").read_text()


def test_replay_goes_to_the_fault_that_caused_a_panic(arch, tmp_path):
    kernel = str(real_kernel(arch).path)
    path = str(tmp_path / "bug.rec")
    words = [sys.executable, "-m", "kinst_emu.commands.kinst"]
    subprocess.run([*words, "record", "-k", kernel, "-o", path,
                    str(ROOT / "examples" / "overflow.py")], capture_output=True, timeout=300)
    done = subprocess.run([*words, "replay", path, "-k", kernel, "--to", "fault", "--json"],
                          capture_output=True, text=True, timeout=300)
    replayed = json.loads(done.stdout)
    assert replayed["at"].startswith("eventhandler_prune_list+"), done.stderr
    assert 0x4141414141414141 in replayed["registers"].values()


def test_a_panic_triggered_by_a_program_is_traced_to_its_cause(arch, tmp_path):
    """Follow docs/panic-program.md on each architecture.

    The program's system call has cleared the pointer that causes the panic.
    """
    kernel = str(real_kernel(arch).path)
    path = str(tmp_path / "bug.rec")

    def run(name, *words):
        return subprocess.run([sys.executable, "-m", NAMES[name], *words], capture_output=True,
                              text=True, timeout=300)

    done = run("kinst", "record", "-k", kernel, "-o", path, str(ROOT / "examples/semaphores.py"))
    assert "'/files/semaphores 14000' did not end: guest panic" in done.stderr
    fault = json.loads(run("kinst", "replay", path, "-k", kernel, "--to", "fault", "--json").stdout)
    empty = [name for name, value in fault["registers"].items() if value == 0 and name != "zero"]
    causes = {}
    for name in empty:
        origin = run("kinst", "replay", path, "-k", kernel, "--origin", f"{name}@fault").stdout
        causes[name] = origin.splitlines()[-1].split()
    cleared = [words for words in causes.values() if words[1].startswith(("memset", "bzero"))]
    assert cleared, causes
    stopped = run("kinst", "replay", path, "-k", kernel, "-q", "--to", cleared[0][0],
                "--reverse-to", "sys_semget")
    assert "kernel`sys_semget+0x0" in stopped.stdout, stopped.stderr
    traced = run("kdtrace", "--replay", path, "-qn", "fbt::sys_semget:entry { "
                "printf(\"%s wants %d\\n\", execname, args[1]->nsems); }")
    assert "semaphores wants 14000" in traced.stdout
    wrote = run("kinst", "replay", path, "-k", kernel, "--who-wrote", "seminfo.semmns").stdout
    assert "from outside  0x154 -> 0x7530" in wrote
