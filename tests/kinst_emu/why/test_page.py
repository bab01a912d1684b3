"""Tests of answers of ``kinst why`` as pages, as rendered by a browser."""

import json
from pathlib import Path

import html5lib
import pytest

from dtrace.reasons.sleeps import Sleep, Wake
from dtrace.stacks.threads import Thread
from emu.replay.inputs import Position
from kinst_emu.why.page import page, parts_of_sleep
from kinst_emu.why.sleeping import Slept, lines
from tests.browser import CHROMIUM, checked
from tests.kinst_emu.commands.test_commands import refused, run

CALL = 'strtoul("7", 0, 10)'
SOURCES = "images/teaching"


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    """Return (page, the answer as JSON, the recording)."""
    folder = tmp_path_factory.mktemp("why")
    recording, file = folder / "call.rec", folder / "why.html"
    assert run("kinst", "record", "-k", "teaching/amd64", "-q", "-o", str(recording), CALL
               ).returncode == 0
    words = ("kinst", "why", str(recording), "--value", "rax", "--sources", SOURCES)
    done = run(*words, "--html", str(file))
    assert done.returncode == 0 and done.stderr == f"kinst: wrote {file}\n", done.stderr
    return file, json.loads(run(*words, "--json").stdout), recording


def test_the_page_has_every_place_of_the_answer_in_the_order_of_execution(answer):
    file, found, recording = answer
    text = file.read_text()
    html5lib.HTMLParser(strict=True).parse(text)
    places = [found["made"], *(one["test"] for one in found["reasons"]), *found["through"]]
    at = [text.index(f"kinst replay {recording} --to {place['count']}")
          for place in sorted(places, key=lambda place: place["count"])]
    assert at == sorted(at) and len(at) > 2
    for place in places:
        assert place["line"] in text and place["function"] in text
    for reason in found["reasons"]:
        for one in reason["compared"]:
            assert one["constant"] or f"<dt>{one['name'] or one['text']}</dt>" in text


def test_the_source_lines_are_those_of_the_file(answer):
    file, found, _recording = answer
    name, _colon, number = found["made"]["line"].rpartition(":")
    line = Path(SOURCES, name).read_text().splitlines()[int(number) - 1]
    assert f'class="at">{int(number):6d}  ' in file.read_text()
    assert line.split(";")[0].strip().replace("&", "&amp;").replace("<", "&lt;").replace(
        ">", "&gt;") in file.read_text()


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")
@pytest.mark.parametrize(("width", "dark"), [(390, False), (1280, True)])
def test_the_page_fits_and_axe_finds_nothing(answer, width, dark):
    found = checked(answer[0], width, dark=dark)
    assert not found["violations"], found["violations"]
    assert not found["wide"]


def position(count):
    return Position(count, 10 * count)


def test_a_sleep_has_a_part_for_the_sleeper_and_one_for_the_waker(tmp_path):
    thread = Thread(1, 100, "<b>", 7, "cat", 0)
    wake = Wake(position(50), "writer", ())
    sleep = Sleep(thread, position(10), position(60), (), "slept (piperd)", 4096, "piperd", True,
                  wake)
    slept = Slept(1, "cat/<b> slept", sleep, "pipe+0x8", None, ("kernel`pipe_read",), None,
                  ("kernel`pipe_write",))
    text = page(slept.question, list(parts_of_sleep(slept, None)), "")
    html5lib.HTMLParser(strict=True).parse(text)
    assert "cat/&lt;b&gt; slept" in text and "<b>" not in text
    assert text.index("Why it slept on pipe+0x8") < text.index("kernel`pipe_read") < text.index(
        "Woken after 400 ns by writer [50]") < text.index("kernel`pipe_write")
    assert list(lines(slept)) == [
        "cat/<b> slept", "  on pipe+0x8", "    stack", "      kernel`pipe_read",
        "  woken after 400 ns by writer [50]", "    stack", "      kernel`pipe_write"]
    alone = Slept(1, "q", Sleep(thread, position(10), None, (), "slept", 0, "", True, None), "",
                  None, (), None, ())
    assert list(lines(alone)) == ["q", "  nobody woke it in this recording"]


def test_a_page_and_json_exclude_each_other(answer, tmp_path):
    refused(run("kinst", "why", str(answer[2]), "--html", str(tmp_path / "x"), "--json"),
            "--html: cannot be used with --json")
    refused(run("kinst", "why", str(answer[2]), "--html", str(tmp_path / "no" / "x")), "--html")
