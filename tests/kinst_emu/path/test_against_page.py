"""Tests of the page with two paths, as rendered by a browser."""

import json

import pytest

from tests.browser import CHROMIUM, Shown, checked, parse_errors
from tests.kinst_emu.commands.test_commands import run

pytestmark = pytest.mark.skipif(CHROMIUM is None,
                                reason="Chromium is not installed: apt-get install chromium")
WORDS = {"same": "same", "different": "~ differs", "first": "- first only",
         "second": "+ second only"}
ROWS = """[...document.querySelectorAll('#calls tr')].filter(row => !row.hidden).map(
  row => [...row.children].map(cell => cell.textContent.trim()))"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return the page, and the comparison as JSON."""
    file = tmp_path_factory.mktemp("against") / "both.html"
    words = ("kinst", "path", "-k", "teaching/amd64", "classify(6, 7)", "--of", "classify",
             "--against", "classify(6, 8)", "--sources", "images/teaching")
    done = run(*words, "--html", str(file))
    assert done.returncode == 0 and f"kinst: wrote {file}\n" in done.stderr, done.stderr
    text = run(*words, "--json").stdout
    return file, json.loads(text[text.index("{"):])


def test_the_calls_are_those_of_the_comparison(made):
    file, found = made
    assert not parse_errors(file)
    with Shown(file, 1280) as shown:
        rows = shown.value(ROWS)
        names = [call["name"] for call in found["calls"]]
        assert len(names) > 2 and [row[3].partition(" x")[0] for row in rows] == names
        for row, call in zip(rows, found["calls"], strict=True):
            assert row[:2] == ["" if ns is None else str(ns) for ns in call["ns"]]
            assert row[2] == WORDS[call["match"]]
        shown.click("#differences")
        assert all(row[2] != "same" for row in shown.value(ROWS))
        shown.value("(d => { d.value = 0; d.dispatchEvent(new Event('input')); })("
                    "document.getElementById('depth'))")
        assert len(shown.value(ROWS)) == 1


def test_the_places_where_they_part_have_the_values_of_both(made):
    file, found = made
    with Shown(file, 1280) as shown:
        text = shown.value("document.querySelector('section ol').innerText")
    for place in found["partings"]:
        assert place["function"] in text
        for reason in place["branches"]:
            if reason is not None:
                assert reason["branch"]["instruction"] in text
        for to in place["next"]:
            assert to is None or f"after {to['count']} instructions" in text
    assert "if (n % 2 == 0)" in text and "return account(n);" in text


def test_equal_paths_say_so(tmp_path):
    file = tmp_path / "same.html"
    assert run("kinst", "path", "-k", "teaching/arm64", 'strlen("ab")', "--of", "strlen",
               "--against", 'strlen("ab")', "--html", str(file)).returncode == 0
    assert "Both execute the same instructions." in file.read_text()


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_the_page_fits_and_axe_finds_nothing(made, width, dark):
    found = checked(made[0], width, dark=dark)
    assert not found["violations"] and not found["wide"], found
