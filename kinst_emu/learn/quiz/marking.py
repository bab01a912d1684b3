"""Grading of answers to quiz questions."""

from dataclasses import dataclass

from kinst_emu.learn.quiz.questions import WORDS, Question

MAX_LENGTH = 80  # maximum length of an answer in characters


@dataclass(frozen=True)
class Mark:
    """Grade of an answer.

    :param said: response to the learner.
    """

    right: bool
    said: str


def mark(question: Question, given: str) -> Mark:
    """Grade an answer to a question.

    Numbers are decimal or hexadecimal and may be negative; words may be abbreviated.
    """
    read = _read(question, given)
    if read is None:
        return Mark(False, f"That is not {wanted(question)}. The answer is {question.shown}. "
                           f"{question.why}")
    if read == question.answer:
        return Mark(True, f"Right. {question.why}")
    mistake = question.mistakes.get(read, "")
    return Mark(False, " ".join(part for part in (
        "No.", mistake, f"The answer is {question.shown}.", question.why) if part))


def readable(question: Question, given: str) -> bool:
    """Return whether the input is a possible answer to the question."""
    return _read(question, given) is not None


def wanted(question: Question) -> str:
    """Return a description of the possible answers to a question."""
    return (f"one of {', '.join(WORDS)}" if isinstance(question.answer, str)
            else f"a {question.bits}-bit number, like 0x1f or 31")


def _read(question: Question, given: str) -> int | str | None:
    given = given.strip().lower()[:MAX_LENGTH]
    if isinstance(question.answer, str):
        matches = [word for word in WORDS if given and word.startswith(given)]
        return matches[0] if len(matches) == 1 else None
    digits = given.replace("_", "")
    try:
        value = int(digits, 16 if digits.lstrip("-").startswith("0x") else 10)
    except ValueError:
        return None
    if not -(1 << question.bits - 1) <= value < 1 << question.bits:
        return None
    return value & (1 << question.bits) - 1
