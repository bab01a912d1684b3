"""A moment of a way through the kernel, drawn: SVG, as ``drawing.py`` has it."""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from emu.host.templates import templates
from kinst_emu.explain.steps.steps import Words
from kinst_emu.explain.steps.way import Way, WayMoment, function
from kinst_emu.explain.view.drawing import (
    HEIGHT,
    LEFT,
    LINE,
    MACHINE,
    MARGIN,
    MIDDLE,
    NO_XML,
    RIGHT,
    STACK,
    TOP,
    WIDTH,
    Pane,
    Path,
    curve,
    filled,
    some,
)
from kinst_emu.explain.view.picture import StackWord

TEMPLATE = "way.svg"
PANES = {"code": Pane(MARGIN, TOP, LEFT, 328),
         "way": Pane(MARGIN, TOP + 344, LEFT, HEIGHT - TOP - 360),
         "registers": Pane(MACHINE, TOP, MIDDLE, 360),
         "told": Pane(MACHINE, TOP + 376, MIDDLE, HEIGHT - TOP - 392),
         "words": Pane(STACK, TOP, RIGHT, HEIGHT - TOP - MARGIN)}
LAST, FUNCTIONS, LINES = 16, 15, 14  # instructions, functions, lines of text that are shown
LETTERS = 43  # of a line of text
MOST_STORES = 6  # that are drawn as arrows, of one moment


@dataclass(frozen=True)
class WayDrawing:
    """:param trail: where, what; whether it is about to be executed.
    :param way: the stations, and which it is at; ``functions`` those that it has come through.
    """

    number: int
    count: int
    title: str
    about: str
    about_pane: str
    pc: int
    trail: tuple[tuple[str, str, bool], ...]
    way: tuple[tuple[str, bool], ...]
    functions: tuple[str, ...]
    told: tuple[str, ...]
    registers: Mapping[str, int]
    changed: frozenset[str]
    words: tuple[StackWord, ...]
    arrow: str
    tip: str
    stores: str
    stored: str


class WayPictures:
    """All pictures of a way."""

    def __init__(self, way: Way, words: Words) -> None:
        self._way, self._words = way, words
        self.moments, self.steps = way.moments, way.steps
        self._pitch = min(LINE, (HEIGHT - TOP - 4 * MARGIN) / max(1, len(way.labels)))
        self._known: list[dict[int, int]] = []
        self._stored: list[frozenset[int]] = []  # since the way began, by the moments
        self._functions: list[list[str]] = []
        stored = frozenset[int]()
        known, functions = dict[int, int](), list[str]()
        for number, moment in enumerate(way.moments):
            known |= moment.words
            # At first, all are told of, which no one instruction stores.
            first = number == 0 or (number == 1 and set(way.labels) <= set(moment.words))
            stored |= frozenset() if first else frozenset(moment.words)
            stored |= way.pushed if number else frozenset()
            self._stored.append(stored)
            name = function(moment.seen.address, words)
            if functions[-1:] != [name]:
                functions.append(name)
            self._known.append(dict(known))
            self._functions.append(functions[-FUNCTIONS:])

    def of_steps(self) -> dict[str, str]:
        """By the names of the steps, the pictures of what they are about: for readers alone, what
        programs read is in the one that moves."""
        return {step.name: self.svg(number, step.name, styled=False)
                for number, step in self.steps}

    def svg(self, number: int, step: str = "", styled: bool = True, every: bool = False) -> str:
        """As ``kinst_emu.explain.view.drawing.Pictures.svg``."""
        return NO_XML.sub("\N{REPLACEMENT CHARACTER}", templates("kinst_emu").get_template(
            TEMPLATE).render(
            d=self.drawing(number, step), heading=self._way.heading, width=WIDTH, height=HEIGHT,
            margin=MARGIN, line=LINE, pitch=self._pitch, small=min(13, round(self._pitch - 2)),
            panes=PANES, box="", styled=styled, every=every,
            bare=not (styled or every)))

    def drawing(self, number: int, step: str = "") -> WayDrawing:
        moment, way = self.moments[number], self._way
        before = self.moments[number - 1] if number else moment
        told, title = self._told(number, step)
        registers = moment.seen.registers
        there = not way.builds or 0 < number < len(self.moments) - 1
        words = tuple(StackWord(at, self._known[number].get(at), names if there else (),
                                number > 0 and at in moment.words,
                                not way.builds or at in self._stored[number])
                      for at, names in way.labels.items())
        arrow, stores = self._control(before.station, moment.station), self._stores(words)
        return WayDrawing(
            number, len(self.moments), title, self._about(number, words),
            way.about.get(step, ""), moment.seen.address,
            filled(self._trail(number), LAST, ("", "", False)),
            tuple((name, place == moment.station) for place, name in enumerate(way.stations)),
            filled(self._functions[number], FUNCTIONS, ""), filled(told, LINES, ""),
            registers, frozenset(name for name, value in registers.items()
                                 if before.seen.registers[name] != value),
            words, arrow.line, arrow.tip, "".join(one.line for one in stores),
            "".join(one.tip for one in stores))

    def _told(self, number: int, name: str) -> tuple[list[str], str]:
        """The first words and the title of the step that a moment belongs to."""
        found = [(at, n, step) for n, (at, step) in enumerate(self.steps, 1) if at <= number]
        at, which, step = max(found, key=lambda one: (
            one[0] == number and one[2].name == name, one[0], one[1]))
        lines = [line for part in step.parts for line in (
            textwrap.wrap(part, LETTERS) if isinstance(part, str) else
            ["  ".join(row) for row in part.rows])]
        return some(lines, LINES), f"{'' if at == number else 'after '}{which}. {step.title}"

    def _trail(self, number: int) -> list[tuple[str, str, bool]]:
        first = max(0, number - LAST + 1)
        return [(self._words.where(one.seen.address), self._text(one), at == number)
                for at, one in enumerate(self.moments[first : number + 1], first)]

    def _text(self, moment: WayMoment) -> str:
        return self._words.arch.disassemble(moment.seen.code, moment.seen.address)

    def _about(self, number: int, words: tuple[StackWord, ...]) -> str:
        moment = self.moments[number]
        text = f"{self._text(moment)} is about to be executed, at " + self._words.place(
            moment.seen.address)
        stored = [f"{word.value:#x} at {word.address:#x} ({', '.join(word.fields)})"
                  for word in words if word.changed and word.shown is not None]
        return (f"Moment {number + 1} of {len(self.moments)}: {text}."
                + (f" Stored: {', '.join(stored[:MOST_STORES])}{_more(stored)}." if stored else ""))

    def _stores(self, words: tuple[StackWord, ...]) -> list[Path]:
        pane = PANES["words"]
        changed = [number for number, word in enumerate(words) if word.changed]
        if len(changed) > MOST_STORES:
            return []
        return [curve((pane.x - MARGIN, pane.y + 180),
                      (pane.x + 2, round(pane.y + 42 + (number - 0.3) * self._pitch)), 1, -1)
                for number in changed]

    def _control(self, before: int, now: int) -> Path:
        if before == now:
            return Path("", "")
        x, y = PANES["way"][:2]
        return curve((x + 24, y + 37 + 26 * before), (x + 24, y + 37 + 26 * now), -1, -1)


def _more(stored: list[str]) -> str:
    return f", and {len(stored) - MOST_STORES} more" if len(stored) > MOST_STORES else ""
