"""The scene that the views show for each moment of a firing."""

import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dtrace.run.structured import Row as RecordedRow
from kinst.code.listing import ProbedInstruction
from kinst.relocation.trampoline import SLOT
from kinst.relocation.trap import TRAPS
from kinst.relocation.verdict import Rewrite, summary
from kinst_emu.explain.record.instruction import SeenInstruction
from kinst_emu.explain.record.seen_firing import SeenFiring
from kinst_emu.explain.record.what_if import COPY
from kinst_emu.explain.steps.step import Step
from kinst_emu.explain.steps.trampoline_step import displacement
from kinst_emu.explain.steps.words import Words
from kinst_emu.explain.view.firing_moments import (
    WORD,
    FiringMoment,
    Station,
    at_step,
    moments,
)
from kinst_emu.explain.view.memory_words import UNWRITTEN, StackWord, word_row
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

AROUND = 4  # number of instructions shown before and after the probed instruction
LAST = 7  # maximum number of instructions listed for the current part of the firing
EXECUTED = 4  # maximum number of executed instructions listed before the next instruction
ADDRESS = 8  # size of an address in bytes
# maximum numbers of characters in a line, and of lines for a clause and its output
MOST_LETTERS, MOST_CLAUSE = 50, 8
# The stores of an instruction are drawn as arrows only if there are at most this many.
MOST_STORES = 6
WAY = ((Station.FUNCTION, "function"), (Station.VECTOR, "vector"), (Station.HANDLER, "handler"),
       (Station.RETURN, "return"), (Station.TRAMPOLINE, "trampoline"))
# steps that are drawn at the same moment as the clause, but describe what happens before it
BEFORE_CLAUSE = ("frame", "lookup")
# name of the pane that each step describes, keyed by the name of the step
ABOUT = {"function": "function", "patch": "function", "exception": "stack", "vector": "stack",
         "frame": "stack", "lookup": "registers", "clause": "clause", "verdict": "trampoline",
         "trampoline": "trampoline", "second": "trampoline", "return": "registers",
         "after": "registers", "returned": "registers", "what-if": "registers"}
# parts of a firing that have a pane for their code
IN_CODE = (Station.FUNCTION, Station.TRAMPOLINE)


