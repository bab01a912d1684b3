"""Steps in a terminal, forwards and backwards, with panels for what the machine holds then."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from rich.text import Text
from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, ScrollableContainer, Vertical
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, Static

from kinst.relocation.trap import TRAPS
from kinst_emu.explain.record.instruction import SeenInstruction
from kinst_emu.explain.record.seen_firing import SeenFiring, Stack
from kinst_emu.explain.steps.steps import Step, Table, Words
from kinst_emu.explain.steps.terms import first_terms
from kinst_emu.explain.view.picture import StackWord, at_step, moments

MARK, TERM = "bold reverse", "italic"
CODE_ROWS = 4  # instructions before and behind the one that is executed
WORD = 8
NARROW, SHARE = 100, 0.6  # columns, below which there are no panels; of the step beside them
PARAGRAPH, LAST = 76, 48  # columns: of text; of a table's last column, which is wrapped
GAP = 2  # columns between those of a table
PANELS = ("code", "registers", "stack", "trampoline")
HELP = """\
n, space, right        the next step
p, backspace, left     the previous step
. and ,                the next and the previous instruction
g                      go to a step: its number, or how its name begins
up, down               scroll the step
h, l                   scroll it to the left, to the right
?                      this help; any key leaves it
q, Ctrl-C              leave

