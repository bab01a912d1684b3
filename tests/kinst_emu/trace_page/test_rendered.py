"""Tests of the trace page as rendered by a browser."""

import itertools
import re

import pytest

from kinst_emu.trace_page.collected import Collected
from kinst_emu.trace_page.page import page
from tests.browser import CHROMIUM, WIDTHS, measured
from tests.kinst_emu.commands.test_commands import run

pytestmark = pytest.mark.skipif(CHROMIUM is None,
                                reason="Chromium is not installed: apt-get install chromium")
CALL = 'strtoul("-0x12zz", 0, 16)'
PROGRAM = ('kinst::strtoul: { @q = quantize(probename == "0" ? 1 : 5000); '
           '@l = lquantize(probename == "0" ? -2 : 7, 0, 100, 3); }')
HEAT = """
  var found = {};
  Array.prototype.forEach.call(document.querySelectorAll('details.code tbody tr'), function (row) {
    var mark = row.querySelector('i');
    found[row.className.slice(1)] = getComputedStyle(mark).borderLeftColor; });
  return found;
"""
BARS = """
  return Array.prototype.map.call(document.querySelectorAll('#aggregations ~ .scroll'),
    function (region) { return Array.prototype.map.call(region.querySelectorAll('tbody tr'),
      function (row) { return [row.cells[0].textContent, +row.cells[1].textContent,
        Math.round(row.querySelector('.bar').getBoundingClientRect().width)]; }); });
"""
TIMELINE = """
  function box(node) { var r = node.getBoundingClientRect(); return [r.left, r.right]; }
  function all(selector) { return Array.prototype.slice.call(document.querySelectorAll(selector))
    .filter(function (node) { return getComputedStyle(node).display !== 'none'; }); }
  var timeline = document.querySelector('.timeline');
  return {wide: document.documentElement.scrollWidth > window.innerWidth,
    scrolls: timeline.scrollWidth > timeline.clientWidth, whole: box(timeline),
    names: all('.timeline .name').map(box), strips: all('.timeline svg').map(box),
    cells: all('.timeline path').map(box),
    ticks: all('.axis span').map(function (one) { return [one.textContent].concat(box(one)); })};
"""
FLAMES = """
  return Array.prototype.map.call(document.querySelectorAll('svg.flame g'), function (frame) {
    var r = frame.querySelector('rect').getBoundingClientRect();
    return [frame.dataset.n, r.left, r.right, r.top]; });
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """Write the pages of a D program and of --stack, and return their paths keyed by name."""
    folder = tmp_path_factory.mktemp("rendered")
    for name, words in (("program", ["-n", PROGRAM]), ("stack", ["-n", "kinst::str*:", "--stack"])):
        done = run("kdtrace", "-k", "teaching/amd64", "-q", *words, "-c", CALL, "--report",
                   str(folder / f"{name}.html"))
        assert done.returncode == 0, done.stderr
    return {path.stem: path for path in folder.iterdir()}


def opacity(colour):
    """Return the opacity of a computed color: rgb(), rgba() or color(srgb ...)."""
    numbers = [float(number) for number in re.findall(r"[\d.]+(?:e-?\d+)?", colour)]
    return numbers[3] if len(numbers) == 4 else 1.0


def test_each_heat_of_an_instruction_has_its_own_color(traced, tmp_path):
    colours = measured(traced["stack"], 1280, HEAT)
    heats = sorted(colours, key=int)
    assert len(heats) > 2 and heats[-1] == "9"
    shares = [opacity(colours[heat]) for heat in heats]
    assert shares == sorted(set(shares)) and shares[-1] == 1, colours
    assert shares[0] == (0 if heats[0] == "0" else pytest.approx(0.29))


def test_a_distribution_includes_empty_buckets(traced, tmp_path):
    """A distribution has one empty bucket on either side, as in DTrace."""
    powers, linear = measured(traced["program"], 1280, BARS)
    counted = [False, True, *[False] * 11, True, False]
    assert [int(bound) for bound, _count, _width in powers] == [0, *(1 << n for n in range(14))]
    assert [bool(count) for _bound, count, _width in powers] == counted
    assert [bool(width) for _bound, _count, width in powers] == counted
    assert [bound for bound, _count, _width in linear] == ["below", "0", "3", "6", "9"]
    assert [bool(count) for _bound, count, _width in linear] == [True, False, False, True, False]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_timeline_fits_the_screen(traced, tmp_path, width):
    for path in (*traced.values(), many(tmp_path)):
        found = measured(path, width, TIMELINE)
        assert not found["wide"] and not found["scrolls"], found
        left, right = found["whole"]
        assert 0 <= left < right <= width
        inside = [*found["names"], *found["strips"], *found["cells"],
                  *(box for _text, *box in found["ticks"])]
        assert all(left - 1 <= a <= b <= right + 1 for a, b in inside), found
        assert all(b - a > 200 for a, b in found["strips"])
        ticks = found["ticks"]
        assert len(ticks) == (3 if width == 360 else 5)
        assert all(one[2] < two[1] for one, two in itertools.pairwise(ticks)), ticks


def many(folder):
    """Write the page of a trace of several seconds with very long names."""
    trace = Collected("teaching/amd64", "boot")
    for number in range(30):
        trace.names[number] = f"fbt:kernel:{'a_long_name_' * 8}{number}:entry"
        trace.functions[number] = f"{'a_long_name_' * 8}{number}"
        trace.firing(123_456_789 * number, number)
    path = folder / "many.html"
    path.write_text(page(trace))
    return path


@pytest.mark.parametrize(("first", "span", "texts", "begin"), [
    (30_006_478, 72, ["0 ns", "18.25 ns", "36.5 ns", "54.75 ns", "73 ns"], "30.006478 ms"),
    (30, 20, ["0 ns", "5.25 ns", "10.5 ns", "15.75 ns", "21 ns"], "30 ns"),
    (5_145, 1_999, ["0 us", "0.5 us", "1 us", "1.5 us", "2 us"], "5.145 us"),
    (7, 29_999_999, ["0 ms", "7.5 ms", "15 ms", "22.5 ms", "30 ms"], "7 ns"),
    (2_000_000_000, 3_999_999_999, ["0 s", "1 s", "2 s", "3 s", "4 s"], "2 s")])
def test_the_time_axis_shows_its_unit(tmp_path, first, span, texts, begin):
    trace = Collected("teaching/amd64", "boot", names={0: "fbt:kernel:f:entry"},
                      functions={0: "f"})
    trace.firing(first, 0)
    trace.firing(first + span, 0)
    path = tmp_path / "axis.html"
    path.write_text(page(trace))
    assert [one[0] for one in measured(path, 1280, TIMELINE)["ticks"]] == texts
    assert f"since the first firing, at {begin}." in path.read_text()


def test_flame_graph_frames_are_functions(traced, tmp_path):
    frames = measured(traced["stack"], 1280, FLAMES)
    (bottom,) = (frame for frame in frames if frame[0] == "all")
    (function,) = (frame for frame in frames if frame[0] == "kernel`strtoul")
    assert function[1:3] == pytest.approx(bottom[1:3], abs=1) and function[3] < bottom[3]
    assert not [frame for frame in frames if "+0x" in frame[0]]


ZOOM = """
  var graph = document.querySelector('svg.flame'), all = graph.querySelectorAll('g');
  function width(g) { return +g.querySelector('rect').getAttribute('width'); }
  var last = all[all.length - 1], widths = [width(last)];
  last.dispatchEvent(new MouseEvent('click', {bubbles: true}));
  widths.push(width(last));
  dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}));
  widths.push(width(last));
  return [widths, graph.viewBox.baseVal.width];
"""


def test_a_click_widens_a_frame_to_the_whole_graph(traced, tmp_path):
    (before, zoomed, after), whole = measured(traced["stack"], 1280, ZOOM)
    assert before < zoomed == whole and after == pytest.approx(before, abs=0.1)


def test_the_kernel_is_in_the_heading(traced, tmp_path):
    for path in traced.values():
        heading = measured(path, 1280,
                           "return document.querySelector('h1').innerText;")
        assert "teaching/amd64" in heading
