"""Scenes of a path through the kernel: for each moment, the data that a picture shows."""

import textwrap

from kinst_emu.explain.steps.way import Way, WayMoment, function
from kinst_emu.explain.steps.words import Words
from kinst_emu.explain.view.memory_words import StackWord, word_row
from kinst_emu.explain.view.scene import (
    Anchor,
    Arrow,
    Pane,
    Row,
    Rows,
    Scene,
    Scenes,
    register_rows,
    some,
    station_rows,
    text_rows,
)

# maximum numbers of instructions, of functions, and of lines of text shown
LAST, FUNCTIONS, LINES = 16, 15, 14
LETTERS = 43  # maximum number of characters in a line of text
# The stores of a moment are drawn as arrows only if there are at most this many.
MOST_STORES = 6


class WayScenes(Scenes[WayMoment]):
    """Scenes of a path through the kernel."""
    def __init__(self, way: Way, words: Words) -> None:
        self._way, self._words = way, words
        self.moments, self.steps = way.moments, way.steps
        self._known: list[dict[int, int]] = []
        # for each moment, the addresses to which instructions have stored until then
        self._stored: list[frozenset[int]] = []
        self._functions: list[list[str]] = []
        stored = frozenset[int]()
        known, functions = dict[int, int](), list[str]()
        for number, moment in enumerate(way.moments):
            known |= moment.words
            # No instruction stored the words of the first moment: they have their initial values.
            first = number == 0 or (number == 1 and set(way.labels) <= set(moment.words))
            stored |= frozenset() if first else frozenset(moment.words)
            stored |= way.pushed if number else frozenset()
            self._stored.append(stored)
            name = function(moment.seen.address, words)
            if functions[-1:] != [name]:
                functions.append(name)
            self._known.append(dict(known))
            self._functions.append(functions[-FUNCTIONS:])

    def scene(self, number: int, step: str = "") -> Scene:
        """Return the scene of a moment, as specified for ``Scenes.scene``."""
        moment, way = self.moments[number], self._way
        before = self.moments[number - 1] if number else moment
        registers = moment.seen.registers
        changed = frozenset(name for name, value in registers.items()
                            if before.seen.registers[name] != value)
        words = self._words_at(number)
        return Scene(
            number, self.title(number, step),
            f"{number + 1} of {len(self.moments)}: pc {moment.seen.address:#x}",
            self._about(number, words), {
                "code": Pane("Executed instructions", {"code": self._trail(number)}),
                "way": Pane("The path and its functions", {
                    "stations": station_rows([(name, place == moment.station)
                                              for place, name in enumerate(way.stations)]),
                    "functions": text_rows(self._functions[number])}),
                "registers": Pane("Registers", {"registers": register_rows(registers, changed)}),
                "told": Pane("What happens", {"text": text_rows(self._said(number, step))}),
                "words": Pane(way.heading, {"words": [word_row(word) for word in words]})},
            [*_stores(words), *_control(before.station, moment.station)],
            way.about.get(step, ""), {"pc": f"{moment.seen.address:#x}"})

    def _words_at(self, number: int) -> tuple[StackWord, ...]:
        moment, way = self.moments[number], self._way
        there = not way.builds or 0 < number < len(self.moments) - 1
        return tuple(StackWord(at, self._known[number].get(at), names if there else (),
                               number > 0 and at in moment.words,
                               not way.builds or at in self._stored[number])
                     for at, names in way.labels.items())

    def _said(self, number: int, name: str) -> list[str]:
        """Return the first lines of the text that explains a moment's step."""
        _which, step, _here = self.step_at(number, name)
        lines = [line for part in step.parts for line in (
            textwrap.wrap(part, LETTERS) if isinstance(part, str) else
            ["  ".join(row) for row in part.rows])]
        return some(lines, LINES)

    def _trail(self, number: int) -> Rows:
        first = max(0, number - LAST + 1)
        return [Row((self._words.where(one.seen.address), self._text(one)),
                    ("here",) if at == number else ())
                for at, one in enumerate(self.moments[first : number + 1], first)]

    def _text(self, moment: WayMoment) -> str:
        return self._words.arch.disassemble(moment.seen.code, moment.seen.address)

    def _about(self, number: int, words: tuple[StackWord, ...]) -> str:
        moment = self.moments[number]
        text = f"{self._text(moment)} is about to be executed, at " + self._words.place(
            moment.seen.address)
        stored = [f"{word.value:#x} at {word.address:#x} ({', '.join(word.fields)})"
                  for word in words if word.changed and word.shown is not None]
        more = f", and {len(stored) - MOST_STORES} more" if len(stored) > MOST_STORES else ""
        return (f"Moment {number + 1} of {len(self.moments)}: {text}."
                + (f" Stored: {', '.join(stored[:MOST_STORES])}{more}." if stored else ""))


def _stores(words: tuple[StackWord, ...]) -> list[Arrow]:
    changed = [number for number, word in enumerate(words) if word.changed]
    return [] if len(changed) > MOST_STORES else [
        Arrow("store", Anchor("registers"), Anchor("words", "words", number))
        for number in changed]


def _control(before: int, now: int) -> list[Arrow]:
    return [] if before == now else [Arrow("control", Anchor("way", "stations", before),
                                           Anchor("way", "stations", now))]
