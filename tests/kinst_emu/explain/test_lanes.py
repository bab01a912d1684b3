"""Tests of lanes: still and animated pictures of runs that follow a schedule."""

import html
import re

import pytest

from images import catalog
from kinst_emu.explain.view.film import film
from kinst_emu.explain.view.lane_scenes import BEGIN, END, ROWS, LaneRow, lane_pictures
from kinst_emu.explore.exploration import Runs
from kinst_emu.explore.two_runs import NAMES, played_runs, runs_page
from tests.browser import CHROMIUM, Shown, parse_errors
from tests.conftest import MEMORY
from tests.kinst_emu.commands.test_commands import run
from tests.kinst_emu.explain.pictured import values_in, whole

SCHEDULE = "A37 B A"


@pytest.fixture(scope="module")
def image():
    return catalog.find("races/amd64")


@pytest.fixture(scope="module")
def played(image):
    runs = Runs(('strlen("abc")', 'strlen("defgh")'), probes=("strlen:0", "strlen:1"))
    return list(played_runs(image, runs, SCHEDULE, MEMORY, None))


def drawn(pictures, number):
    """Return the texts of each lane and of the shared pane at a moment."""
    svg = pictures.svg(number)
    panes = re.findall(r'<g class="pane[^>]*data-pane="(\w+)"', svg)
    found = {}
    for name in panes:
        part = re.search(rf'(?s)data-pane="{name}"(.*?)(?=<g class="pane|<g class="arr)', svg)
        texts = re.findall(r"<text[^>]*>([^<]*)</text>", part.group(1))[1:]
        found[name] = [html.unescape(text) for text in texts if text]
    return found


def test_each_row_is_in_the_lane_of_its_run_and_recent_rows_are_visible():
    rows = [LaneRow(n % 2, (f"does {n}",), (("word", f"{n:#x}"),)) for n in range(30)]
    pictures = lane_pictures(["A  f()", "B  g()"], rows, "A gives 1")
    for number in (0, 1, 5, 29):
        first = max(0, number - ROWS + 1)
        assert drawn(pictures, number) == {
            "lane0": [f"does {n}" for n in range(first, number + 1) if n % 2 == 0],
            "lane1": [f"does {n}" for n in range(first, number + 1) if n % 2],
            "shared": ["word", f"{number:#x}"]}
    assert "A gives 1" in drawn(pictures, 30)["lane1"]
    assert [(at, step.name) for at, step in pictures.steps] == [(0, BEGIN), (30, END)]


def test_an_arrow_points_to_the_run_that_continues():
    pictures = lane_pictures(["A", "B"], [LaneRow(run, ("x",)) for run in (0, 0, 1, 0)], "end")
    arrows = [re.findall(r'class="arrow" d="([^"]+)"', pictures.svg(n)) for n in range(4)]
    assert [len(one) for one in arrows] == [0, 0, 1, 1]


def test_animated_and_still_pictures_show_the_same(played):
    for one in played:
        pictures = one.pictures()
        found = film(pictures)
        values = values_in(found.first)
        for number, change in enumerate(found.changes):
            for place, string in zip(change[::2], change[1::2], strict=True):
                values[found.places[place]] = found.strings[string]
            assert values == values_in(whole(pictures, number))


def test_a_shared_trampoline_holds_the_other_threads_instruction(played):
    own, shared = played
    assert own.outcome == "A returns 0x3; B returns 0x5" and "panics" in shared.outcome
    (wrong,) = [n for n, row in enumerate(shared.rows) if "instead of 'push rbp'" in row.text]
    assert drawn(shared.pictures(), wrong)["shared"] == ["the trampoline", "mov rbp, rsp"]
    right = next(n for n, row in enumerate(own.rows) if n > 5 and row.run == 0)
    assert drawn(own.pictures(), right)["shared"] == [
        "A's trampoline", "push rbp", "B's trampoline", "mov rbp, rsp"]


def test_the_page_shows_both_kinds_of_trampoline_and_is_valid_html(played, image, tmp_path):
    path = tmp_path / "runs.html"
    path.write_text(runs_page(image, SCHEDULE, played))
    assert not parse_errors(path)
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with Shown(path, 1280) as one:
        titles = """Array.from(document.querySelectorAll('.stages h3')).map(function (one) {
          return one.textContent; })"""
        for _ in range(3):
            one.press(".")
        assert [text.split(":")[0] for text in one.value(titles)] == list(NAMES)
        assert all("= push rbp" in text for text in one.value(titles)), one.value(titles)
        one.press("n")
        one.press("n")
        assert "panics" in one.value(titles)[1]
        found = one.axe()
        assert not found["violations"] and not found["wide"], found


def test_failing_schedules_are_played_on_their_page(tmp_path):
    path = tmp_path / "explored.html"
    result = run("kinst", "explore", "-k", "races/amd64", "--setup", "purse_reset()", "--run",
                 "purse_move_bad()", "--run", "purse_move_bad()", "--check", "purse_check()",
                 "--html", str(path))
    assert path.is_file(), result.stderr
    assert not parse_errors(path)
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with Shown(path, 1280) as one:
        one.press(".")
        caption = one.value("document.getElementById('told').textContent")
        assert caption.startswith("2 of ") and "purse_one is 0xa" in caption
        found = one.axe()
        assert not found["violations"] and not found["wide"], found
