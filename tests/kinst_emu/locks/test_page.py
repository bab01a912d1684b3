"""Tests of the page of ``kinst locks``, as rendered by a browser."""

import pytest

from dtrace.flow.lock_events import Holding, Lock
from kinst_emu.locks.page import page
from kinst_emu.locks.report import orders
from tests.browser import CHROMIUM, Shown, parse_errors

pytestmark = pytest.mark.skipif(CHROMIUM is None,
                                reason="Chromium is not installed: apt-get install chromium")
A, B = Lock(0x1000, "mutex", "<proc>"), Lock(0x2000, "sx", "tree")
NAMES = {1: "init", 2: "cat"}
ROWS = """[...document.querySelectorAll('#rows tr')].map(
  row => [...row.children].map(cell => cell.textContent.trim()))"""
CHOSEN = "document.getElementById('chosen').innerText"


def holdings():
    return [
        Holding(A, 1, False, 10, 1010, (0x10,), 0, 40, 300),
        Holding(B, 1, True, 20, 1020, (0x20,), 0, 30, 100, within=(A,)),
        Holding(B, 2, False, 50, 1500, (0x30,), 250, None, 500, released_where=()),
        Holding(A, 2, False, 60, 1600, (0x40,), 0, 70, 5, within=(B,), releaser=2),
        Holding(A, 2, True, 65, 1602, (0x40,), 0, 70, 3, changed=True),
        Holding(A, 1, False, None, 1000, (), 0, 5, 5)]


def where(places):
    return f"f{places[0]:x} file.c:{places[0]}" if places else ""


def test_an_unknown_address_is_said_to_be_unknown(tmp_path):
    path = tmp_path / "locks.html"
    rows = [Holding(Lock(None, "mutex", "far", 0x18), 1, False, 10, 1010, (0x10,), 0, 40, 300)]
    path.write_text(page("Locks", "About", rows, NAMES, where, [], 1000, 2000, ""))
    with Shown(path, 1280) as shown:
        shown.wait_for("view.ready")
        assert ["at an unknown address" in " ".join(row) for row in shown.value(ROWS)] == [True]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("locks") / "locks.html"
    rows = holdings()
    path.write_text(page("Locks: <test>", "About", rows, NAMES, where, orders(rows), 1000, 2000,
                         '<svg width="10" height="10"></svg>'))
    return path


def test_the_page_has_every_acquisition_in_the_order_of_time(made):
    assert not parse_errors(made)
    with Shown(made, 1280) as shown:
        shown.wait_for("view.ready")
        rows = shown.value(ROWS)
        assert [row[0] for row in rows] == ["0", "10", "20", "500", "600", "602"]
        assert rows[1] == ["10", "init", "mutex <proc> 0x1000", "300", "", "f10 file.c:16"]
        assert rows[2][2] == "sx tree 0x2000 shared" and rows[3][4] == "250"
        assert rows[5][2].endswith("shared, downgraded") and rows[0][5] == "before the window"


def test_the_classes_have_the_sums_of_their_acquisitions(made):
    with Shown(made, 1280) as shown:
        shown.wait_for("view.ready")
        classes = shown.value("""[...document.querySelectorAll('#classes tr')].map(
          row => [...row.children].map(cell => cell.textContent))""")
        assert classes == [["sx tree", "2", "600", "500", "250"],
                           ["mutex <proc>", "2", "313", "300", "0"]]
        shown.click("#heads button")
        assert shown.value("document.querySelector('#classes button').textContent"
                           ) == "mutex <proc>"


def test_an_acquisition_is_selected_in_the_list_and_on_the_time_line(made):
    with Shown(made, 1280) as shown:
        shown.wait_for("view.ready")
        shown.click("#rows tr:nth-child(4) button")
        text = shown.value(CHOSEN)
        assert "sx tree 0x2000: cat" in text and "waiting for 250 ns" in text
        assert "until the end of the window" in text and "no other lock" in text
        at = shown.value("""(([left, right, top, bottom]) => [(left + right) / 2,
          (top + bottom) / 2])(view.boxes.find(box => box[4].number === 1))""")
        shown.click("#line", at)
        assert "mutex <proc> 0x1000: init" in shown.value(CHOSEN)
        for key in ("in", "in", "outer", "whole"):
            shown.click(f"#{key}")
        assert shown.value("document.getElementById('part').textContent") == "0 to 1000 ns"


def test_the_list_is_searched(made):
    with Shown(made, 1280) as shown:
        shown.wait_for("view.ready")
        shown.value("(f => { f.value = 'cat'; f.dispatchEvent(new Event('input')); })("
                    "document.getElementById('filter'))")
        assert {row[1] for row in shown.value(ROWS)} == {"cat"}
        assert shown.value("document.getElementById('found').textContent") == "3"


def test_the_orders_name_the_inversions(made):
    text = made.read_text()
    assert "<svg" in text and "sx tree (both orders)" in text
    assert "&lt;proc&gt;" in text and "<proc>" not in text


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_the_page_fits_and_axe_finds_nothing(made, width, dark):
    with Shown(made, width, dark) as shown:
        shown.wait_for("view.ready")
        found = shown.axe("document.querySelector('#rows button').click()")
        assert not found["violations"] and not found["wide"], found
