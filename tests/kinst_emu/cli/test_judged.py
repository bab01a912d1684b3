"""Tests of the options of ``kinst xval --dtrace``."""

import pytest

from tests.kinst_emu.commands.test_commands import run


@pytest.mark.parametrize("options, wanted", [
    (("--probes",), "--probes: needs --dtrace"),
    (("--dtrace", "x.d", "--probes"), "x.d: --probes compares lists of probes"),
    (("--suite", "--dtrace"), "--suite: needs --dtrace DIRECTORY"),
    (("--suite", "--dtrace", "/nowhere"), "/nowhere: is not a directory"),
    (("--dtrace", "-c", "$ ls"), "-c: with --dtrace SCRIPT"),
    (("--dtrace", "--probes", "-c", "$ ls"), "-c: cannot be used with --probes"),
    (("--dtrace", "--probes", "--suite"), "--suite: cannot be used with --probes"),
    (("--dtrace", "/tmp", "--suite", "-c", "$ ls"), "-c: cannot be used with --suite"),
    (("--dtrace", "x.d", "-c", "$ "), "-c: with --dtrace SCRIPT"),
    (("--dtrace", "x.d", "-c", "$ ls\nls"), "must be one line"),
    (("--dtrace", "--functions", "strlen"), "--functions: cannot be used with --dtrace"),
])
def test_options_without_meaning_are_refused(options, wanted):
    done = run("kinst", "xval", "-k", "teaching/amd64", "--base", *options)
    assert done.returncode == 1 and wanted in done.stderr and done.stderr.count("\n") == 1
