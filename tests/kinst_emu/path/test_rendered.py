"""Tests of the page of a path as rendered by a browser."""

import random
import subprocess
import sys

import pytest

from emu.arch.architectures import ARCHITECTURES
from images.recordings import played
from tests.browser import CHROMIUM, Shown
from tests.kinst_emu.commands.test_commands import run
from tests.path_page import READ, Counts, compare

pytestmark = pytest.mark.skipif(CHROMIUM is None,
                                reason="Chromium is not installed: apt-get install chromium")
CALL = 'strtoul("-0x12zz", 0, 16)'
MOMENTS = 50
MOST_BYTES = 500_000


def made(folder, arch):
    """Write the page of the path through a call; return the page and the recording."""
    recording, page = folder / "call.rec", folder / "call.html"
    done = run("kinst", "path", "-k", f"teaching/{arch}", CALL, "--of", "strtoul",
               "--html", str(page), "-o", str(recording), "--sources", "images/teaching")
    assert done.returncode == 0, done.stderr
    return page, recording


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return made(tmp_path_factory.mktemp("path"), "amd64")[0]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_page_shows_what_the_replay_has_at_random_moments(arch, tmp_path):
    page, recording = made(tmp_path, arch)
    player, counts = played(recording, None, 10**9, ()), Counts()
    with Shown(page, 1280) as shown:
        shown.wait_for("window.view")
        count = shown.value("view.path.count")
        generator = random.Random(7)
        for moment in sorted(generator.sample(range(count), min(MOMENTS, count))):
            read = compare(player, shown, moment, counts)
            assert read["place"].split(" ")[0] in read["stack"]
            assert read["calls"]
    assert counts.equal > MOMENTS and counts.registers > 15 * MOMENTS, vars(counts)


def test_steps_go_to_lines_and_back(page):
    with Shown(page, 1280) as shown:
        shown.wait_for("window.view")

        def after(key):
            shown.press(key)
            shown.value("view.render()")
            return tuple(shown.value("[view.t, document.getElementById('place').textContent]"))

        start = shown.value(READ % 0)
        assert start["place"].startswith("strtoul ")
        seen = [after("n") for _ in range(4)]
        assert [t for t, _place in seen] == sorted({t for t, _place in seen})
        assert all(place.startswith("strtoul ") for _t, place in seen)
        back = [after("N") for _ in range(3)]
        assert back == seen[-2::-1]
        t, _place = after("ArrowRight")
        assert t == back[-1][0] + 1
        after("ArrowLeft")
        assert after("o")[0] == shown.value("view.path.count")


def test_step_enters_a_call_and_next_does_not(page):
    with Shown(page, 1280) as shown:
        shown.wait_for("window.view")
        inner = shown.value("view.path.frames.find(f => f.name === 'digit_of').begin")
        shown.value(READ % (inner - 1))
        shown.press("s")
        assert shown.value("view.t") == inner
        assert shown.value("view.frame().name") == "digit_of"
        shown.press("O")
        assert shown.value("view.t") == inner - 1
        shown.press("n")
        assert shown.value("view.t") > inner
        assert shown.value("view.frame().name") == "strtoul"


def test_the_next_visit_of_a_line_is_the_same_line(page):
    with Shown(page, 1280) as shown:
        shown.wait_for("window.view")
        loop = shown.value("[...view.path.visitCount].filter(([line, n]) => line && n > 2)[0][0]")
        first = shown.value(f"view.path.visits.find(t => view.path.lineAt[t] === {loop})")
        shown.value(READ % first)
        shown.press("v")
        later = shown.value("view.t")
        assert later > first and shown.value(f"view.path.lineAt[view.t] === {loop}")
        shown.press("V")
        assert shown.value("view.t") == first


def test_a_register_leads_to_the_instruction_that_set_it(page):
    with Shown(page, 1280) as shown:
        shown.wait_for("window.view")
        end = shown.value("view.path.count")
        shown.value(READ % end)
        number = shown.value(
            "view.path.changeMoments.findIndex(m => m.length > 3 && m[m.length - 1] > 10)")
        when = shown.value(f"view.path.changeMoments[{number}].at(-1)")
        shown.value(f"document.querySelectorAll('#registers .line button')[{number}].click()")
        text = shown.value("document.getElementById('origin').textContent")
        assert f"set by moment {when - 1}:" in text, text
        shown.value("document.querySelector('#origin button').click()")
        assert shown.value("view.t") == when - 1


def test_source_and_instructions_are_both_there(page):
    with Shown(page, 1280) as shown:
        shown.wait_for("window.view")
        assert "strtoul" in shown.value(READ % 0)["stack"]
        assert shown.value("document.querySelector('#code').textContent").count("\n") == 0
        assert "base" in shown.value("document.getElementById('code').textContent")
        shown.click("#show-code")
        shown.value("view.render()")
        assert shown.value("document.querySelectorAll('#code .now').length") == 1
        assert shown.value(READ % 3)["instruction"].split("+")[1].split(" ")[0] in shown.value(
            "document.querySelector('#code .now').textContent")


def test_a_search_finds_functions_lines_and_values(page):
    with Shown(page, 1280) as shown:
        shown.wait_for("window.view")
        place = shown.value(READ % 0)["place"].split(" ")[1]
        for text, least in (("digit_of", 3), (place, 1), ("0x12", 1)):
            shown.value(f"document.getElementById('search').value = {text!r}; view.search()")
            found = shown.value("document.querySelectorAll('#results button').length")
            assert found >= least, (text, found)
        shown.value("document.getElementById('search').value = 'nothing at all'; view.search()")
        assert shown.value("document.getElementById('results').textContent") == "Nothing found."


@pytest.mark.parametrize("width", [390, 1280, 1920])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_accessible_and_as_wide_as_its_window(page, width, dark):
    with Shown(page, width, dark) as shown:
        shown.wait_for("window.view")
        shown.value(READ % 20)
        found = shown.axe()
    assert found["violations"] == [] and not found["wide"], found
    assert page.stat().st_size < MOST_BYTES


WITH_A_LOCK = """
import sys
from kinst_emu.commands import kinst, path
from kinst_emu.path.page import LockSpan
path._locks = lambda *_given: (LockSpan("mutex far", None, False, -1, 3, "f file.c:1"),
                               LockSpan("mutex near", 0x1000, True, 1, 3, "g file.c:2"))
sys.argv = ["kinst", "path", *sys.argv[1:]]
kinst.main()
"""


def test_a_lock_at_an_unknown_address_is_shown_without_one(tmp_path):
    page = tmp_path / "call.html"
    done = subprocess.run(
        [sys.executable, "-c", WITH_A_LOCK, "-k", "teaching/amd64", CALL, "--of", "strtoul",
         "--html", str(page)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    with Shown(page, 1280) as shown:
        shown.wait_for("window.view")
        shown.value(READ % 2)
        text = shown.value("document.getElementById('locks').innerText")
        assert "mutex far at an unknown address, since before the path" in text
        assert "mutex near 0x1000 shared, since moment 1" in text