class FiringScenes(Scenes[FiringMoment]):
    """Scenes of one firing.

    :param table: the instructions of the function.
    :param steps: the steps of the explanation; those about a firing with a mistake are ignored.
    """

    def __init__(self, firing: SeenFiring, table: Sequence[ProbedInstruction], words: Words,
                 steps: Sequence[Step]) -> None:
        self._firing, self._words = firing, words
        self.moments = moments(firing)
        self.steps = [(at_step(self.moments, step), step) for step in steps if not step.wrong]
        at = next(n for n, one in enumerate(table) if one.offset == firing.instruction.offset)
        first = max(0, min(at - AROUND, len(table) - 2 * AROUND - 1))
        self._around = table[first : first + 2 * AROUND + 1]
        self.in_slot = list(self._executed_in_slot())
        self._rows = {Station.FUNCTION: [one.address for one in self._around],
                      Station.TRAMPOLINE: [at for at, _code in self.in_slot]}
        self._way = (*WAY, (Station.ELSEWHERE, "elsewhere")) if firing.mistake.strayed else WAY
        self.notes = self._notes()

    def scene(self, number: int, step: str = "", hidden: int | None = None) -> Scene:
        """Return the scene of a moment.

        :param step: see ``Scenes.scene``.
        :param hidden: address of a stack word whose value is hidden, for a quiz question. The
            registers are then those at the breakpoint, and the description omits all changes.
        """
        moment, about = self.moments[number], self._about(number)
        if hidden is not None:
            about = about.partition(" Changed:")[0]
            moment = replace(moment, registers=self.moments[0].registers, changed=frozenset(),
                             stack=tuple(replace(word, value=None) if word.address == hidden
                                         else word for word in moment.stack))
        head = ("No trampoline yet" if not moment.patched else
                "The trampoline" if self.in_slot else "No trampoline")
        panes = {
            "function": Pane("The function", {"code": self._function(moment)}),
            "trampoline": Pane(head, {"code": self._trampoline(moment), "notes": text_rows(
                self.notes if moment.patched else ())}),
            "clause": Pane("The D clause and its output",
                           {"text": text_rows(self.clause(number, step))}),
            "registers": Pane("Registers", {
                "pointers": self._pointers(moment),
                "registers": register_rows(moment.registers, moment.changed)}),
            "way": Pane("The path", {
                "stations": station_rows([(name, place is moment.place)
                                          for place, name in self._way]),
                "whose": text_rows([self._whose(moment)]), "trail": self._trail(number)}),
            "executed": Pane("Last instructions", {"code": self._executed(moment)}),
            "stack": Pane("The kernel stack and the trap frame", {
                "words": [word_row(word, moment.owned(word.address), moment.sp)
                          for word in moment.stack],
                "top": list(self._top(moment))})}
        return Scene(
            number, self.title(number, step),
            f"{number + 1} of {len(self.moments)}: pc {moment.pc:#x}", about, panes,
            [*self._stores(moment), *self._control(self.moments[max(0, number - 1)], moment)],
            ABOUT.get(step, ""), {"row": str(moment.row), "pc": f"{moment.pc:#x}",
                                  "place": moment.place.name.lower()})

    # -- code --------------------------------------------------------------------------------------

    def _function(self, moment: FiringMoment) -> Rows:
        firing = self._firing
        return [self._code(one.address, firing.patched if moment.patched
                           and one.offset == firing.instruction.offset else one.code, moment,
                           str(one.offset)) for one in self._around]

    def _trampoline(self, moment: FiringMoment) -> Rows:
        """Return rows for a trampoline's code and data, or no rows before this code is written."""
        return [self._code(at, code, moment, f"{at - self._firing.slot:+#x}")
                for at, code in self.in_slot] if moment.patched else []

    def _code(self, address: int, code: bytes, moment: FiringMoment, offset: str) -> Row:
        arch, slot = self._words.arch, self._firing.slot
        length = arch.instruction_length(code) or len(code)
        executed = not slot or not 0 <= address - slot < SLOT or any(
            row.address == address for row in self._firing.rows)
        text = (arch.disassemble(code[:length], address) if executed else
                f"{int.from_bytes(code, 'little'):#x}")
        marks = [name for name, is_so in (
            ("probed", address == self._firing.instruction.address),
            ("here", moment.handles is None and address == moment.pc)) if is_so]
        return Row((offset, code, text), tuple(marks),
                   {"address": f"{address:x}", "bytes": code.hex(), "executed": "yes" * executed})

    def _executed_in_slot(self) -> Iterator[tuple[int, bytes]]:
        firing, executed = self._firing, {row.address: row.code for row in self._firing.rows}
        at, last = firing.slot, b""
        while firing.slot and at in executed and at < firing.slot + len(firing.trampoline):
            last = executed[at]
            yield at, last
            at += len(last)
        if last and last == self._words.trap.jump:  # the jump is followed by its target address
            rest = at - firing.slot
            yield at, firing.trampoline[rest : rest + ADDRESS]

    def _notes(self) -> list[str]:
        """Return the lines of text below the trampoline's code, which explain the verdict."""
        firing = self._firing
        verdict = firing.instruction.verdict
        text = f"verdict: {summary(verdict)}" + (
            ", but copied unchanged" if firing.mistake.kind == COPY else "")
        if firing.slot:
            text += f"; {firing.slot - firing.instruction.address:+#x} from the instruction"
        parts = [text, *(displacement(firing, verdict) if isinstance(verdict, Rewrite) else ())]
        return [line for one in parts for line in textwrap.wrap(one, MOST_LETTERS)]

    def _executed(self, moment: FiringMoment) -> Rows:
        """Return rows for the last executed instructions, followed by the next instruction."""
        firing, words = self._firing, self._words
        rows = firing.rows[max(0, moment.row - EXECUTED) : moment.row + 1]
        above = [Row((words.where(one.address), words.arch.disassemble(
            one.code if moment.patched or one.address != firing.rows[0].address
            else firing.original, one.address))) for one in rows]
        last = above.pop()
        if moment.handles is not None:  # the handler runs before the kernel's next instruction
            last = Row(("the handler", ""))
        return [*above, replace(last, marks=("here",))]

    # -- registers and path ------------------------------------------------------------------------

    def seen(self, moment: FiringMoment) -> SeenInstruction:
        """Return the recorded instruction and registers of a moment."""
        return (self._firing.rows[moment.row] if moment.handles is None
                else self._firing.frames[moment.handles].called)

    def _pointers(self, moment: FiringMoment) -> Rows:
        """Return rows for pc, sp and, in an exception, the register with the return address."""
        arch, seen = self._words.arch, self.seen(moment)
        pointers = [(name, seen.registers[name]) for name in (arch.pc, arch.sp)]
        if seen.returns_to is not None:
            pointers.append((TRAPS[arch.name].return_register, seen.returns_to))
        return [Row((name, value)) for name, value in pointers]

    def _whose(self, moment: FiringMoment) -> str:
        """Return the heading for the listed instructions, which names where they were executed."""
        function = self._firing.function
        inside = 0 <= moment.pc - function.address < function.size
        if moment.place is Station.FUNCTION and not inside:  # in a callee or back in the caller
            return f"in {self._words.where(moment.pc)}:"
        return f"in {moment.place.value}:"

    def _trail(self, number: int) -> Rows:
        """Return rows for the last instructions executed in the current part of the firing."""
        texts: list[str] = []
        for moment in reversed(self.moments[: number + 1]):
            if moment.place is not self.moments[number].place or len(texts) == LAST:
                break
            if moment.handles is None:
                texts.append(self._words.arch.disassemble(moment.code, moment.pc))
            else:
                texts.append(f"called through {self._words.guest.traps.seam}")
        return [Row((("  " if at else "\N{BLACK RIGHT-POINTING TRIANGLE} ") + text,))
                for at, text in reversed(list(enumerate(texts)))]

    # -- the stack ---------------------------------------------------------------------------------

    def _top(self, moment: FiringMoment) -> Iterator[Row]:
        """Yield a row for each word from the stack pointer upward.

        The cells are its offset, value, address and trap frame fields.
        """
        firing = self._firing
        stack = (firing.memory.stacks[moment.row] if moment.handles is None
                 else firing.frames[moment.handles].stack)
        drawn = {word.address: word for word in moment.stack}
        for distance in range(0, len(stack.content), WORD):
            address = stack.address + distance
            value: int | str = int.from_bytes(stack.content[distance : distance + WORD], "little")
            word = drawn.get(address)
            if word is not None and word.content == UNWRITTEN:
                value = UNWRITTEN
            yield Row((f"sp+{distance:#x}", value, f"{address:#x}",
                       "" if word is None else ", ".join(word.fields)),
                      ("changed",) if word is not None and word.changed else ())

    @staticmethod
    def _is_new(moment: FiringMoment, word: StackWord) -> bool:
        """Return whether a word is in use and was stored since the previous moment.

        Words below the stack pointer or on an abandoned stack are not in use.
        """
        return word.changed and word.shown is not None and moment.owned(word.address)

    # -- arrows and descriptions -------------------------------------------------------------------

    def _stores(self, moment: FiringMoment) -> list[Arrow]:
        """Return arrows from the registers to the words that the last instruction stored."""
        changed = [number for number, word in enumerate(moment.stack)
                   if self._is_new(moment, word)]
        if moment.handles is not None or len(changed) > MOST_STORES:
            return []
        return [Arrow("store", Anchor("registers"), Anchor("stack", "words", number))
                for number in changed]

    def _control(self, before: FiringMoment, now: FiringMoment) -> list[Arrow]:
        """Return at most one arrow: from the previous part of the firing to the current part."""
        begin, end = self._anchor(before), self._anchor(now)
        return ([] if before.place is now.place or begin is None or end is None
                else [Arrow("control", begin, end)])

    def _anchor(self, moment: FiringMoment) -> Anchor | None:
        """Return the point where an arrow starts or ends: a line of code, or a box of the path.

        Return None if the picture does not show the line of code.
        """
        place = moment.place
        if place in IN_CODE:
            lines = self._rows[place]
            return (Anchor(place.name.lower(), "code", lines.index(moment.pc))
                    if moment.pc in lines else None)
        return Anchor("way", "stations",
                      next(n for n, (one, _) in enumerate(self._way) if one is place))

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

    def clause(self, number: int, name: str = "") -> list[str]:
        """Return the lines of the clause and, after it has run, its output."""
        narration = self._firing.narration
        if narration is None:
            return ["No D clause"]
        source = [line.strip() for line in narration.text.splitlines() if line.strip()]
        handled = next((n for n, one in enumerate(self.moments) if one.handles is not None), 0)
        output = list[str]()
        if number > handled or (number == handled and name not in BEFORE_CLAUSE):
            output = [*(f"trace buffer: {_left(one)}" for one in narration.left),
                      *(f"aggregation: {json.dumps(one)}" for one in narration.aggregated)
                      ] or ["no output"]
        text, rest = (
            [line for one in lines for line in textwrap.wrap(one, MOST_LETTERS)]
            for lines in (source, output))
        return [*some(text, MOST_CLAUSE - min(len(rest), MOST_CLAUSE // 2)),
                *some(rest, MOST_CLAUSE - min(len(text), MOST_CLAUSE // 2))]


def _left(row: RecordedRow) -> str:
    """Format a clause's record as JSON, without the fields that all records of a probe share."""
    return json.dumps(row.get("actions", row))