The line below the title says where the machine is at the step: its pc,
its stack pointer, and the register that an exception returns to. From 100
columns on, panels show code, registers, stack and trampoline at the step;
a marked register has changed since the step before; with . and , a marked
register or word has changed since the instruction before."""


@dataclass(frozen=True)
class Spot:
    """A time of a firing that is shown.

    :param row: the number of the recorded row, and ``handles`` of the frame whose handler is
        called, as a step has them.
    :param unpatched: the breakpoint has not been written yet.
    :param before: what the registers are held against.
    :param stored: addresses of words that the instruction before has stored to.
    """

    firing: SeenFiring
    row: int
    handles: int | None
    unpatched: bool
    before: SeenInstruction
    stored: frozenset[int] = frozenset()

    @property
    def seen(self) -> SeenInstruction:
        return (self.firing.rows[self.row] if self.handles is None
                else self.firing.frames[self.handles].called)


def shown(step: Step, width: int = PARAGRAPH, terms: Mapping[str, str] | None = None) -> Text:
    """A step as lines.

    :param width: of a paragraph.
    :param terms: that are explained below it.
    """
    found = Text()
    for part in step.parts:
        if isinstance(part, Table):
            found.append_text(columns(part))
        else:
            found.append("\n".join(textwrap.wrap(part, width)))
        found.append("\n\n")
    for term, meaning in (terms or {}).items():
        found.append("\n".join(textwrap.wrap(f"{term}: {meaning}.", width,
                                             subsequent_indent="  ")) + "\n", TERM)
    return found


def columns(table: Table) -> Text:
    """A table whose columns keep their widths, however narrow the terminal is: it is scrolled."""
    rows = [row for row in (table.heads, *table.rows) if any(row)]
    widths = [max(map(len, cells)) for cells in zip(table.heads, *table.rows, strict=True)]
    before = sum(widths[:-1]) + GAP * (len(widths) - 1)
    found, number = Text(), -1 if any(table.heads) else 0
    for row in rows:
        line = "".join(cell.ljust(width + GAP) for cell, width in zip(row, widths, strict=True))
        last = textwrap.wrap(row[-1], LAST) if widths[-1] > LAST else [row[-1]]
        line = line[:before] + ("\n" + " " * before).join(last or [""])
        found.append(line.rstrip(), MARK if number in table.marked else "")
        found.append("\n")
        number += 1
    found.rstrip()
    return found


class Keys(ModalScreen[None]):
    """What the keys do, until one is pressed."""

    CSS = """
    Keys { align: center middle; }
    #keys { width: auto; height: auto; max-width: 100%; max-height: 100%;
            border: round $primary; padding: 0 1; background: $surface; }
    """

    def compose(self) -> ComposeResult:
        yield Static(HELP, id="keys", markup=False)

    def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()  # it is only about leaving: q does not quit, n goes no step
        self.dismiss()


class Stepper(App[None]):
    """:param title: what is explained.
    :param firing: what was recorded; the panels show it.
    :param wrong: the same done wrong, where a step is about that.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #title { height: 1; background: $primary; color: $text; padding: 0 1; }
    #place { height: 1; padding: 0 1; text-style: bold; }
    #step { width: 3fr; padding: 0 1; }
    #panels { width: 2fr; }
    #panels ScrollableContainer { border: round $primary; height: 1fr; padding: 0 1; }
    Screen.narrow #panels { display: none; }
    #goto { display: none; height: 3; }
    #goto.asked { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("n,right,space", "next", "next"), ("p,left,backspace", "previous", "previous"),
        ("full_stop", "moment(1)", "instruction"), ("comma", "moment(-1)", "back"),
        ("g", "ask", "go to"), Binding("down", "scroll(0, 3)", "down", show=False),
        Binding("up", "scroll(0, -3)", "up", show=False), ("l", "scroll(8, 0)", "right"),
        ("h", "scroll(-8, 0)", "left"), ("question_mark", "keys", "help"), ("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", show=False, priority=True)]

    def __init__(self, title: str, steps: Sequence[Step], firing: SeenFiring, words: Words,
                 wrong: SeenFiring | None = None) -> None:
        super().__init__()
        self._heading, self.steps, self._firing, self._words = title, steps, firing, words
        self._wrong = firing if wrong is None else wrong
        self._terms = first_terms(steps)
        self._moments = moments(firing)
        self._begins = [(at_step(self._moments, step), number)
                        for number, step in enumerate(steps) if not step.wrong]
        self.at = 0
        self.moment: int | None = None  # it is at a step

    def compose(self) -> ComposeResult:
        yield Static(id="title", markup=False)
        yield Static(id="place", markup=False)
        with Horizontal():
            with ScrollableContainer(id="step"):
                yield Static(id="told", markup=False)
            with Vertical(id="panels"):
                for name in PANELS:
                    with ScrollableContainer() as scroll:
                        scroll.border_title = name
                        yield Static(id=name, markup=False)
        yield Input(id="goto", placeholder=f"step, 1 to {len(self.steps)}, or its name")
        yield Footer()

    def on_mount(self) -> None:
        self._show(0)
        self.query_one("#step").focus()

    def on_resize(self) -> None:
        self.screen_stack[0].set_class(self.size.width < NARROW, "narrow")
        self._show(self.at)

    def action_next(self) -> None:
        self._show(self.at + 1)

    def action_previous(self) -> None:
        self._show(self.at - 1)

    def action_moment(self, by: int) -> None:
        """To another instruction, from where the step is, or the last one was."""
        if self.steps[self.at].wrong:
            self.notify("instruction by instruction goes the firing as it is done: p goes back to "
                        "it", markup=False)
            return
        at = (next(moment for moment, number in self._begins if number == self.at)
              if self.moment is None else self.moment)
        moment = max(0, min(len(self._moments) - 1, at + by))
        step = max(number for begin, number in self._begins if begin <= moment)
        self._show(step, moment)

    def action_scroll(self, columns: int, rows: int) -> None:
        self.query_one("#step").scroll_relative(columns, rows, animate=False)

    def action_keys(self) -> None:
        self.push_screen(Keys())

    def action_ask(self) -> None:
        asked = self.query_one("#goto", Input)
        asked.add_class("asked")
        asked.focus()

    @on(Input.Submitted)
    def went(self, event: Input.Submitted) -> None:
        """To a step, by its number, its name, or the beginning of a name."""
        names = [step.name for step in self.steps]
        word = event.value.strip().lower()
        meant = [word] if word in names else [name for name in names if name.startswith(word)]
        if word.isascii() and word.isdecimal() and 1 <= int(word[:9]) <= len(names):
            self._show(int(word[:9]) - 1)
        elif word and len(meant) == 1:
            self._show(names.index(meant[0]))
        elif word:
            said = (f"'{word[:40]}' begins {' and '.join(meant)}" if meant else
                    f"there is no step '{word[:40]}': 1 to {len(names)}, or one of "
                    f"{', '.join(names)}")
            self.notify(said, severity="warning", markup=False)
        event.input.value = ""
        event.input.remove_class("asked")
        self.query_one("#step").focus()

    def _show(self, number: int, moment: int | None = None) -> None:
        """A step; or, in it, an instruction."""
        stayed = moment is not None and number == self.at
        self.at, self.moment = max(0, min(len(self.steps) - 1, number)), moment
        step = self.steps[self.at]
        spot = self._of_step(step) if moment is None else self._of_moment(moment)
        where = "" if moment is None else f", instruction {moment + 1}/{len(self._moments)}"
        self._put("title", Text(
            f"{self._heading}   {self.at + 1}/{len(self.steps)}  {step.title}{where}",
            no_wrap=True, overflow="ellipsis"))
        self._put("place", self.place(spot))
        if not stayed:
            room = self.size.width * (1 if self.size.width < NARROW else SHARE) - 4
            self._fit("told", shown(step, min(PARAGRAPH, max(20, int(room))),
                                    self._terms[self.at]))
            self.screen_stack[0].query_one("#step").scroll_home(animate=False)
        for name, content in self.panels(spot).items():
            self._fit(name, content)
        self.call_after_refresh(self._reveal)

    def _reveal(self) -> None:
        """Scroll the code so that the marked line can be seen."""
        code = self.screen_stack[0].query_one("#code", Static)
        content, scroll = code.content, code.parent
        if isinstance(content, Text) and isinstance(scroll, ScrollableContainer):
            marked = next((content.plain[: span.start].count("\n") for span in content.spans
                           if span.style == MARK), 0)
            scroll.scroll_to(y=max(0, marked - scroll.size.height // 2), animate=False)

    def _put(self, name: str, content: Text) -> None:
        self.screen_stack[0].query_one(f"#{name}", Static).update(content)

    def _fit(self, name: str, content: Text) -> None:
        """In its own width: the terminal's may be less, and it is scrolled then."""
        widget = self.screen_stack[0].query_one(f"#{name}", Static)
        widget.styles.width = max(1, max(map(len, content.plain.split("\n"))))
        widget.update(content)

    # -- what the machine holds at a step ----------------------------------------------------------

    def _of_step(self, step: Step) -> Spot:
        firing, number = self._wrong if step.wrong else self._firing, self.steps.index(step)
        spot = Spot(firing, step.row, step.handles, number == 0, firing.rows[0])
        if number and not step.wrong:
            spot = replace(spot, before=self._of_step(self.steps[number - 1]).seen)
        return spot

    def _of_moment(self, number: int) -> Spot:
        moment, before = self._moments[number], self._moments[max(0, number - 1)]
        spot = Spot(self._firing, before.row, before.handles, False, self._firing.rows[0])
        return Spot(self._firing, moment.row, moment.handles, not moment.patched, spot.seen,
                    frozenset(word.address for word in moment.stack if word.changed))

    def _pointers(self, row: SeenInstruction) -> list[tuple[str, int]]:
        """pc, sp and where a return from an exception goes, which come first everywhere."""
        arch = self._words.arch
        found = [(name, row.registers[name]) for name in (arch.pc, arch.sp)]
        if row.returns_to is not None:
            found.append((TRAPS[arch.name].return_register, row.returns_to))
        return found

    def place(self, spot: Spot) -> Text:
        """Where the machine is, in one line."""
        row = spot.seen
        words = [f"{name} {value:#x}" for name, value in self._pointers(row)]
        where = "the handler" if spot.handles is not None else self._words.where(row.address)
        return Text("  ".join([*words, where]), no_wrap=True, overflow="ellipsis")

    def panels(self, spot: Spot) -> dict[str, Text]:
        """What the machine holds then."""
        return dict(zip(PANELS, (self._code(spot), self._registers(spot), self._stack(spot),
                                 self._trampoline(spot)), strict=True))

    def _code(self, spot: Spot) -> Text:
        firing, row = spot.firing, spot.row
        begin = max(0, row - CODE_ROWS)
        disassemble, where = self._words.arch.disassemble, self._words.where
        lines = [(where(one.address), disassemble(
            firing.original if spot.unpatched and one.address == firing.rows[0].address
            else one.code, one.address)) for one in firing.rows[begin : row + 1]]
        if spot.handles is not None:  # it is called before the next of the kernel's instructions
            lines[-1] = ("the handler", "")
        return columns(Table(("", ""), tuple(lines), frozenset({len(lines) - 1})))

    def _registers(self, spot: Spot) -> Text:
        row, before = spot.seen, spot.before
        pointers, old = self._pointers(row), dict(self._pointers(before))
        values = dict(pointers) | row.registers
        old |= before.registers
        return columns(Table(("register", "value"), tuple(
            (name, f"{value:#018x}") for name, value in values.items()), frozenset(
            n for n, (name, value) in enumerate(values.items()) if old[name] != value)))

    def _stack(self, spot: Spot) -> Text:
        firing = spot.firing
        stack: Stack = (firing.memory.stacks[spot.row] if spot.handles is None
                        else firing.frames[spot.handles].stack)
        words = [stack.content[i : i + WORD] for i in range(0, len(stack.content), WORD)]
        known = {word.address: word for word in self._drawn(spot)}
        lines = []
        for n, content in enumerate(words):
            at, value = stack.address + WORD * n, f"{int.from_bytes(content, 'little'):#018x}"
            word = known.get(at)
            lines.append((f"sp+{WORD * n:#x}",
                          "not written yet" if word is not None and word.shown is None
                          and word.value is not None else value, f"{at:#x}",
                          ", ".join(word.fields) if word is not None else ""))
        return columns(Table(("", "word", "address", "field"), tuple(lines), frozenset(
            n for n in range(len(words)) if stack.address + WORD * n in spot.stored)))

    def _drawn(self, spot: Spot) -> tuple[StackWord, ...]:
        """The words of the stack as a picture of that time has them; none of a wrong run."""
        if spot.firing is not self._firing:
            return ()
        return next((moment.stack for moment in self._moments
                     if moment.key == (spot.row, spot.handles)
                     and moment.patched is not spot.unpatched), ())

    def _trampoline(self, spot: Spot) -> Text:
        firing, arch = spot.firing, self._words.arch
        if not firing.slot:
            return Text("none: the instruction is emulated")
        if spot.unpatched:
            return Text("none yet: the probe is not enabled")
        found = {one.address: one for one in firing.rows
                 if firing.slot <= one.address < firing.slot + len(firing.trampoline)}
        lines = [(f"{at:#x}", arch.disassemble(one.code, at), one.code.hex(" "))
                 for at, one in sorted(found.items())]
        here = spot.seen.address
        return columns(Table(("address", "instruction", "bytes"), tuple(lines), frozenset(
            n for n, at in enumerate(sorted(found)) if at == here)))
