"""Tests that quiz pages mark answers correctly in the browser and do not reveal any answer."""

import itertools
import json
import re

import pytest

from images import catalog
from images.boots import booted
from kinst_emu.learn.quiz.marked_page import (
    RIGHT,
    ROUNDS,
    SHOW,
    SHOWN_ROUNDS,
    WRONG,
    key,
    marked_page,
    opened,
    seal,
)
from kinst_emu.learn.quiz.marking import mark
from kinst_emu.learn.quiz.questions import questions
from tests.browser import CHROMIUM, Shown, parse_errors
from tests.conftest import MEMORY
from tests.kinst_emu.commands.test_front import refused, run

LEVELS = (1, 2, 6, 3, 4, 5)
browsing = pytest.mark.skipif(CHROMIUM is None,
                              reason="Chromium is not installed: apt-get install chromium")


def asked(arch, count=8, seed=3):
    machine = booted(catalog.find(f"teaching/{arch}"), MEMORY)
    return list(itertools.islice(questions(machine, seed, None, LEVELS), count))


def normal(answer):
    return answer if isinstance(answer, str) else str(answer)


def test_each_sealed_text_opens_only_with_its_answer(arch):
    found = asked(arch)
    text = marked_page("title", "about", found, 1)
    sealed = json.loads(re.search(r'id="sealed">(.*?)</script>', text).group(1))
    for question, one in zip(found, sealed, strict=True):
        for given in (question.answer, *question.mistakes, "nothing", 12345):
            made = key(one["salt"], normal(given), ROUNDS)
            said = [content for box in one["boxes"] if (content := opened(box, made))]
            if given == question.answer:
                assert said == [RIGHT + mark(question, question.shown).said.encode()]
            elif given in question.mistakes:
                assert said == [WRONG + f"No. {question.mistakes[given]}".encode()]
            else:
                assert said == []
        shown = opened(one["shown"], key(one["salt"], SHOW, SHOWN_ROUNDS)).decode()
        assert question.shown in shown and question.why in shown


def test_the_page_source_contains_no_answers(arch):
    found = asked(arch)
    text = marked_page("title", "about", found, 1)
    text = re.sub(r"(?s)<svg.*?</svg>", "", text)  # pictures may show addresses of other questions
    for question in found:
        assert question.why not in text
        assert not any(said in text for said in question.mistakes.values())
        if isinstance(question.answer, int) and question.level in (2, 3, 4):
            shown = f"{question.answer:#x}"
            assert shown in " ".join(question.text) or shown not in text, question
    word = next(one for one in found if one.level == 6)
    assert word.picture and "word" in word.text[-1]
    at = re.search(r"at (0x[0-9a-f]+)\?", word.text[-1]).group(1)
    assert f'data-address="{at[2:]}" data-value=""' in word.picture
    name = re.search(r"the frame's (\w+)", word.why).group(1)
    assert f"{name} = {word.answer:#x}" in " ".join(word.text)


def test_any_content_can_be_sealed_and_opened():
    for content in (RIGHT, WRONG + b"x" * 31, RIGHT + "\u2192 \u00e9".encode() * 50):
        made = key("salt", "7", 3)
        assert opened(seal(content, made), made) == content
        assert opened(seal(content, made), key("salt", "8", 3)) is None


@browsing
def test_the_page_marks_answers_in_a_browser(tmp_path):
    found = asked("riscv64")
    path = tmp_path / "quiz.html"
    path.write_text(marked_page("title", "about", found, 1))
    assert not parse_errors(path)
    said = """(function (n) { return document.querySelectorAll('form')[n]
      .querySelector('[role=status]').textContent; })(%d)"""

    def give(page, number, given):
        page.value(f"""(function () {{ var form = document.querySelectorAll('form')[{number}];
          form.elements.answer.value = {json.dumps(given)}; form.requestSubmit(); }})()""")
        return page.value(said % number)

    with Shown(path, 1280) as page:
        for number, question in enumerate(found):
            assert give(page, number, "x").startswith("That is not")
            for wrong, why in question.mistakes.items():
                given = wrong if isinstance(wrong, str) else hex(wrong)
                assert give(page, number, given) == f"No. {why}"
            if isinstance(question.answer, int):
                assert give(page, number, "1234567") in ("No. Try again.", "That is not "
                                                         f"a {question.bits}-bit number, like "
                                                         "0x1f or 31.")
                signed = question.answer - (1 << question.bits) * (
                    question.answer >> question.bits - 1)
                assert give(page, number, str(signed)).startswith("Right.")
            assert give(page, number, question.shown) == mark(question, question.shown).said
        score = page.value("document.getElementById('score').textContent")
        assert score == f"{len(found)} of {len(found)} right, 0 unanswered"
    for width in (360, 1920):
        with Shown(path, width, width == 1920) as page:
            page.click(".show")
            assert found[0].shown in page.value(said % 0)
            assert give(page, 0, found[0].shown).startswith("Right.")
            assert page.value("document.getElementById('score').textContent").startswith("0 of")
            axe = page.axe()
            assert not axe["violations"] and not axe["wide"], axe


def test_the_quiz_command_writes_the_page(tmp_path):
    page = tmp_path / "quiz.html"
    done = run("kinst", "quiz", "--arch", "arm64", "--page", str(page), "--questions", "3",
               "--memory", "64M")
    assert done.returncode == 0 and done.stdout == "" and page.read_text().count("<form>") == 3
    refused(run("kinst", "quiz", "--page", str(page), "--sheet", "3"),
            "cannot be combined with --sheet")
    refused(run("kinst", "quiz", "--page", str(tmp_path / "no" / "x.html")), "--page")
