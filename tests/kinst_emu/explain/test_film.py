"""Tests that an animated picture matches, at each moment, that moment's still picture."""

import functools
import itertools
import json
import re
import time

import pytest

from images import catalog
from kinst_emu.explain.steps.beside import beside
from kinst_emu.explain.steps.explained import Asked, explain
from kinst_emu.explain.view.film import TEXT, Film, Showing, alone, film, together
from kinst_emu.explain.view.firing_picture import PANES, VIEWS
from kinst_emu.explain.view.layout import box
from kinst_emu.explain.view.page import SPEEDS, page, page_beside
from kinst_emu.explain.view.pictures import pictures_of, stills
from tests.browser import CHROMIUM, Shown
from tests.conftest import ARCHES, MEMORY
from tests.kinst_emu.explain.pictured import values_in, whole

CLAUSE = '/regs[0] != 1/ { @[probefunc] = count(); printf("</script><%d>", regs[0]); }'
LARGEST = 430 << 10  # maximum size of a page in bytes
browsing = pytest.mark.skipif(CHROMIUM is None,
                              reason="Chromium is not installed: apt-get install chromium")


@functools.cache
def filmed(arch):
    one = explain(catalog.find(f"teaching/{arch}"), Asked(
        "strlen:0", 'strlen("hello")', clause=CLAUSE, memory=MEMORY))
    pictures = pictures_of(one)
    return one, pictures, film(pictures)


def written(arch, folder):
    one, pictures, found = filmed(arch)
    path = folder / f"{arch}.html"
    path.write_text(page(one.title, one.about, one.steps, pictures.with_data(), alone(found)))
    return path


def values_at(found, number):
    """Return the attributes and texts that the player shows at a moment."""
    values = values_in(found.first)
    for change in found.changes[: number + 1]:
        for place, string in zip(change[::2], change[1::2], strict=True):
            values[found.places[place]] = found.strings[string]
    return values


def test_the_changes_of_a_film_reproduce_every_picture(arch):
    _one, pictures, found = filmed(arch)
    assert len(found.changes) == len(pictures.moments) and found.changes[0] == ()
    for number in range(len(pictures.moments)):
        assert values_at(found, number) == values_in(whole(pictures, number))
        assert number == 0 or found.changes[number]


def shown_in(svg):
    """Return (name, value) for each nonempty text and data attribute of a picture."""
    return [(name, value) for (_number, name), value in values_in(svg).items()
            if (name == TEXT or name.startswith("data-")) and value]


def test_each_step_highlights_its_pane(arch):
    _one, pictures, found = filmed(arch)
    assert [name for _moment, name, _own in found.steps] == [
        step.name for _moment, step in sorted(pictures.steps, key=lambda one: one[0])]
    for moment, name, own in found.steps:
        values = values_at(found, moment)
        for place, string in zip(own[::2], own[1::2], strict=True):
            values[found.places[place]] = found.strings[string]
        assert values == values_in(whole(pictures, moment, name))
        assert "pane about" in values.values() or name == "return"


