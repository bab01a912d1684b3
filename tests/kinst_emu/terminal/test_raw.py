"""Tests that guest output cannot control a terminal, but reaches files and pipes unchanged."""

import os
import pty
import subprocess
import sys

import pytest

from emu.host.printable import visible

# Texts that a program prints, and the texts that a terminal then shows
SAID = {
    "\x1b[2J": "^[[2J", "\x1b]0;title\x07": "^[]0;title^G", "a\x7fb": "a^?b", "\x9b31m": "\\x9b31m",
    "a\rb": "a^Mb", "\u202eabc": "\\u202eabc", "\tx": "\tx", "na\u00efve": "na\u00efve",
    "\u4e16": "\u4e16"}


def on_terminal(*words):
    """Run a command on a pseudo-terminal, and return its standard output and standard error."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", "import sys\n"
                           "from kinst_emu.commands import entry\n"
                           "getattr(entry, sys.argv.pop(1))()", *words], stdin=subprocess.DEVNULL,
                          stdout=theirs, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        found = b""
        while True:
            try:
                data = os.read(ours, 4096)
            except OSError:  # the command has closed the terminal
                break
            found += data
        assert process.stderr is not None
        said = process.stderr.read().decode()
    os.close(ours)
    assert process.returncode == 0, said
    return found.decode().replace("\r\n", "\n"), said


def program(text):
    spelled = "".join(f"\\{byte:03o}" for byte in text.encode())
    return f'BEGIN {{ printf("%s|", "{spelled}"); exit(0); }}'


@pytest.mark.parametrize("text", SAID, ids=range(len(SAID)))
def test_control_characters_are_shown_in_visible_form(text):
    assert visible(text) == SAID[text]


def test_undecodable_bytes_are_shown_in_visible_form():
    assert visible(b"a\x9bb\xff".decode("utf-8", "surrogateescape")) == "a\\x9bb\\xff"


def test_output_of_a_d_program_cannot_control_the_terminal():
    whole = "".join(SAID)
    shown, said = on_terminal("kdtrace", "-qn", program(whole))
    assert shown.startswith("".join(SAID.values()) + "|") and "--raw" in said
    shown, said = on_terminal("kdtrace", "--raw", "-qn", program(whole))
    assert shown.startswith(whole + "|") and "--raw" not in said


def test_the_raw_option_is_not_suggested_for_unchanged_text():
    shown, said = on_terminal("kdtrace", "-qn", program("plain \u4e16"))
    assert shown.startswith("plain \u4e16|") and "--raw" not in said


def test_the_guest_console_cannot_control_the_terminal():
    words = "kinst", "boot", "-k", "teaching/amd64", "--type", "keep a\\x1b[2Jb\\xc2\\x9b1m\\r"
    shown, said = on_terminal(*words)
    assert "\x1b" not in shown and "\x9b" not in shown and "--raw" in said
    assert "^[[2Jb\\x9b1m" in shown
    assert "\x1b[2Jb\x9b1m" in on_terminal(*words, "--raw")[0]


def test_the_raw_option_is_not_suggested_without_guest_output():
    shown, said = on_terminal("kinst", "type", "-k", "teaching/amd64", "struct note")
    assert "struct note {" in shown and not said


def test_the_colors_of_a_shell_session_reach_the_terminal():
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c",
                           "from kinst_emu.commands import entry; entry.kinst()",
                           "shell", "-k", "teaching/amd64"], stdin=theirs, stdout=theirs,
                          stderr=subprocess.PIPE, env={**os.environ, "TERM": "xterm"}) as process:
        os.close(theirs)
        found, asked = b"", False
        while True:
            try:
                found += os.read(ours, 4096)
            except OSError:  # the command has ended
                break
            if b"In [" in found and not asked:
                asked = True
                os.write(ours, b"1/0\rexit\r")
        assert process.stderr is not None
        said = process.stderr.read().decode()
    os.close(ours)
    assert b"\x1b[" in found and b"^[[" not in found and "--raw" not in said


def test_an_incomplete_character_is_not_lost():
    shown, _said = on_terminal("kinst", "boot", "-k", "teaching/amd64", "--type",
                               "keep a\\xe2\\x82\\r")
    assert "a\\xe2\\x82" in shown


def test_output_to_a_pipe_is_unchanged():
    done = subprocess.run([sys.executable, "-m", "kinst_emu.commands.kdtrace", "-qn",
                           program("\x1b[2J\x9b")], capture_output=True, check=True)
    assert done.stdout.startswith("\x1b[2J\x9b|".encode())
