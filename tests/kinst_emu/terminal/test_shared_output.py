"""Tests that guest console output and kinst-emu's output do not share a line."""

import io
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinst_emu.terminal.shared_output import SharedOutput, shared
from tests.dtrace.programs import command
from tests.kinst_emu.commands.test_commands import run

CALL = 'cnputs("half a line")'


def written(*pieces):
    """Write kinst-emu's texts (str) and guest output (bytes), and return the combined output."""
    raw = io.BytesIO()
    output = SharedOutput(raw, encoding="utf-8")
    for piece in pieces:
        if isinstance(piece, str):
            print(piece, end="", file=output)
        else:
            for byte in piece:
                output.console(byte)
    output.end_line()
    return raw.getvalue().decode()


@pytest.mark.parametrize("pieces, lines", [
    ((b"guest", "ours\n"), "guest\nours\n"), ((b"guest\n", "ours\n"), "guest\nours\n"),
    ((b"guest", "\n", "ours\n"), "guest\nours\n"), ((b"guest", "", b" on\n"), "guest on\n"),
    (("ours", b"guest\n", "more\n"), "ours\nguest\nmore\n"), ((b"guest",), "guest\n"),
    (("a", "b\n", b"c", b"d", "e", "f\n"), "ab\ncd\nef\n"), (("ours",), "ours"),
])
def test_guest_and_own_output_start_on_separate_lines(pieces, lines):
    assert written(*pieces) == lines


@given(st.lists(st.text("xy\n", max_size=4) | st.text("AB\n", max_size=4).map(str.encode)))
def test_no_line_mixes_both_outputs_and_nothing_is_lost(pieces):
    found = written(*pieces)
    whole = "".join(p if isinstance(p, str) else p.decode() for p in pieces)
    assert found.replace("\n", "") == whole.replace("\n", "")
    assert not any(set(line) & set("xy") and set(line) & set("AB") for line in found.split("\n"))


def test_a_shared_stream_keeps_its_encoding_and_error_handler():
    raw = io.BytesIO()
    output = shared(io.TextIOWrapper(raw, encoding="latin-1", errors="backslashreplace"))
    output.write("\xe9 \u20ac")
    output.flush()
    assert raw.getvalue() == b"\xe9 \\u20ac"


def lines_of(result):
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_commands_start_a_new_line_after_guest_output(tmp_path):
    path = str(tmp_path / "f.rec")
    kernel = ("-k", "teaching/amd64")
    assert lines_of(run("kinst", "call", *kernel, CALL)) == [
        "half a line", f"{CALL} returned (void)"]
    found = lines_of(run("kinst", "call", *kernel, CALL, "--record", path))
    assert found[0] == "half a line" and found[1].startswith("recorded ") and found[2:] == [
        f"{CALL} returned (void)"]
    found = lines_of(run("kinst", "replay", path))
    assert found[0] == "half a line" and found[1].startswith("at instruction")
    found = lines_of(run("kinst", "boot", *kernel, "--digest"))
    assert found[-3] == "teaching> " and found[-2].startswith("digest ")


@pytest.mark.parametrize("options", [(), ("-q",)])
def test_trace_rows_start_a_new_line_after_guest_output(options, tmp_path):
    call = 'cnputs("one"); strlen("x"); cnputs("two"); strlen("yy")'
    words = (*options, "-k", "teaching/amd64", "-c", call)
    for program in ("fbt::strlen:entry { trace(arg0 != 0); }", "fbt::strlen:entry"):
        status, out, said = command(*words, "-n", program)
        assert status == 0, said
        # The rows of a D program are printed later than the guest's output.
        mine = {"one", "two", "onetwo"}
        assert mine.intersection(out.splitlines())
        assert not any("one" in line or "two" in line for line in out.splitlines()
                       if line not in mine and not line.startswith(call))
    path = tmp_path / "out"
    status, out, said = command(*words, "-n", "fbt::strlen:entry", "-o", str(path))
    assert status == 0 and not out and mine.intersection(path.read_text().splitlines()), said


def test_errors_start_a_new_line_after_guest_output():
    # Both streams go to one pipe, as on a terminal.
    for words in (["call", 'cnputs("half"); panic("x")'], ["boot", "--type", "x"]):
        done = subprocess.run([sys.executable, "-m", "kinst_emu.commands.kinst", words[0], "-k",
                               "teaching/amd64", *words[1:]],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        assert done.stdout.splitlines()[-1].startswith("kinst: "), done.stdout
