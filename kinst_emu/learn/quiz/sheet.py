"""A sheet of questions for a class, and the answers behind them, as a page."""

from collections.abc import Sequence

from kinst_emu.learn.quiz.questions import Question
from kinst_emu.report.page_file import page


def sheet(title: str, about: str, questions: Sequence[Question]) -> str:
    """:param about: a sentence below the title."""
    return page("sheet.html", title, about, questions=questions)
