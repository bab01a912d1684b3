"""A moment of a firing, drawn: SVG, readable by itself, and by programs (what is drawn is in
``data-`` attributes, too)."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from emu.templates import templates
from kinst.code.listing import ProbedInstruction
from kinst.code.verdict import Rewrite, summary
from kinst_emu.explain.picture import FiringMoment, Station, at_step, moments
from kinst_emu.explain.recorder import SeenFiring
from kinst_emu.explain.steps import Step, Words, displacement

TEMPLATE = "picture.svg"
WIDTH, HEIGHT = 1280, 720
TOP, MARGIN = 64, 16
LEFT, MIDDLE, RIGHT = 430, 340, 446  # how wide the columns are
AROUND = 4  # instructions before and behind the probed one
LAST = 6  # instructions on the way that are shown
LINE = 17
MOST_LETTERS, MOST_CLAUSE = 50, 8  # of a line; lines of a clause

WAY = ((Station.FUNCTION, "breakpoint"), (Station.VECTOR, "vector"), (Station.HANDLER, "handler"),
       (Station.RETURN, "return"), (Station.TRAMPOLINE, "trampoline"))


@dataclass(frozen=True)
class CodeLine:
    """:param code: its bytes, in hexadecimal; ``here``: it is about to be executed."""

    address: int
    offset: str
    code: str
    text: str
    probed: bool
    here: bool


@dataclass(frozen=True)
class Drawing:
    """:param number: of the moment, and ``count`` of all.
    :param about: what it shows, in a sentence: the picture's description.
    :param way: the stations, and which it is at.
    :param trail: the last instructions that were executed there.
    :param notes: of the trampoline.
    :param clause: what the D clause is, and what it has left by then.
    """

    number: int
    count: int
    title: str
    about: str
    moment: FiringMoment
    function: tuple[CodeLine, ...]
    trampoline: tuple[CodeLine, ...]
    notes: tuple[str, ...]
    way: tuple[tuple[str, bool], ...]
    trail: tuple[str, ...]
    clause: tuple[str, ...]
    arrow: tuple[int, int, int, int] | None


class Pictures:
    """All pictures of a firing that came to its end.

    :param table: the function's instructions.
    """

    def __init__(self, firing: SeenFiring, table: Sequence[ProbedInstruction], words: Words,
                 steps: Sequence[Step]) -> None:
        self._firing, self._words = firing, words
        self.moments = moments(firing)
        self.steps = [(at_step(self.moments, step), step) for step in steps if not step.wrong]
        at = next(n for n, one in enumerate(table) if one.offset == firing.instruction.offset)
        self._around = table[max(0, at - AROUND) : at + AROUND + 1]
        self._in_slot = self._executed_in_slot()

    def of_steps(self) -> dict[str, str]:
        """By the names of the steps, the pictures of what they are about; of steps about one
        moment, the first has it."""
        found: dict[int, str] = {}
        for number, step in self.steps:
            found.setdefault(number, step.name)
        return {name: self.svg(number, name) for number, name in found.items()}

    def svg(self, number: int, step: str = "") -> str:
        """The picture of a moment.

        :param step: the name of the one that it is drawn for, of those that are about it.
        """
        pitch = min(LINE, (HEIGHT - TOP - 2 * MARGIN - LINE * 2)
                    / max(1, len(self.moments[number].stack)))
        return templates("kinst_emu").get_template(TEMPLATE).render(
            d=self.drawing(number, step), width=WIDTH, height=HEIGHT, top=TOP, margin=MARGIN,
            left=LEFT, middle=MIDDLE, right=RIGHT, line=LINE, pitch=pitch,
            small=min(13, round(pitch - 2)))

    def drawing(self, number: int, step: str = "") -> Drawing:
        moment, firing = self.moments[number], self._firing
        before = self.moments[number - 1] if number else moment
        title = self._title(number, step)
        return Drawing(
            number, len(self.moments), title, self._about(number), moment,
            tuple(self._code(one.address, firing.patched if moment.patched
                             and one.offset == firing.instruction.offset else one.code, moment,
                             str(one.offset)) for one in self._around),
            tuple(self._code(at, code, moment, f"{at - firing.slot:+#x}")
                  for at, code in self._in_slot) if moment.patched else (),
            self._notes() if moment.patched else (),
            tuple((name, place is moment.place) for place, name in WAY),
            tuple(self._trail(number)), tuple(self._clause(number)),
            _arrow(before.place, moment.place))

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
                  for word in moment.stack if word.changed and word.value is not None]
        return (f"Moment {number + 1} of {len(self.moments)}: {text}."
                + (f" Changed: {', '.join(changed)}." if changed else "")
                + (f" Stored: {', '.join(stored)}." if stored else ""))

    def _code(self, address: int, code: bytes, moment: FiringMoment, offset: str) -> CodeLine:
        arch = self._words.arch
        length = arch.instruction_length(code) or len(code)
        return CodeLine(address, offset, code.hex(" "), arch.disassemble(code[:length], address),
                        address == self._firing.instruction.address,
                        moment.handles is None and address == moment.pc)

    def _executed_in_slot(self) -> list[tuple[int, bytes]]:
        firing, executed = self._firing, {row.address: row.code for row in self._firing.rows}
        found, at = [], firing.slot
        while firing.slot and at in executed and at < firing.slot + len(firing.trampoline):
            found.append((at, executed[at]))
            at += len(executed[at])
        return found

    def _notes(self) -> tuple[str, ...]:
        firing = self._firing
        verdict = firing.instruction.verdict
        text = f"verdict: {summary(verdict)}"
        if firing.slot:
            text += f"; {firing.slot - firing.instruction.address:+#x} from the instruction"
        found = [text, *(displacement(firing, verdict) if isinstance(verdict, Rewrite) else ())]
        return tuple(line for one in found for line in textwrap.wrap(one, MOST_LETTERS))

    def _trail(self, number: int) -> list[str]:
        """The last instructions of the same place."""
        found: list[str] = []
        for moment in reversed(self.moments[: number + 1]):
            if moment.place is not self.moments[number].place or len(found) == LAST:
                break
            if moment.handles is None:
                found.append(self._words.arch.disassemble(moment.code, moment.pc))
            else:
                found.append(f"{self._words.guest.seam} leads to it")
        return found[::-1]

    def _clause(self, number: int) -> list[str]:
        told = self._firing.narration
        handled = next((n for n, one in enumerate(self.moments) if one.handles is not None), 0)
        if told is None or number < handled:
            return []
        found = [*(line.strip() for line in told.text.splitlines() if line.strip()),
                 *(f"leaves {json.dumps(one)}" for one in told.left),
                 *(f"aggregated {json.dumps(one)}" for one in told.aggregated)]
        return [line for one in found for line in textwrap.wrap(one, MOST_LETTERS)][:MOST_CLAUSE]


def _arrow(before: Station, now: Station) -> tuple[int, int, int, int] | None:
    """Between the stations of the way, or from and to where code lies: where control has gone."""
    if before is now:
        return None
    return (*_anchor(before), *_anchor(now))


def _anchor(place: Station) -> tuple[int, int]:
    names: Mapping[Station, tuple[int, int]] = {
        Station.FUNCTION: (MARGIN + LEFT, TOP + 110),
        Station.TRAMPOLINE: (MARGIN + LEFT, TOP + 280),
        **{place: (2 * MARGIN + LEFT + 24, TOP + 413 + 26 * number)
           for number, (place, _name) in enumerate(WAY)
           if place not in (Station.FUNCTION, Station.TRAMPOLINE)}}
    return names[place]
