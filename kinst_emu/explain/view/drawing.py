"""A moment of a firing, drawn: SVG, readable by itself, and by programs (what is drawn is in
``data-`` attributes, too)."""

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from dtrace.run.structured import Row
from emu.host.templates import templates
from kinst.code.listing import ProbedInstruction
from kinst.relocation.trampoline import SLOT
from kinst.relocation.verdict import Rewrite, summary
from kinst_emu.explain.record.seen_firing import SeenFiring
from kinst_emu.explain.record.what_if import COPY
from kinst_emu.explain.steps.steps import Step, Words, displacement
from kinst_emu.explain.view.picture import FiringMoment, StackWord, Station, at_step, moments

TEMPLATE = "picture.svg"
# What no XML 1.0 document may have in it (section 2.2); a clause, a name may.
NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
WIDTH, HEIGHT = 1280, 720
TOP, MARGIN = 64, 16
LEFT, MIDDLE, RIGHT = 430, 364, 422  # how wide the columns are
AROUND = 4  # instructions before and behind the probed one
LAST = 7  # instructions on the way that are shown
LINE = 17
ADDRESS = 8  # bytes of one
MOST_LETTERS, MOST_CLAUSE = 50, 8  # of a line; lines of a clause
FIELD_LETTERS = 14  # of the names of a word's fields that have room
BEND = 20  # of an arrow, at its ends
MOST_STILL = 3  # firings
MOST_STORES = 6  # that are drawn as arrows, of one instruction


class Pane(NamedTuple):
    """Where it is in the picture."""

    x: int
    y: int
    width: int
    height: int


MACHINE, STACK = MARGIN * 2 + LEFT, MARGIN * 3 + LEFT + MIDDLE
PANES = {"function": Pane(MARGIN, TOP, LEFT, 200),
         "trampoline": Pane(MARGIN, TOP + 216, LEFT, 236),
         "clause": Pane(MARGIN, TOP + 468, LEFT, HEIGHT - TOP - 484),
         "registers": Pane(MACHINE, TOP, MIDDLE, 360),
         "way": Pane(MACHINE, TOP + 376, MIDDLE, HEIGHT - TOP - 392),
         "stack": Pane(STACK, TOP, RIGHT, HEIGHT - TOP - MARGIN)}
# What is seen of a picture where there is room for a third of it: a column, by its name.
VIEWS = {"code": ("function", "trampoline", "clause"), "machine": ("registers", "way"),
         "stack": ("stack",)}
Item = TypeVar("Item")

WAY = ((Station.FUNCTION, "function"), (Station.VECTOR, "vector"), (Station.HANDLER, "handler"),
       (Station.RETURN, "return"), (Station.TRAMPOLINE, "trampoline"))
BEFORE_CLAUSE = ("frame", "lookup")  # steps of the moment in which the clause is run
ABOUT = {"function": "function", "patch": "function", "exception": "stack", "vector": "stack",
         "frame": "stack", "lookup": "registers", "clause": "clause", "verdict": "trampoline",
         "trampoline": "trampoline", "second": "trampoline", "return": "registers",
         "after": "registers", "returned": "registers", "what-if": "registers"}  # step: pane
IN_CODE = (Station.FUNCTION, Station.TRAMPOLINE)  # have a pane of their own


@dataclass(frozen=True)
class CodeLine:
    """:param code: its bytes, in hexadecimal; ``here``: it is about to be executed."""

    address: int
    offset: str
    code: str
    text: str
    probed: bool
    here: bool


NO_CODE = CodeLine(0, "", "", "", False, False)  # where another moment has some


@dataclass(frozen=True)
class Drawing:
    """:param number: of the moment, and ``count`` of all.
    :param about: what it shows, in a sentence: the picture's description.
    :param way: the stations, and which it is at.
    :param trail: the last instructions that were executed there; ``whose`` code it is.
    :param notes: of the trampoline.
    :param clause: what the D clause is, and what it has left by then.
    :param stack: None: nothing is there, where another moment has a word.
    :param about_pane: the one that the step is about; empty: it is not drawn for a step.
    :param arrow: where control has gone, and ``stores`` what was stored: paths, and their ends.
    """

    number: int
    count: int
    title: str
    about: str
    moment: FiringMoment
    function: tuple[CodeLine, ...]
    trampoline: tuple[CodeLine, ...]
    head: str
    notes: tuple[str, ...]
    way: tuple[tuple[str, bool], ...]
    whose: str
    trail: tuple[str, ...]
    clause: tuple[str, ...]
    stack: tuple[StackWord | None, ...]
    about_pane: str
    arrow: str
    tip: str
    stores: str
    stored: str


