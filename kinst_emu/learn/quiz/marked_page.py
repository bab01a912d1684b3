"""Quiz page that grades answers in the browser.

The response to each answer is encrypted with that answer, so that the source of the page shows
neither the right answers nor the responses.  This is no protection against somebody who tries all
answers by program; the page is meant for learning.
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

# numbers of hash rounds that derive a key from an answer, and from the word SHOW
ROUNDS, SHOWN_ROUNDS = 1_000, 20_000
RIGHT, WRONG = b"right: ", b"wrong: "  # prefixes of decrypted responses
SHOW = "show"  # word with which the solution is encrypted, for learners who ask for it


@dataclass(frozen=True)
class MarkedQuestion:
    """Question with encrypted responses, as embedded in a page.

    :param wanted: expected form of the answer.
    :param bits: width of the number that is the answer; 0 if the answer is a word.
    :param boxes: responses to the right answer and to common mistakes, encrypted with them.
    :param shown: right answer, encrypted with SHOW.
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
    """Return the HTML of a quiz page that grades answers in the browser.

    :param about: sentence below the title.
    :param seed: seed of the salts and of the order of the responses.
    """
    marked = [_marked(number, one, random.Random(f"{seed} {number}"))
             for number, one in enumerate(questions, 1)]
    data = json.dumps([{"bits": one.bits, "salt": one.salt, "boxes": one.boxes, "shown": one.shown}
                       for one in marked])
    return page("quiz.html", title, about, questions=marked, data=data,
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
        seal(RIGHT + f"The answer is {question.shown}. {question.why}".encode(),
             key(salt, SHOW, SHOWN_ROUNDS)))


def _normal(answer: int | str) -> str:
    """Return an answer as the text from which the page's script derives a key."""
    return answer if isinstance(answer, str) else str(answer)


def key(salt: str, answer: str, rounds: int) -> bytes:
    """Derive an encryption key from an answer, through repeated SHA-256."""
    digest = hashlib.sha256(f"{salt} {answer}".encode()).digest()
    for _ in range(rounds):
        digest = hashlib.sha256(digest).digest()
    return digest


def seal(content: bytes, with_key: bytes) -> str:
    """Encrypt content with a key, and return the result as Base64.

    The key stream is SHA-256 of the key and a counter.
    """
    return base64.b64encode(bytes(
        byte ^ mask for byte, mask in zip(content, _stream(with_key, len(content)), strict=True)
    )).decode()


def opened(box: str, with_key: bytes) -> bytes | None:
    """Decrypt a response; return None if the key is wrong."""
    sealed = base64.b64decode(box)
    content = bytes(byte ^ mask for byte, mask in zip(sealed, _stream(with_key, len(sealed)),
                                                       strict=True))
    return content if content.startswith((RIGHT, WRONG)) else None


def _stream(with_key: bytes, size: int) -> bytes:
    stream = b""
    count = 0
    while len(stream) < size:
        stream += hashlib.sha256(with_key + count.to_bytes(4, "big")).digest()
        count += 1
    return stream[:size]
