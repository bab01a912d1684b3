"""Tests that pages are valid HTML, accessible, and readable at any width."""

import itertools

import pytest

from images import catalog
from images.boots import booted
from kinst_emu.explain.steps.beside import beside
from kinst_emu.explain.steps.explained import Asked, explain
from kinst_emu.explain.view.page import page, page_beside
from kinst_emu.learn.quiz.questions import questions
from kinst_emu.learn.quiz.sheet import sheet
from tests.browser import CHROMIUM, WIDTHS, checked, measured, parse_errors
from tests.conftest import ARCHES, MEMORY

CLAUSE = '/regs[0] != 1/ { @[probefunc] = count(); printf("<%d>", regs[0]); }'
LARGEST = 400 << 10


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    made = {}
    every = {}
    for arch in ARCHES:
        every[arch] = explain(catalog.find(f"teaching/{arch}"), Asked(
            "strlen:0", 'strlen("hello")', clause=CLAUSE, what_if="share"))
        made[arch] = page(every[arch].title, every[arch].about, every[arch].steps)
    made["beside"] = page_beside("three", "about", ARCHES, beside(
        {arch: one.steps for arch, one in every.items()}))
    machine = booted(catalog.find("teaching/arm64"), MEMORY)
    made["sheet"] = sheet("title", "about", list(itertools.islice(questions(machine, 1, None), 5)))
    paths = []
    for name, content in made.items():
        path = folder / f"{name}.html"
        path.write_text(content)
        paths.append(path)
    return paths


def test_pages_are_valid_html_and_small(pages):
    for path in pages:
        assert not parse_errors(path), path.name
        assert path.stat().st_size < LARGEST
        assert "http://" not in path.read_text() and "https://" not in path.read_text()


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_no_problems_in_the_pages(pages, tmp_path, width):
    # Check each architecture's page at one width, and pages with other layouts at all widths.
    arch = ARCHES[WIDTHS.index(width)]
    for path in (path for path in pages if path.stem in (arch, "beside", "sheet")):
        found = checked(path, width)
        assert found["width"] == width and found["passes"] > 10, (path.name, found)
        assert not found["violations"] and not found["wide"], (path.name, found)


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")
def test_axe_finds_no_problems_between_steps_or_in_dark_mode(pages, tmp_path):
    act = "for (var i = 0; i < 3; i++) document.getElementById('next').click();"
    found = checked(pages[0], 360, act)
    assert not found["violations"] and not found["wide"], found
    found = checked(pages[0], 1280, dark=True)
    assert not found["violations"], found


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")
def test_axe_finds_a_missing_language(pages, tmp_path):
    broken = tmp_path / "broken.html"
    broken.write_text(pages[0].read_text().replace('<html lang="en">', "<html>").replace(
        "color: var(--text)", "color: #eee", 1))
    names = {name for name, _nodes in checked(broken, 1280)["violations"]}
    assert "html-has-lang" in names


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")
def test_keys_step_through_the_page_in_a_browser(pages, tmp_path):
    act = """
      function key(k) { document.body.dispatchEvent(new KeyboardEvent('keydown', {key: k,
        bubbles: true})); }
      var seen = [];
      function note() { seen.push(document.querySelectorAll('main > section:not([hidden])').length
        + ':' + document.getElementById('at').textContent); }
      note(); key('n'); note(); key('ArrowRight'); note(); key('p'); note(); key('a'); note();
      document.title = seen.join('|');
    """
    shown = checked(pages[0], 1280, act)["shown"].split("|")
    count = shown[0].split(":")[0]
    assert shown == [f"{count}:all {count} steps", f"1:step 1 of {count}", f"1:step 2 of {count}",
                     f"1:step 1 of {count}", f"{count}:all {count} steps"]


# Find scrolling regions, which screenshots and printed pages cut off.
CUT = """
  return Array.prototype.filter.call(document.querySelectorAll('.scroll'), function (region) {
    return region.scrollWidth > region.clientWidth; }).map(function (region) {
      return [region.getAttribute('aria-label'), region.scrollWidth, region.clientWidth]; });
"""
# Find overlapping links in the table of contents, including their numbers.
COLLISIONS = """
  var items = Array.prototype.map.call(document.querySelectorAll('nav ol li'), function (item) {
    var size = parseFloat(getComputedStyle(item).fontSize), text = document.createRange();
    text.selectNodeContents(item);
    return Array.prototype.map.call(text.getClientRects(), function (rect) {
      return {left: rect.left - 2 * size, right: rect.right, top: rect.top + 2,
        bottom: rect.bottom - 2}; }); });
  var found = [];
  items.forEach(function (one, i) { items.slice(i + 1).forEach(function (two, j) {
    one.forEach(function (a) { two.forEach(function (b) {
      if (a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom) {
        found.push([i, i + 1 + j]); } }); }); }); });
  return [items.length, found];
"""
# Count the columns of each step.
COLUMNS = """
  return Array.prototype.map.call(document.querySelectorAll('div.beside'), function (row) {
    return new Set(Array.prototype.map.call(row.children, function (one) {
      return Math.round(one.getBoundingClientRect().left); })).size; });
"""


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")
@pytest.mark.parametrize("width", [1280, 1920])
def test_nothing_is_cut_off_on_a_wide_screen(pages, tmp_path, width):
    for path in pages:
        assert measured(path, width, CUT) == [], path.name


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")
@pytest.mark.parametrize("width", WIDTHS)
def test_links_in_the_table_of_contents_do_not_overlap(pages, tmp_path, width):
    for path in pages:
        count, found = measured(path, width, COLLISIONS)
        assert found == [] and (count > 5 or path.stem == "sheet"), path.name


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")
def test_architectures_are_side_by_side_on_wide_screens(pages, tmp_path):
    (path,) = (path for path in pages if path.stem == "beside")
    shown = {width: measured(path, width, COLUMNS) for width in WIDTHS}
    assert set(shown[360]) == {1}
    assert set(shown[1280]) <= {1, 3} and shown[1280].count(3) > len(shown[1280]) // 2
    assert set(shown[1920]) == {3}
