"""Tests of ``--plot``, which draws charts of aggregations."""

import re
import subprocess
import sys

import pytest

from tests.dtrace.programs import command, run

PROGRAM = """
    BEGIN { @n["one"] = count(); @n["t$w_o"] = sum(5); @q = quantize(9); @q = quantize(-70);
            @l["key"] = lquantize(3, 0, 10);
            @l["key"] = lquantize(-3, 0, 10); }
    tick-1ms { @heat[timestamp / 1000000] = lquantize(timestamp / 1000000 % 7, 0, 7); }
    tick-20ms { exit(0); }"""


def drawn(path, program):
    return run("-q", "--plot", str(path), "-n", program.replace("@n[\"t$w_o\"] = sum(5);",
                                                                '@m["t$w_o"] = sum(5);'))


def test_each_kind_of_aggregation_is_drawn(tmp_path):
    path = tmp_path / "trace.svg"
    status, out, said = drawn(path, PROGRAM)
    assert status == 0 and not said and "one" in out  # the text is still printed
    text = path.read_text()
    assert text.startswith("<?xml") and "</svg>" in text
    for comment in ("@n = count()", "@m = sum()", "@q = quantize()", "@l = lquantize() key",
                    "@heat = lquantize() over time", "t$w_o", "-64", "-16", "below"):
        assert f"<!-- {comment}" in text, comment


@pytest.mark.parametrize(("key", "texts"), [
    ("timestamp", ("4 ms", "10 ms", "since 1 ms")),
    ("timestamp - 1000000", ("4 ms", "10 ms", "since 0 ns")),
    ("timestamp / 1000", ("4 ms", "10 ms", "since 1 ms")),
    ("(int)(timestamp / 1000000)", ("4 ms", "10 ms", "since 1 ms")),
    ("timestamp * 3", ("key, counted from 3000000",))])
def test_a_time_axis_shows_its_unit(tmp_path, key, texts):
    path = tmp_path / "trace.svg"
    status, _out, said = drawn(path, f"tick-1ms {{ @heat[{key}] = quantize(7); }} "
                               "tick-12ms { exit(0); }")
    assert status == 0 and not said
    for words in texts:
        assert f"<!-- {words} -->" in path.read_text(), words


def test_equal_traces_produce_equal_pictures(tmp_path):
    for name in ("a.svg", "b.svg"):
        assert drawn(tmp_path / name, PROGRAM)[0] == 0
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes() != b""


def test_a_png_file_has_png_contents(tmp_path):
    drawn(tmp_path / "trace.png", PROGRAM)
    assert (tmp_path / "trace.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("program", "keys"), [
    ('BEGIN { @[timestamp ? "yes" : "no"] = quantize(1); @["x"] = quantize(2); exit(0); }',
     ["no", "x"]),
    ('''BEGIN { @[strjoin("a", lltostr(timestamp))] = quantize(1); @["\u65e5"] = quantize(1);
             exit(0); }''', ["a0", "\u65e5"]),
    ("tick-1ms { @[timestamp] = quantize(1); } tick-5ms { clear(@); exit(0); }",
     [f"{n}000000" for n in range(1, 6)])])
def test_keys_without_times_and_cleared_counts_are_drawn(tmp_path, program, keys):
    status, _out, said = drawn(tmp_path / "trace.svg", program)
    text = (tmp_path / "trace.svg").read_text()
    assert status == 0 and not said
    assert re.findall(r"<!-- @ = quantize\(\) (\S+) -->", text) == keys


def test_a_plot_without_aggregations_shows_a_message(tmp_path):
    status, _out, _said = drawn(tmp_path / "trace.svg", "BEGIN { exit(3); }")
    assert status == 3 and "nothing was aggregated" in (tmp_path / "trace.svg").read_text()


@pytest.mark.parametrize("path, says", [
    ("trace.pdf", ".svg or .png"), ("trace", ".svg or .png"),
    ("no/trace.svg", "does not exist")])
def test_an_invalid_plot_path_is_refused_before_the_trace(tmp_path, path, says):
    status, out, said = command("--plot", str(tmp_path / path), "-n",
                                'BEGIN { printf("ran"); exit(0); }')
    assert status == 1 and says in said and "ran" not in out and "Traceback" not in said


def test_a_missing_plot_dependency_is_named():
    code = ("import sys; sys.modules['matplotlib'] = None\n"
            "from kinst_emu.cli.script import trace\n"
            "trace(['--plot', 'x.svg', '-n', 'BEGIN{exit(0);}'])")
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                           check=False)
    assert "--plot needs packages that are not installed; run: " in found.stderr
    assert "matplotlib" in found.stderr.splitlines()[-1]
