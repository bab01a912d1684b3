"""Answers as an HTML page: what happened, in the order in which it was executed."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dtrace.debug.source_text import SourceText
from kinst_emu.report.page_file import page as filled
from kinst_emu.why.explainer import Answer, Place, Reason, number
from kinst_emu.why.sleeping import Slept, woken
from kinst_emu.why.text import HOW, once, taken_text

AROUND = 4  # number of source lines shown before and after a line
ABOUT = "Read from top to bottom, in the order of execution."


@dataclass(frozen=True)
class Event:
    """An executed instruction that is part of an answer.

    :param kind: what it did: decided, made, passed on, called.
    :param detail: what a branch did; empty for other instructions.
    :param values: (name, value) of what a branch compared.
    :param source: (line number, text, whether it is the line) around the line; empty if unknown.
    """

    kind: str
    place: Place
    detail: str
    values: tuple[tuple[str, str], ...]
    source: tuple[tuple[int, str, bool], ...]


@dataclass(frozen=True)
class Part:
    """A part of a page with its own heading.

    :param ends: a note after the events; may be empty.
    :param stack: lines of a stack.
    """

    heading: str
    events: tuple[Event, ...]
    ends: str = ""
    stack: tuple[str, ...] = ()


def page(question: str, parts: Sequence[Part], recording: str, others: Sequence[str] = ()) -> str:
    """Return the page of an answer.

    :param recording: file to name in commands; empty if it was discarded.
    :param others: other questions that can be asked.
    """
    return filled("why.html", question, ABOUT, parts=parts, recording=recording, others=others)


def parts_of(answer: Answer, text: SourceText | None) -> Iterator[Part]:
    """Yield the parts of the page for an answer."""
    yield Part("What happened", tuple(_events(answer, text)),
               "" if answer.made is None or answer.reasons else
               "No branch was found that decides it.")
    if answer.earlier is not None:
        yield from (Part(answer.earlier.question, part.events, part.ends)
                    for part in parts_of(answer.earlier, text))


def parts_of_sleep(slept: Slept, text: SourceText | None) -> Iterator[Part]:
    """Yield the parts of the page for a sleep."""
    on = f" on {slept.channel}" if slept.channel else ""
    for heading, answer, stack in (
            (f"Why it slept{on}", slept.asleep, slept.stack),
            (_capital(woken(slept)), slept.waking, slept.waker)):
        yield Part(heading, () if answer is None else tuple(_events(answer, text)), stack=stack)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _events(answer: Answer, text: SourceText | None) -> Iterator[Event]:
    """Yield the events of an answer in the order of execution."""
    rows = [_decided(reason, text) for reason in answer.reasons]
    if answer.made is not None:
        rows.append(Event(HOW.get(answer.how, answer.how) if answer.how else answer.question,
                          answer.made, "", (), source_around(answer.made, text)))
    rows += [Event("passed on" if answer.how else "called", place, "", (),
                   source_around(place, text)) for place in answer.through]
    yield from sorted(rows, key=lambda row: row.place.count)


def _decided(reason: Reason, text: SourceText | None) -> Event:
    return Event("decided", reason.test, taken_text(reason).removeprefix("; ").strip(),
                 tuple((one.name or one.text, "unknown" if one.value is None else number(one.value))
                       for one in once(reason.compared)), source_around(reason.test, text))


def source_around(place: Place, text: SourceText | None) -> tuple[tuple[int, str, bool], ...]:
    """Return (line number, text, whether it is the line) of the lines around a place, if known."""
    path, colon, digits = (place.line or place.after).rpartition(":")
    if text is None or not colon or not digits.isdecimal():
        return ()
    rows, at = text.lines(path), int(digits[:9])
    if at > len(rows):
        return ()
    first = max(1, at - AROUND)
    shown = textwrap.dedent("\n".join(
        row.expandtabs(8) for row in rows[first - 1 : at + AROUND])).split("\n")
    return tuple((first + n, row, first + n == at) for n, row in enumerate(shown))
