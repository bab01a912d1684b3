"""Tests of the page of ``kinst coverage``, as rendered by a browser."""

import json
from collections import Counter
from pathlib import Path

import pytest

from dtrace.flow.coverage import FileLines
from kinst_emu.report.coverage_page import _pieces, page
from tests.browser import CHROMIUM, Shown, parse_errors
from tests.kinst_emu.commands.test_commands import run
from tests.kinst_emu.commands.test_coverage import SOURCES, records

pytestmark = pytest.mark.skipif(CHROMIUM is None,
                                reason="Chromium is not installed: apt-get install chromium")
CALL = 'strlen("hello"); fibonacci(6); strlen("")'
ROWS = """[...document.querySelectorAll('#code > div')].map(row => [
  row.children[0].textContent, row.children[1].textContent, row.childNodes[2].textContent,
  row.className])"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return the page, the coverage file, the summary, and the lines that are new."""
    folder = tmp_path_factory.mktemp("coverage")
    before, info, file = folder / "before.info", folder / "x.info", folder / "x.html"
    assert run("kinst", "coverage", "-k", "teaching/amd64", 'strlen("")', "-o",
               str(before)).returncode == 0
    done = run("kinst", "coverage", "-k", "teaching/amd64", CALL, "-o", str(info), "--html",
               str(file), "--sources", SOURCES, "--against", str(before), "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith(f"kinst: wrote {file}\n")
    summary = json.loads(done.stdout)
    return file, info, summary, {(Path(name).name, line) for name, line in summary["new"]}


def test_the_page_has_the_counts_of_the_coverage_file(made):
    file, info, summary, new = made
    lines, _branches = records(info)
    assert not parse_errors(file)
    with Shown(file, 1280) as shown:
        shown.wait_for("view.ready")
        total = shown.value("document.getElementById('total').textContent")
        for what in ("lines", "functions", "branches"):
            executed, known = summary[what]
            assert f"{executed} of {known} " in total
        names = shown.value("view.data.files.map(file => file.name)")
        assert len(names) == summary["files"] == len(lines)
        for number, name in enumerate(names):
            shown.value(f"location.hash = '#{number}'")
            shown.wait_for(f"document.getElementById('name').textContent === '{name}'")
            rows = shown.value(ROWS)
            base = name.rpartition("/")[2]
            assert {int(at): int(count) for count, at, _text, _kind in rows if count} == lines[base]
            source = (Path(SOURCES) / name).read_text().splitlines()
            for count, at, text, kind in rows:
                assert not text or text == source[int(at) - 1].expandtabs(8)
                assert not count or ("hit" if int(count) else "miss") in kind
                assert ("new" in kind.split()) == ((base, int(at)) in new)
            assert any(text for _count, _at, text, _kind in rows) == any(lines[base].values())


def test_files_and_functions_are_found_and_sorted(made):
    with Shown(made[0], 1280) as shown:
        shown.wait_for("view.ready")
        names = "[...document.querySelectorAll('#files a')].map(a => a.textContent)"
        shown.value("(f => { f.value = 'fibon'; f.dispatchEvent(new Event('input')); })("
                    "document.getElementById('filter'))")
        assert shown.value(names) == ["./lesson.c"]
        shown.value("(f => { f.value = ''; f.dispatchEvent(new Event('input')); })("
                    "document.getElementById('filter'))")
        shown.click("#heads button")
        assert shown.value(names) == sorted(shown.value(names)) and len(shown.value(names)) > 1


def test_the_buttons_go_to_lines(made):
    file, info, _summary, new = made
    lines, _branches = records(info)
    with Shown(file, 1280) as shown:
        shown.wait_for("view.ready")
        number = shown.value("view.data.files.findIndex(f => f.name.endsWith('lesson.c'))")
        shown.value(f"location.hash = '#{number}'")
        shown.wait_for("!document.getElementById('file').hidden")
        for kind, wanted in (("miss", lambda n: not lines["lesson.c"][n]),
                             ("hit", lambda n: lines["lesson.c"][n]),
                             ("new", lambda n: ("lesson.c", n) in new)):
            shown.value("view.line = 0")
            rows = sorted(n for n in lines["lesson.c"] if wanted(n))
            for line in [*rows, rows[0]]:
                shown.click(f"#next-{kind}")
                assert shown.value("document.querySelector('#code .now').id") == f"l{line}"


def test_a_line_number_far_beyond_the_file_takes_no_time():
    found = FileLines(Counter({3: 1, 1 << 60: 1}), Counter({("f", 2): 1, ("g", 1 << 60): 1}))
    text = page({"/a/b.c": found}, None, "", None)
    assert "Coverage" in text
    assert list(_pieces(found, ["1", "2", "3", "4"])) == [(1, "1\n2\n3\n4")]


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1280, True)])
def test_the_page_fits_and_axe_finds_nothing(made, width, dark):
    with Shown(made[0], width, dark) as shown:
        shown.wait_for("view.ready")
        for place in ("", "location.hash = '#0'"):
            found = shown.axe(place)
            assert not found["violations"] and not found["wide"], found
