"""Printable page of questions for a class, followed by the answers."""

from collections.abc import Sequence

from kinst_emu.learn.quiz.questions import Question
from kinst_emu.report.page_file import page


def sheet(title: str, about: str, questions: Sequence[Question]) -> str:
    """Return the HTML of a sheet of questions and answers.

    :param about: sentence below the title.
    """
    return page("sheet.html", title, about, questions=questions)
