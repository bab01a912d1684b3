"""Marks answers."""

from dataclasses import dataclass

from kinst_emu.learn.quiz.questions import WORDS, Question

MAX_LENGTH = 80  # characters of an answer


@dataclass(frozen=True)
class Mark:
    """:param said: what is said to who has answered."""

    right: bool
    said: str


def mark(question: Question, given: str) -> Mark:
    """Numbers are decimal or hexadecimal, also negative; words in full, or their first letters."""
    read = _read(question, given)
    if read is None:
        return Mark(False, f"That is not {wanted(question)}. It is {question.shown}. "
                           f"{question.why}")
    if read == question.answer:
        return Mark(True, f"Right. {question.why}")
    overlooked = question.mistakes.get(read, "")
    return Mark(False, " ".join(part for part in (
        "No.", overlooked, f"It is {question.shown}.", question.why) if part))


def readable(question: Question, given: str) -> bool:
    """Whether it is an answer at all."""
    return _read(question, given) is not None


def wanted(question: Question) -> str:
    """What an answer is."""
    return (f"one of {', '.join(WORDS)}" if isinstance(question.answer, str)
            else f"a number of {question.bits} bits, like 0x1f or 31")


def _read(question: Question, given: str) -> int | str | None:
    given = given.strip().lower()[:MAX_LENGTH]
    if isinstance(question.answer, str):
        found = [word for word in WORDS if given and word.startswith(given)]
        return found[0] if len(found) == 1 else None
    digits = given.replace("_", "")
    try:
        value = int(digits, 16 if digits.lstrip("-").startswith("0x") else 10)
    except ValueError:
        return None
    if not -(1 << question.bits - 1) <= value < 1 << question.bits:
        return None
    return value & (1 << question.bits) - 1
