"""Tests that control characters in names from files do not reach the terminal."""

import os
import subprocess
import sys

import pytest

from emu.host.printable import name, plain
from images import catalog

ESCAPE = b"s\x1b[7mn"  # as long as "strlen"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """Return a kernel with a function whose name contains the escape code for reverse video."""
    path = tmp_path_factory.mktemp("kernel") / "kernel"
    content = catalog.find("teaching/amd64").path.read_bytes()
    assert content.count(b"\0strlen\0") >= 1
    path.write_bytes(content.replace(b"\0strlen\0", b"\0" + ESCAPE + b"\0"))
    return path


@pytest.mark.parametrize("program, words", [
    ("kdtrace", ("-l", "-n", "fbt::s*:entry")),
    ("kdtrace", ("-n", "fbt::s*:entry", "-c", 'strcmp("a", "b")')),
    ("kdtrace", ("-n", "fbt::s*:entry { stack(); @[probefunc] = count(); }", "-c", "boot")),
    ("kdtrace", ("-F", "-n", "fbt::s*: { trace(probefunc); }", "-c", "boot")),
    ("kdtrace", ("-n", "fbt::sn:entry { }", "-c", "boot")),
    ("kinst", ("disas", "s\ufffd[7mn")),
    ("kinst", ("disas", "s\x1b[7mn")),
    ("kinst", ("call", 's\x1b[7mn("abc")')),
])
def test_function_names_cannot_control_the_terminal(kernel, program, words):
    first, rest = ((), words) if program == "kdtrace" else (words[:1], words[1:])
    done = subprocess.run(
        [sys.executable, "-m", f"kinst_emu.commands.{program}", *first, "-k", str(kernel), *rest],
        capture_output=True, check=False, timeout=120, env=dict(os.environ))
    assert b"\x1b" not in done.stdout + done.stderr
    assert b"Traceback" not in done.stderr and done.stdout + done.stderr


@pytest.mark.parametrize("text", ["\x1b[7m", "a\rb", "\x7f", "\x9b31m", "a\u202eb", "a\u2028b"])
def test_control_characters_are_replaced(text):
    assert "\ufffd" in plain(text) and plain(plain(text)) == plain(text)
    assert name(text.encode()) == plain(text)


def test_other_names_are_unchanged():
    for text in ("strlen", "na\u00efve", "_ZN3fooE", "a b", "\u4e16"):
        assert plain(text) == text