class Pictures:
    """All pictures of a firing.

    :param table: the function's instructions.
    """

    def __init__(self, firing: SeenFiring, table: Sequence[ProbedInstruction], words: Words,
                 steps: Sequence[Step]) -> None:
        self._firing, self._words = firing, words
        self.moments = moments(firing)
        self.steps = [(at_step(self.moments, step), step) for step in steps if not step.wrong]
        at = next(n for n, one in enumerate(table) if one.offset == firing.instruction.offset)
        first = max(0, min(at - AROUND, len(table) - 2 * AROUND - 1))
        self._around = table[first : first + 2 * AROUND + 1]
        self._in_slot = self._executed_in_slot()
        self._rows = {Station.FUNCTION: [one.address for one in self._around],
                      Station.TRAMPOLINE: [at for at, _code in self._in_slot]}
        self._way = (*WAY, (Station.ELSEWHERE, "elsewhere")) if firing.mistake.strayed else WAY
        self._words_drawn = max(len(moment.stack) for moment in self.moments)
        self._pitch = min(LINE, (HEIGHT - TOP - 2 * MARGIN - LINE * 2) / max(1, self._words_drawn))
        self._long_fields = any(len(", ".join(word.fields)) > FIELD_LETTERS
                                for moment in self.moments for word in moment.stack)
        room = PANES["trampoline"].height - 58 - len(self._in_slot) * LINE
        self._note_pitch = min(LINE, room / max(1, len(self._notes())))
        self._clause_lines = len(self._clause(len(self.moments) - 1))

    def of_steps(self) -> dict[str, str]:
        """By the names of the steps, the pictures of what they are about; of steps about one
        moment, the first has it."""
        found: dict[int, str] = {}
        for number, step in self.steps:
            found.setdefault(number, step.name)
        return {name: self.svg(number, name, styled=False) for number, name in found.items()}

    def of_step(self, name: str, pane: str) -> str:
        """A pane of the picture of a step; empty: there is no such step."""
        return next((self.svg(number, name, styled=False, pane=pane)
                     for number, step in self.steps if step.name == name), "")

    def svg(self, number: int, step: str = "", styled: bool = True, every: bool = False,
            hidden: int | None = None, pane: str = "") -> str:
        """The picture of a moment.

        :param step: the name of the one that it is drawn for, of those that are about it.
        :param styled: whether it has its colours in it; else a page has them.
        :param every: whether what nothing is to be seen of is in it, too, so that each moment has
            the same elements.
        :param hidden: a word of the stack, whose value is not shown; registers are as they were at
            the breakpoint then, and nothing says what has been stored.
        """
        return NO_XML.sub("\N{REPLACEMENT CHARACTER}", templates("kinst_emu").get_template(
            TEMPLATE).render(
            d=(self.drawing(number, step) if hidden is None
               else self._without(number, step, hidden)),
            width=WIDTH, height=HEIGHT, margin=MARGIN,
            left=LEFT, middle=MIDDLE, right=RIGHT, line=LINE, pitch=self._pitch,
            notes=self._note_pitch, long_fields=self._long_fields,
            small=min(13, round(self._pitch - 2)),
            panes={pane: PANES[pane]} if pane else PANES, box=box(pane) if pane else "",
            bare=bool(pane),
            styled=styled, every=every))

    def _without(self, number: int, step: str, hidden: int) -> Drawing:
        drawn = self.drawing(number, step)
        return replace(
            drawn, about=drawn.about.partition(" Changed:")[0], stack=tuple(
                replace(word, value=None) if word is not None and word.address == hidden else word
                for word in drawn.stack),
            moment=replace(drawn.moment, registers=self.moments[0].registers, changed=frozenset()))

    def drawing(self, number: int, step: str = "") -> Drawing:
        moment, firing = self.moments[number], self._firing
        before = self.moments[number - 1] if number else moment
        arrow, stores = self._control(before, moment), self._stores(moment)
        head = ("No trampoline yet" if not moment.patched else
                "The trampoline" if self._in_slot else "No trampoline")
        return Drawing(
            number, len(self.moments), self._title(number, step), self._about(number), moment,
            tuple(self._code(one.address, firing.patched if moment.patched
                             and one.offset == firing.instruction.offset else one.code, moment,
                             str(one.offset)) for one in self._around),
            tuple(self._code(at, code, moment, f"{at - firing.slot:+#x}") if moment.patched
                  else NO_CODE for at, code in self._in_slot),
            head,
            tuple(note if moment.patched else "" for note in self._notes()),
            tuple((name, place is moment.place) for place, name in self._way),
            self._whose(moment), filled(self._trail(number), LAST, ""),
            filled(self._clause(number, step), self._clause_lines, ""),
            filled(moment.stack, self._words_drawn, None),
            ABOUT.get(step, ""), arrow.line, arrow.tip, "".join(one.line for one in stores),
            "".join(one.tip for one in stores))

    def _stores(self, moment: FiringMoment) -> list["Path"]:
        """From the registers to each word that an instruction has stored."""
        x, y = PANES["stack"][:2]
        changed = [number for number, word in enumerate(moment.stack)
                   if self._is_new(moment, word)]
        if moment.handles is not None or len(changed) > MOST_STORES:
            return []
        return [curve((x - MARGIN, y + 180),
                       (x + 2, round(y + 42 + (number - 0.3) * self._pitch)), 1, -1)
                for number in changed]

    def _control(self, before: FiringMoment, now: FiringMoment) -> "Path":
        """Where control has gone: code is left and come to on its right, a station on its left."""
        begin, end = self._anchor(before), self._anchor(now)
        if before.place is now.place or begin is None or end is None:
            return Path("", "")
        return curve(begin, end, *(1 if one.place in IN_CODE else -1 for one in (before, now)))

    def _anchor(self, moment: FiringMoment) -> tuple[int, int] | None:
        """Where an arrow ends: at the line of code, or the station of the way; None: at code that
        is not drawn."""
        place = moment.place
        if place in IN_CODE:
            x, y = PANES[place.name.lower()][:2]
            lines = self._rows[place]
            if moment.pc not in lines:
                return None
            return x + LEFT, y + 38 + lines.index(moment.pc) * LINE
        x, y = PANES["way"][:2]
        return x + 24, y + 37 + 26 * next(n for n, (one, _) in enumerate(self._way)
                                        if one is place)

    @staticmethod
    def _is_new(moment: FiringMoment, word: StackWord) -> bool:
        """What is put back below the stack pointer, or on a stack that was left, is nobody's any
        more."""
        return word.changed and word.shown is not None and moment.owned(word.address)

    def _title(self, number: int, name: str) -> str:
        """Of the step that it belongs to: that of the name, or the last one that is not behind
        it."""
        found = [(at, n, step) for n, (at, step) in enumerate(self.steps, 1) if at <= number]
        _at, which, step = max(found, key=lambda one: (
            one[0] == number and one[2].name == name, one[0], one[1]))
        return f"{which}. {step.title}" if _at == number else f"after {which}. {step.title}"

    def _about(self, number: int) -> str:
        moment, words = self.moments[number], self._words
        text = ("the handler is called" if moment.handles is not None else
                f"{words.arch.disassemble(moment.code, moment.pc)} is about to be executed")
        text += f", at {words.place(moment.pc)}"
        changed = [f"{name} = {moment.registers[name]:#x}" for name in sorted(moment.changed)]
        stored = [f"{word.value:#x} at {word.address:#x}"
                  + (f" ({', '.join(word.fields)})" if word.fields else "")
                  for word in moment.stack if self._is_new(moment, word)]
        return (f"Moment {number + 1} of {len(self.moments)}: {text}."
                + (f" Changed: {', '.join(changed)}." if changed else "")
                + (f" Stored: {', '.join(stored)}." if stored else ""))

    def _code(self, address: int, code: bytes, moment: FiringMoment, offset: str) -> CodeLine:
        arch, slot = self._words.arch, self._firing.slot
        length = arch.instruction_length(code) or len(code)
        executed = not slot or not 0 <= address - slot < SLOT or any(
            row.address == address for row in self._firing.rows)
        text = (arch.disassemble(code[:length], address) if executed else
                f"{int.from_bytes(code, 'little'):#x}")
        return CodeLine(address, offset, code.hex(" "), text,
                        address == self._firing.instruction.address,
                        moment.handles is None and address == moment.pc)

    def _executed_in_slot(self) -> list[tuple[int, bytes]]:
        firing, executed = self._firing, {row.address: row.code for row in self._firing.rows}
        found, at = [], firing.slot
        while firing.slot and at in executed and at < firing.slot + len(firing.trampoline):
            found.append((at, executed[at]))
            at += len(executed[at])
        jump = self._words.trap.jump
        if found and jump and found[-1][1] == jump:  # behind it is where it goes
            rest = at - firing.slot
            found.append((at, firing.trampoline[rest : rest + ADDRESS]))
        return found

    def _notes(self) -> tuple[str, ...]:
        firing = self._firing
        verdict = firing.instruction.verdict
        text = f"verdict: {summary(verdict)}" + (
            ", but it is copied as it is" if firing.mistake.kind == COPY else "")
        if firing.slot:
            text += f"; {firing.slot - firing.instruction.address:+#x} from the instruction"
        found = [text, *(displacement(firing, verdict) if isinstance(verdict, Rewrite) else ())]
        return tuple(line for one in found for line in textwrap.wrap(one, MOST_LETTERS))

    def _whose(self, moment: FiringMoment) -> str:
        """Whose code it is that the trail has."""
        function = self._firing.function
        inside = 0 <= moment.pc - function.address < function.size
        if moment.place is Station.FUNCTION and not inside:  # called, or returned to
            return f"in {self._words.where(moment.pc)}:"
        return f"in {moment.place.value}:"

    def _trail(self, number: int) -> list[str]:
        """The last instructions of the same place."""
        found: list[str] = []
        for moment in reversed(self.moments[: number + 1]):
            if moment.place is not self.moments[number].place or len(found) == LAST:
                break
            if moment.handles is None:
                found.append(self._words.arch.disassemble(moment.code, moment.pc))
            else:
                found.append(f"{self._words.guest.traps.seam} leads to it")
        return found[::-1]

    def _clause(self, number: int, name: str = "") -> list[str]:
        """The clause, and from when it has been run, what it has left."""
        told = self._firing.narration
        if told is None:
            return ["there is no clause for this probe"]
        found = [line.strip() for line in told.text.splitlines() if line.strip()]
        handled = next((n for n, one in enumerate(self.moments) if one.handles is not None), 0)
        left = list[str]()
        if number > handled or (number == handled and name not in BEFORE_CLAUSE):
            left = [*(f"its buffer gets {_left(one)}" for one in told.left),
                    *(f"its aggregations are {json.dumps(one)}" for one in told.aggregated)
                    ] or ["it leaves nothing"]
        text, rest = (
            [line for one in lines for line in textwrap.wrap(one, MOST_LETTERS)]
            for lines in (found, left))
        return [*some(text, MOST_CLAUSE - min(len(rest), MOST_CLAUSE // 2)),
                *some(rest, MOST_CLAUSE - min(len(text), MOST_CLAUSE // 2))]


def stills(pictures: Mapping[str, "Pictures"], steps: Sequence[str]) -> dict[str, dict[str, str]]:
    """By the names of the steps, what each is about in the pictures of several firings; of steps
    that come one behind the other and are about the same pane, the last has it.  More than
    ``MOST_STILL`` are too much for a page."""
    if len(pictures) > MOST_STILL:
        return {}
    about = [ABOUT.get(step, "stack") for step in steps]
    return {step: {name: one.of_step(step, pane) for name, one in pictures.items()}
            for step, pane, then in zip(steps, about, [*about[1:], ""], strict=True)
            if pane != then or pane == "function"}


def box(*panes: str) -> str:
    """Of SVG, a ``viewBox``: panes that stand below each other."""
    first, last, edge = PANES[panes[0]], PANES[panes[-1]], MARGIN // 4
    return (f"{first.x - edge} {first.y - edge} {first.width + 2 * edge} "
            f"{last.y + last.height - first.y + 2 * edge}")


def some(lines: list[str], count: int) -> list[str]:
    """So many; where that is not all, the last says so."""
    return lines if len(lines) <= count else [
        *lines[: count - 1], f"({len(lines) - count + 1} more lines in the text)"]


def _left(row: Row) -> str:
    """What a clause has recorded, without what all rows of a probe have in common."""
    return json.dumps(row.get("actions", row))


@dataclass(frozen=True)
class Path:
    """As SVG's ``d`` has it: a curve, and the triangle at its end."""

    line: str
    tip: str


def filled(found: Sequence[Item], count: int, rest: Item) -> tuple[Item, ...]:
    """Up to ``count``."""
    return (*found, *[rest] * (count - len(found)))


def curve(start: tuple[int, int], end: tuple[int, int], leaves: int, comes: int) -> Path:
    """:param leaves: to the right (1) or to the left (-1); ``comes`` from there."""
    (x1, y1), (x2, y2) = start, end
    return Path(f"M{x1} {y1}C{x1 + leaves * BEND} {y1} {x2 + comes * BEND} {y2} {x2} {y2}",
                f"M{x2} {y2}l{comes * 9} -5v10z")