def test_animated_and_still_pictures_show_the_same(arch):
    _one, pictures, _found = filmed(arch)
    for number in (0, 1, len(pictures.moments) // 2, len(pictures.moments) - 1):
        still = shown_in(re.sub(r"(?s)<style>.*</style>", "", pictures.svg(number)))
        assert still == shown_in(whole(pictures, number))


def test_animated_pages_are_small_and_escape_printed_text(arch, tmp_path):
    path = written(arch, tmp_path)
    text = path.read_text()
    assert path.stat().st_size < LARGEST and text.count("</script>") == 2
    data = re.search(r'<script type="application/json" id="film">(.*?)</script>', text).group(1)
    assert json.loads(data)["films"][0]["steps"] == json.loads(json.dumps(filmed(arch)[2].steps))


STATE = """(function () { var svg = document.querySelector('#player svg');
  return [Number(svg.dataset.moment), document.getElementById('play').textContent,
    document.getElementById('speed').value, document.getElementById('scrub').value,
    document.getElementById('at').textContent, document.getElementById('told').textContent]; })()"""
PICTURE = """(function () { var found = [], svg = document.querySelector('#player svg');
  [svg].concat(Array.from(svg.querySelectorAll('*'))).forEach(function (one) {
    Array.from(one.attributes).forEach(function (a) {
      if (a.name.indexOf('data-') === 0 && a.name !== 'data-box' && a.name !== 'data-place'
          && a.value) { found.push(a.name + '=' + a.value); } });
    if (!one.children.length && one.textContent) { found.push(one.textContent); } });
  return found; })()"""


def held(page_shown, pictures, number, step=""):
    """Assert that the browser shows the recorded picture of a moment."""
    expected = [value if name == TEXT else f"{name}={value}" for name, value in shown_in(
        whole(pictures, number, step))
        if name not in ("data-place",)]
    assert page_shown.value(PICTURE) == expected


@pytest.fixture
def shown(tmp_path):
    with Shown(written("amd64", tmp_path), 1280) as one:
        yield one


@browsing
def test_every_player_control_works_with_the_mouse(shown):
    pictures, found = filmed("amd64")[1:]
    last = len(pictures.moments) - 1
    held(shown, pictures, 0, found.steps[0][1])
    for button, moment in (("forward", 1), ("forward", 2), ("back", 1), ("back", 0), ("back", 0)):
        shown.click(f"#{button}")
        assert shown.value(STATE)[0] == moment
        held(shown, pictures, moment)
    shown.click("#scrub")  # click the middle of the slider
    middle = shown.value(STATE)
    assert abs(middle[0] - last / 2) < 2 and middle[3] == str(middle[0] + 1)
    held(shown, pictures, middle[0])
    shown.click("#next")
    state = shown.value(STATE)
    assert state[0] == found.steps[0][0] and state[4].startswith("step 1 of")
    shown.click("#next")
    assert shown.value(STATE)[0] == found.steps[1][0]
    held(shown, pictures, *found.steps[1][:2])
    shown.click("#previous")
    assert shown.value(STATE)[0] == found.steps[0][0]
    shown.click("#all")
    shown.click("#play")
    assert shown.value(STATE)[1] == "Pause (space)"
    shown.wait_for(f"({STATE})[0] > 1")
    shown.click("#play")
    stopped = shown.value(STATE)
    assert stopped[1] == "Play (space)" and "is about to be executed" in stopped[5]
    time.sleep(0.7)
    assert shown.value(STATE) == stopped, "a paused player shows another moment"
    shown.click("#whole")
    shown.wait_for("document.fullscreenElement && document.fullscreenElement.id === 'player'")
    shown.click("#whole")
    shown.wait_for("!document.fullscreenElement")


@browsing
def test_every_player_control_works_with_the_keyboard(shown):
    pictures, found = filmed("amd64")[1:]
    last = len(pictures.moments) - 1
    shown.press("End")
    assert shown.value(STATE)[0] == 0, "outside the picture, keys belong to the page"
    shown.value("document.querySelector('#stage .scroll').focus()")
    for key, moment in ((".", 1), (".", 2), (",", 1), ("End", last), (".", last), ("Home", 0),
                        (",", 0)):
        shown.press(key)
        assert shown.value(STATE)[0] == moment, key
        held(shown, pictures, moment)
    keys = [("n", number) for number in range(len(found.steps))]
    for key, step in (*keys, ("p", -2), ("ArrowLeft", -3), ("ArrowRight", -2)):
        shown.press(key)
        assert shown.value(STATE)[0] == found.steps[step][0], key
        held(shown, pictures, *found.steps[step][:2])
    shown.press("a")
    for key, speed in ((">", "4"), (">", "8"), ("<", "4")):
        shown.press(key)
        assert shown.value(STATE)[2] == speed
    for _ in SPEEDS:
        shown.press("<")
    assert shown.value(STATE)[2] == str(SPEEDS[0])
    for _ in SPEEDS:
        shown.press(">")
    assert shown.value(STATE)[2] == str(SPEEDS[-1])
    shown.press(" ")
    assert shown.value(STATE)[1] == "Pause (space)"
    shown.wait_for(f"({STATE})[1] === 'Play (space)'")
    assert shown.value(STATE)[0] == last, "playing stops at the end"
    held(shown, pictures, last)
    shown.press(" ")
    shown.wait_for(f"({STATE})[0] > 0 && ({STATE})[0] < {last}")
    shown.press(" ")
    assert shown.value(STATE)[1] == "Play (space)"
    shown.press("f")
    shown.wait_for("document.fullscreenElement && document.fullscreenElement.id === 'player'")
    shown.press("f")
    shown.wait_for("!document.fullscreenElement")
    shown.press("Tab")  # a focused control handles its own keys
    shown.value("document.getElementById('scrub').focus()")
    before = shown.value(STATE)[0]
    shown.press("ArrowLeft")
    assert shown.value(STATE)[0] == before - 1
    shown.press("Home")
    assert shown.value(STATE)[0] == 0
    shown.value("document.getElementById('forward').focus()")
    shown.press(" ")
    assert shown.value(STATE)[:2] == [1, "Play (space)"]


@browsing
def test_focus_moves_when_the_focused_element_is_hidden(shown):
    shown.press("n")
    shown.press("n")
    assert shown.value("document.activeElement.id") == "patch-title"
    for _ in range(6):
        shown.press(".")
    assert shown.value("document.activeElement.id") == "play"


@browsing
def test_links_and_full_screen_work_in_an_embedded_frame(tmp_path):
    from kinst_emu.notebook.html import framed

    outer = tmp_path / "notebook.html"
    outer.write_text("<!DOCTYPE html><title>NOTEBOOK</title>"
                     + framed(written("amd64", tmp_path).read_text(), "x", 900).replace(
                         "allow-scripts", "allow-scripts allow-same-origin"))
    inside = "document.querySelector('iframe').contentDocument"
    with Shown(outer, 1280) as one:
        one.value(f"{inside}.querySelectorAll('nav li a')[4].click()")
        time.sleep(0.3)
        assert one.value(f"{inside}.querySelectorAll('section.step').length") > 5
        assert one.value(f"{inside}.activeElement.id") == "frame-title"
        assert one.value(f"{inside}.fullscreenEnabled") is True


def test_the_stack_pane_alone_marks_the_stack_pointer(arch):
    _one, pictures, _found = filmed(arch)
    for _moment, step in pictures.steps:
        number = pictures.scenes.moment_of(step.name)
        sp = pictures.moments[number].sp
        marked = any(word.address == sp for word in pictures.moments[number].stack)
        assert ("sp\N{BLACK RIGHT-POINTING TRIANGLE}" in pictures.of_step(
            step.name, "stack")) == marked, step.name


def test_a_clause_may_contain_any_character(arch):
    one = explain(catalog.find(f"teaching/{arch}"), Asked(
        "strlen:0", 'strlen("hello")', clause='{ printf("a\x01\x1b\x7f<&\ud800"); }'
        .encode("utf-8", "replace").decode(), memory=MEMORY))
    pictures = pictures_of(one)
    assert len(film(pictures).changes) == len(pictures.moments)
    assert "\N{REPLACEMENT CHARACTER}" in pictures.svg(3)


@browsing
def test_the_displayed_step_follows_the_picture(shown):
    found = filmed("amd64")[2]
    shown.press("n")
    shown.value("document.getElementById('speed').value = 16")
    shown.press(" ")
    shown.wait_for(f"({STATE})[1] === 'Play (space)'")
    (visible,) = shown.value("""Array.from(document.querySelectorAll('section.step')).filter(
      function (one) { return !one.hidden; }).map(function (one) { return one.id; })""")
    assert visible == found.steps[-1][1]
    assert shown.value("document.querySelector('nav a[aria-current]').hash") == f"#{visible}"


@browsing
@pytest.mark.parametrize(("arch", "width", "dark"), [
    ("riscv64", 360, True), ("arm64", 1280, False), ("amd64", 1920, True)])
def test_axe_finds_no_problems_at_the_start_middle_and_end_of_a_film(
        tmp_path, arch, width, dark):
    count = len(filmed(arch)[1].moments)
    with Shown(written(arch, tmp_path), width, dark) as one:
        for number in (0, count // 2, count - 1):
            one.value(f"var s = document.getElementById('scrub'); s.value = {number + 1};"
                      "s.dispatchEvent(new Event('input'))")
            found = one.axe()
            assert not found["violations"] and not found["wide"], (number, found)


@browsing
def test_panes_are_stacked_on_a_phone(tmp_path):
    places = """Array.from(document.querySelectorAll('#player .edge')).map(function (one) {
      var box = one.getBoundingClientRect();
      return [box.left, box.right, box.top, box.bottom]; })"""
    with Shown(written("amd64", tmp_path), 360) as one:
        boxes = one.value(places)
        assert len(boxes) == 6 and all(box[0] >= 0 and box[1] <= 360 for box in boxes)
        assert all(a[3] <= b[2] for a, b in itertools.pairwise(boxes))
        # Arrows, which fit only the wide layout, are hidden; the controls stay visible.
        assert one.value("document.querySelector('#player .arrows').getBoundingClientRect().width"
                         ) == 0
        one.value("document.getElementById('player').scrollIntoView()")
        top, bottom = one.value("""(function () { var box = document.querySelector('.controls')
          .getBoundingClientRect(); return [box.top, box.bottom]; })()""")
        assert 600 < top < bottom <= 900
    with Shown(written("amd64", tmp_path), 1280) as one:
        assert len({round(box[0]) for box in one.value(places)}) == 3


@browsing
def test_reduced_motion_disables_sliding_animations(tmp_path):
    dashes = """new Promise(function (done) { var seen = 0;
      document.getElementById('forward').click();
      (function look(n) { var one = document.querySelector('#player .store, #player .arrow');
        if (one.getAttribute('stroke-dashoffset') > 0) { seen += 1; }
        if (n) { requestAnimationFrame(function () { look(n - 1); }); } else { done(seen); }
      })(10); })"""
    path = written("amd64", tmp_path)
    with Shown(path, 1280) as one:
        assert one.value(dashes) > 0
    with Shown(path, 1280, reduced=True) as one:
        assert one.value(dashes) == 0
        one.press(" ")
        one.wait_for(f"({STATE})[0] > 2")  # playing still advances from picture to picture


@browsing
def test_without_scripts_and_in_print_all_pictures_are_shown(tmp_path):
    visible = """[document.querySelectorAll('.still svg').length,
      Array.from(document.querySelectorAll('.still svg')).filter(function (one) {
        return one.getBoundingClientRect().width > 0; }).length,
      document.getElementById('player').getBoundingClientRect().height]"""
    path = written("amd64", tmp_path)
    with Shown(path, 1280) as one:
        count, seen, height = one.value(visible)
        assert count >= 7 and seen == 0 and height > 100
        one.media("print")
        assert one.value(visible) == [count, count, 0]
    still = tmp_path / "still.html"
    still.write_text(path.read_text().replace("script-src 'unsafe-inline'", ""))
    with Shown(still, 1280) as one:
        assert one.value(visible) == [count, count, 0]


# -- several pictures side by side --------------------------------------------------------------

def with_data(count, **steps):
    return Film("", (), (), ((),) * count, tuple((at, name, ()) for name, at in steps.items()))


def test_one_film_is_shown_moment_by_moment():
    assert alone(with_data(4, a=0, b=2)) == Showing(
        {"": with_data(4, a=0, b=2)}, ((0,), (1,), (2,), (3,)), ((0, "a"), (2, "b")))


def test_films_start_each_step_together_and_shorter_ones_wait():
    films = {"one": with_data(3, a=0, b=1), "two": with_data(5, a=0, b=3, c=3)}
    assert together(films, ["a", "b", "c", "none"]) == Showing(
        films, ((0, 0), (1, 1), (1, 2), (1, 3), (2, 4)), ((0, "a"), (3, "b"), (3, "c")))


@functools.cache
def three():
    found = beside({arch: filmed(arch)[0].steps for arch in ARCHES})
    order = [name for name, _steps in found]
    showing = together({arch: filmed(arch)[2] for arch in ARCHES}, order)
    pictures = {arch: filmed(arch)[1] for arch in ARCHES}
    return page_beside("three", "about", ARCHES, found, stills(pictures, order), showing), showing


def test_every_film_shows_all_its_moments_in_sequence():
    showing = three()[1]
    for number, arch in enumerate(ARCHES):
        seen = [beat[number] for beat in showing.beats]
        assert sorted(set(seen)) == list(range(len(filmed(arch)[1].moments))) and seen == sorted(
            seen)
        for at, name in showing.steps:
            assert filmed(arch)[2].moment_of(name) in (None, seen[at])


def test_a_page_of_three_architectures_stays_small():
    text = three()[0]
    assert len(text.encode()) < LARGEST
    assert text.count('<svg class="picture"') > 3 * 8


@pytest.fixture
def shown_beside(tmp_path):
    path = tmp_path / "three.html"
    path.write_text(three()[0])
    with Shown(path, 1280) as one:
        one.resize(1280, 720)
        yield one


MOMENTS = """Array.from(document.querySelectorAll('#player svg')).map(function (one) {
  return [Number(one.dataset.moment), one.getAttribute('viewBox')]; })"""
ENDS = """[document.querySelector('.stages').getBoundingClientRect(),
  document.querySelector('.controls').getBoundingClientRect()].map(function (box) {
    return [box.top, box.bottom]; }).flat()"""


@browsing
def test_side_by_side_pictures_play_together_and_fit_a_projector(shown_beside):
    one, showing = shown_beside, three()[1]
    names = [name for _at, name in showing.steps]
    assert [moment for moment, _box in one.value(MOMENTS)] == [0, 0, 0]
    for _ in names[:5]:
        one.press("n")
    at = showing.steps[4][0]
    assert names[4] == "frame" and one.value(MOMENTS) == [
        [moment, box(PANES, "stack")] for moment in showing.beats[at]]
    one.press(".")
    assert [moment for moment, _box in one.value(MOMENTS)] == list(showing.beats[at + 1])
    for view in VIEWS:
        one.press("v")
        assert {found for _moment, found in one.value(MOMENTS)} == {box(PANES, *VIEWS[view])}
        seen = one.value("""Array.from(document.querySelectorAll('#player .pane')).filter(
          function (one) { return one.getBoundingClientRect().width > 0; }).map(
          function (one) { return one.dataset.pane; })""")
        assert seen == list(VIEWS[view]) * 3
    one.click("#whole")
    one.wait_for("document.fullscreenElement")
    for _ in showing.steps:
        one.press("p")
    for _ in showing.steps:
        one.press("n")
        top, bottom, controls, end = one.value(ENDS)
        assert 0 <= top < bottom <= controls < end <= 720
    one.press("f")


@browsing
@pytest.mark.parametrize(("width", "dark"), [(360, False), (1920, True)])
def test_axe_finds_no_problems_in_side_by_side_pictures(tmp_path, width, dark):
    path = tmp_path / "three.html"
    path.write_text(three()[0])
    with Shown(path, width, dark) as one:
        for _ in range(6):
            one.press("n")
        found = one.axe()
        assert not found["violations"] and not found["wide"], found


def test_the_views_contain_every_pane_once():
    assert sorted(pane for panes in VIEWS.values() for pane in panes) == sorted(PANES)
