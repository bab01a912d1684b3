"""Tests of the name of the program that a shell command runs first."""

import pytest

from kinst_emu.cli.traced_kernel import first_program


@pytest.mark.parametrize("command, name", [
    ("ls", "ls"), ("/bin/ls -l", "ls"), ("threads; ls", "threads"), ("cat</etc/motd", "cat"),
    ("LANG=C TZ=UTC date", "date"), ("(cd /; ls)", "ls"), ("! true", "true"), ("'a b' c", "a b"),
    ("</etc/motd wc", "wc"), (">/tmp/x /files/threads", "threads"), ("2>/dev/null ls", "ls"),
    ("2>&1 ls", "ls"), ("if true; then ls; fi", "true"), ("while sleep 1; do ls; done", "sleep"),
    ("> 'a b' ls", "ls"), ("'a > b' x", "a > b"), ("ls > x", "ls"), ("cat << E", "cat"),
    ("(>x ls)", "ls"), ("elif ls; then", "ls"),
    ("ls|wc", "ls"), ("ls&&wc", "ls"), ("exec sh", "sh"), ("cd /files; ./threads x", "threads"),
    ("cd / && export A=b; umask 022 && ls", "ls"), ("cd /", ""), ("", ""), ("  ", ""),
    ("'open", ""),
])
def test_the_first_program_is_the_word_that_the_shell_executes(command, name):
    assert first_program(command) == name
