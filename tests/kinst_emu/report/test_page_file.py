"""Tests of the headings and contents of HTML pages, and of when the template engine is loaded."""

import html
import re
import shutil
import subprocess
import sys
from collections import Counter

import pytest

from images import catalog
from kinst.verify.laboratory.encodings import Report
from kinst.verify.laboratory.finding import Finding, unproven
from kinst.verify.trial.verdicts import Example, Verdicts
from kinst_emu.report.relocate_report import Result
from kinst_emu.report.trial_page import page
from tests.browser import CHROMIUM, WIDTHS, checked, measured, parse_errors
from tests.kinst_emu.commands.test_commands import run

NOP, RET, STORE = b"\x90", b"\xc3", bytes.fromhex("48898700000000")
COMMANDS = ("kdtrace", "explain", "quiz", "trial", "trace", "replay")


@pytest.fixture
def trial(tmp_path):
    """Return the page of a trial that has findings of every kind."""
    wrong = Finding(RET, "copy", 3, "copy", "displaced", ("rax: <0> in place, 1 displaced",),
                    source="fasttrap.c:1\nif (a && b)")
    report = Report(Counter({"copy": 1, unproven("copy", "why"): 1}), mismatches=[wrong],
                    unproven={STORE: unproven("copy", "why")})
    result = Result("amd64", 1, {RET: "f+0x1", STORE: "<g>+0x2"}, report, None, "kinst trial -k k")
    verdicts = Verdicts(Counter({"copy": 7}), Counter({"another": 2}),
                        {"another": [Example("h+0x3", NOP, "a<b", "c&d")]}, 5, 1)
    path = tmp_path / "trial.html"
    path.write_text(page(result, verdicts, catalog.find("teaching/amd64")))
    return path


def test_the_page_of_a_trial_shows_its_findings(trial):
    text = trial.read_text()
    assert not parse_errors(trial)
    assert "http://" not in text and "https://" not in text and "<script" not in text
    assert "Content-Security-Policy" in text
    shown = html.unescape(re.sub(r"<[^>]*>", "", text))
    for words in ("Trial of kinst on teaching/amd64",
                  "2 distinct encodings executed through the module, 1 mishandled, 1 unproven",
                  "ret: 1 mishandled", "f+0x1: c3 ret", "state 3",
                  "rax: <0> in place, 1 displaced\nfasttrap.c:1\nif (a && b)\nreproduce: echo c3",
                  "5 functions, 1 excluded by both", "h+0x3: module: a<b; kinst-emu: c&d",
                  "<g>+0x2"):
        assert words in shown, words


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_no_problems_in_the_page_of_a_trial(trial, tmp_path, width):
    found = checked(trial, width)
    assert not found["violations"] and not found["wide"] and found["passes"] > 10, found


def test_a_kernel_is_described_by_its_name_or_its_file(tmp_path):
    known = catalog.find("teaching/arm64")
    assert catalog.described(known) == "teaching/arm64"
    assert catalog.described(catalog.find(str(known.path))) == "teaching/arm64"
    other = tmp_path / "my-kernel"
    shutil.copyfile(known.path, other)
    assert catalog.described(catalog.find(str(other))) == f"{other} for arm64"


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")
@pytest.mark.parametrize("words", [
    ["explain", "-k", "teaching/arm64", "strlen:0", "-c", 'strlen("a")'],
    ["explain", "--arch", "riscv64,arm64", "strlen:0", "-c", 'strlen("a")'],
    ["quiz", "--arch", "arm64", "--sheet", "1"]], ids=lambda words: " ".join(words[:3]))
def test_the_kernel_is_in_the_heading(words, tmp_path):
    path = tmp_path / "page.html"
    assert run("kinst", *words, "--html", str(path)).returncode == 0
    heading, title = measured(path, 1280, "return [document.querySelector('h1')"
                              ".innerText, document.title];")
    assert "teaching/arm64" in heading and heading == title


def test_commands_load_the_template_engine_only_to_write_a_page():
    code = "".join(f"import kinst_emu.commands.{name}\n" for name in COMMANDS) + (
        "import sys\nassert not {'jinja2', 'markupsafe'} & set(sys.modules)")
    subprocess.run([sys.executable, "-c", code], check=True)
