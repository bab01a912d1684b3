"""The walks through kernel bugs (docs/panic.md, docs/panic-program.md): their commands, on a real
kernel."""

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
    """(command, lines shown) of a page, in order."""
    found = []
    for line in (ROOT / "docs" / page).read_text().splitlines():
        if line.startswith("    $ "):
            found.append((line[6:], []))
        elif line.startswith("    ") and found:
            found[-1][1].append(line.strip())
    return found


def comparable(line):
    """What of a line is the same on every kernel of its architecture: its words, no numbers."""
    return re.sub(r"\s+", " ", re.sub(r"\b(0x[0-9a-f]+|\d[\d.]*)\b", "N", line)).strip()


@pytest.mark.parametrize("page", ["panic.md", "panic-program.md"])
def test_the_walk_finds_the_bug(page, tmp_path):
    kernel = real_kernel("arm64").path
    (tmp_path / "kernel").symlink_to(kernel)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    if (debug := kernel.with_name(kernel.name + ".debug")).exists():
        (tmp_path / "kernel.debug").symlink_to(debug)
    seen = {}
    commands = blocks(page)
    assert len(commands) > 4
    for command, shown in commands:
        # Where the page has a number that is this kernel's, the walk's own output gives it.
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
        for there, here in zip(numbers(shown), numbers(output), strict=False):
            seen.setdefault(there, here)


def numbers(lines):
    """The numbers of lines that say where something is, in order."""
    return [n for line in lines if re.match(r"^\d{6,} |^x0 ", line)
            for n in re.findall(r"\b(?:0xffff[0-9a-f]{12}|\d{6,12})\b", line)[:1]]


@pytest.mark.parametrize("word", ["who-wrote", "origin", "gdb", "trace-insns"])
def test_the_page_or_the_readme_names_what_is_used(word):
    assert f"--{word}" in (ROOT / "README.md").read_text() + (ROOT / "docs/replay.md").read_text()


def test_the_fault_behind_a_panic_is_a_position(arch, tmp_path):
    kernel = str(real_kernel(arch).path)
    path = str(tmp_path / "bug.rec")
    words = [sys.executable, "-m", "kinst_emu.commands.kinst"]
    subprocess.run([*words, "record", "-k", kernel, "-o", path,
                    str(ROOT / "examples" / "overflow.py")], capture_output=True, timeout=300)
    done = subprocess.run([*words, "replay", path, "-k", kernel, "--to", "fault", "--json"],
                          capture_output=True, text=True, timeout=300)
    found = json.loads(done.stdout)
    assert found["at"].startswith("eventhandler_prune_list+"), done.stderr
    assert 0x4141414141414141 in found["registers"].values()


def test_a_panic_that_only_a_program_triggers_is_followed_to_its_cause(arch, tmp_path):
    """The walk of docs/panic-program.md, on each architecture: the null pointer was cleared by the
    system call of the program."""
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
        found = run("kinst", "replay", path, "-k", kernel, "--origin", f"{name}@fault").stdout
        causes[name] = found.splitlines()[-1].split()
    cleared = [words for words in causes.values() if words[1].startswith(("memset", "bzero"))]
    assert cleared, causes
    there = run("kinst", "replay", path, "-k", kernel, "-q", "--to", cleared[0][0],
                "--reverse-to", "sys_semget")
    assert "kernel`sys_semget+0x0" in there.stdout, there.stderr
    asked = run("kdtrace", "--replay", path, "-qn", "fbt::sys_semget:entry { "
                "printf(\"%s wants %d\\n\", execname, args[1]->nsems); }")
    assert "semaphores wants 14000" in asked.stdout
    wrote = run("kinst", "replay", path, "-k", kernel, "--who-wrote", "seminfo.semmns").stdout
    assert "from outside  0x154 -> 0x7530" in wrote
