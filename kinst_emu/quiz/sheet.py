"""A sheet of questions for a class, and the answers behind them, as a page."""

from collections.abc import Sequence

from kinst_emu.page_file import page
from kinst_emu.quiz.questions import Question


def sheet(title: str, about: str, questions: Sequence[Question]) -> str:
    """:param about: a sentence below the title."""
    return page("sheet.html", title, about, questions=questions)
