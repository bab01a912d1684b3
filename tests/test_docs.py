"""Tests that the docs build without warnings and that their commands print the shown output."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = re.compile(r"`((?:emu|kinst|dwarf|images|dtrace|kinst_emu|tests|bench|docs)/"
                   r"[\w/.]+\.(?:py|pyx|pxi|md|html))`")
# The pages whose commands are run, and the minimum number of commands on each.
PAGES = {"../README": 5, "tutorial": 18, "walk": 6, "explore": 5, "per-thread": 2}
FAILS = " # exit status 1"
PROGRAMS = {"kinst": "kinst", "kdtrace": "kdtrace"}


def built(source, out):
    return subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html",
         "-d", str(out / "trees"), str(source), str(out / "site")],
        capture_output=True, text=True, check=False, timeout=300, env=os.environ)


@pytest.fixture
def docs(tmp_path):
    copy = tmp_path / "docs"
    shutil.copytree(ROOT / "docs", copy, ignore=shutil.ignore_patterns("_build", "reference"))
    shutil.copy(ROOT / "README.md", tmp_path)  # the index page links to README.md
    return copy


def test_the_site_is_built_without_a_warning_and_has_every_page(docs, tmp_path):
    done = built(docs, tmp_path)
    assert done.returncode == 0, done.stderr
    pages = {path.stem for path in (tmp_path / "site").glob("*.html")}
    assert {path.stem for path in docs.glob("*.md")} <= pages
    commands = (tmp_path / "site" / "reference" / "commands.html").read_text()
    assert "kinst explain" in commands and "--what-if" in commands
    python = (tmp_path / "site" / "reference" / "python.html").read_text()
    assert "assert_relocates" in python and "breakpoint" in python


def test_each_broken_link_fails_the_site_and_is_named(docs, tmp_path):
    links = {"calls.md": "[there](nowhere.md)", "quiz.md": "[x](d.md#no-such-heading)"}
    for page, link in links.items():
        with (docs / page).open("a") as file:
            file.write(f"\n{link}\n")
    done = built(docs, tmp_path)
    assert done.returncode != 0 and "calls.md" in done.stderr and "quiz.md" in done.stderr


def sessions(page):
    """Return the commands in a page's console blocks, each with its output lines."""
    commands = []
    text = (ROOT / "docs" / f"{page}.md").read_text()
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                commands.append((line[2:], []))
            else:
                commands[-1][1].append(line)
    return commands


def masked(line):
    """Return a line without numbers, bytes and widths, which depend on the kernel's compiler."""
    line = re.sub(r"\b[0-9a-f]{2}( [0-9a-f]{2})+\b", "#", line)
    line = re.sub(r"\b(0x[0-9a-f]+|[0-9]+|[0-9a-f]{6,})\b", "#", line)
    return " ".join(line.split()).replace("-", "")


def missing(wanted, printed):
    """Return the first expected line that is missing from the output or out of order, or None."""
    lines, at, free = [masked(line) for line in printed.splitlines()], 0, True
    for line in wanted:
        if line == "...":
            free = True
            continue
        match = next((n for n in range(at, len(lines)) if lines[n] == masked(line)), None)
        if match is None or (not free and match != at):
            return line
        at, free = match + 1, False
    return None


def tree():
    """Return the names of the repository's files, to check that commands leave no new files."""
    return {path.name for path in ROOT.iterdir() if not path.name.startswith(".")} | {
        str(path) for name in ("docs", "examples") for path in (ROOT / name).rglob("*")
        if "__pycache__" not in path.parts}


@pytest.mark.parametrize("page", PAGES)
def test_each_command_of_a_page_prints_the_output_shown_there(tmp_path, page):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    before = tree()
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name, function in PROGRAMS.items():
        path = binaries / name
        path.write_text(f"#!{sys.executable}\nimport sys\n"
                        f"from kinst_emu.commands.entry import {function}\n"
                        f"if __name__ == '__main__':\n    sys.exit({function}())\n")
        path.chmod(0o755)
    environment = dict(os.environ, PATH=os.pathsep.join(
        [str(binaries), str(Path(sys.executable).parent), os.environ["PATH"]]),
        PYTHONDONTWRITEBYTECODE="1",
        PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    wrong, seen = [], 0
    for command, wanted in sessions(page):
        done = subprocess.run(command.removesuffix(FAILS), shell=True, capture_output=True,
                              text=True, check=False, cwd=tmp_path, env=environment, timeout=120)
        seen += 1
        if done.returncode != int(command.endswith(FAILS)):
            wrong.append((command, done.returncode, done.stderr))
            continue
        absent = missing(wanted, done.stdout + done.stderr)
        if absent is not None:
            wrong.append((command, absent, done.stdout[-2000:]))
    assert seen >= PAGES[page] and not wrong, wrong[0]
    if page == "tutorial":
        assert (tmp_path / "three.html").stat().st_size > 20_000
    assert tree() == before


def test_a_line_missing_from_the_output_is_detected():
    assert missing(["a", "...", "c"], "a\nb\nc\n") is None
    assert missing(["a", "c"], "a\nb\nc\n") == "c"
    assert missing(["...", "x 12"], "a\nx 0x7\n") is None
    assert missing(["...", "y 12"], "a\nx 0x7\n") == "y 12"


def test_files_named_by_pages_exist():
    named = {(page.name, path) for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
             for path in FILES.findall(page.read_text())}
    assert len(named) > 50
    assert not {row for row in named if not (ROOT / row[1]).is_file()}
