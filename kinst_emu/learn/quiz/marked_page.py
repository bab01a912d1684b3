"""A page of questions that marks itself.

What it says to an answer is sealed with that answer: who reads the page's source finds neither the
right one nor what is said to it.  Who calculates can open all of it; it is for learning.
"""

import base64
import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from kinst_emu.learn.quiz.marking import mark, wanted
from kinst_emu.learn.quiz.questions import LEVELS, WORDS, Question
from kinst_emu.report.page_file import page

ROUNDS, SHOWN_ROUNDS = 1_000, 20_000  # of the hash that makes a key; for who wants it shown
RIGHT, WRONG = b"right: ", b"wrong: "  # what an opened box begins with
SHOW = "show"  # the answer of who wants it shown


@dataclass(frozen=True)
class MarkedQuestion:
    """:param boxes: what is said to an answer, sealed with it; ``shown``: sealed with SHOW.
    :param bits: of the number that is wanted; 0: a word is.
    """

    number: int
    level: str
    text: tuple[str, ...]
    picture: str
    words: tuple[str, ...]
    wanted: str
    bits: int
    salt: str
    boxes: tuple[str, ...]
    shown: str


def marked_page(title: str, about: str, questions: Sequence[Question], seed: int) -> str:
    """:param about: a sentence below the title.
    :param seed: of the order of what is sealed.
    """
    found = [_marked(number, one, random.Random(f"{seed} {number}"))
             for number, one in enumerate(questions, 1)]
    data = json.dumps([{"bits": one.bits, "salt": one.salt, "boxes": one.boxes, "shown": one.shown}
                       for one in found])
    return page("quiz.html", title, about, questions=found, data=data,
                rounds=ROUNDS, shown_rounds=SHOWN_ROUNDS)


def _marked(number: int, question: Question, order: random.Random) -> MarkedQuestion:
    salt = order.randbytes(8).hex()
    boxes = [seal(RIGHT + mark(question, question.shown).said.encode(),
                  key(salt, _normal(question.answer), ROUNDS))]
    boxes += [seal(WRONG + f"No. {said}".encode(), key(salt, _normal(given), ROUNDS))
              for given, said in question.mistakes.items()]
    order.shuffle(boxes)
    is_word = isinstance(question.answer, str)
    return MarkedQuestion(
        number, LEVELS[question.level], question.text, question.picture, WORDS if is_word else (),
        wanted(question), 0 if is_word else question.bits, salt, tuple(boxes),
        seal(RIGHT + f"It is {question.shown}. {question.why}".encode(),
             key(salt, SHOW, SHOWN_ROUNDS)))


def _normal(answer: int | str) -> str:
    """As the page makes it of what was typed."""
    return answer if isinstance(answer, str) else str(answer)


def key(salt: str, answer: str, rounds: int) -> bytes:
    """SHA-256, again and again."""
    made = hashlib.sha256(f"{salt} {answer}".encode()).digest()
    for _ in range(rounds):
        made = hashlib.sha256(made).digest()
    return made


def seal(content: bytes, with_key: bytes) -> str:
    """Base64 of the content, each byte changed by the key: by SHA-256 of it and a count."""
    return base64.b64encode(bytes(
        byte ^ mask for byte, mask in zip(content, _stream(with_key, len(content)), strict=True)
    )).decode()


def opened(box: str, with_key: bytes) -> bytes | None:
    """What is in a box; None: it is another one's."""
    sealed = base64.b64decode(box)
    content = bytes(byte ^ mask for byte, mask in zip(sealed, _stream(with_key, len(sealed)),
                                                       strict=True))
    return content if content.startswith((RIGHT, WRONG)) else None


def _stream(with_key: bytes, size: int) -> bytes:
    made = b""
    count = 0
    while len(made) < size:
        made += hashlib.sha256(with_key + count.to_bytes(4, "big")).digest()
        count += 1
    return made[:size]
