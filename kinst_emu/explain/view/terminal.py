"""Terminal viewer for stepping through an explanation, with panels for the machine's state."""

import textwrap
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Generic

from rich.text import Text
from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, ScrollableContainer, Vertical
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, Static

from kinst_emu.explain.steps.explained import Explained, ExplainedWay
from kinst_emu.explain.steps.step import Step, Table, Value
from kinst_emu.explain.steps.terms import first_terms
from kinst_emu.explain.steps.way import WayMoment
from kinst_emu.explain.steps.what_if_steps import up_to_trampoline
from kinst_emu.explain.view.firing_moments import FiringMoment, at_step
from kinst_emu.explain.view.firing_scenes import FiringScenes
from kinst_emu.explain.view.scene import Moment, Row, Scene, Scenes
from kinst_emu.explain.view.way_scenes import WayScenes

MARK, TERM = "bold reverse", "italic"
# minimum width of a terminal with panels, in columns; share of the width for the step's text
NARROW, SHARE = 100, 0.6
PARAGRAPH, LAST = 76, 48  # maximum width of a paragraph and of a table's last cell
GAP = 2  # number of spaces between the columns of a table
HELP = """\
n, space, right        next step
p, backspace, left     previous step
. and ,                next and previous instruction
g                      go to a step by its number or the start of its name
up, down               scroll the step
h, l                   scroll the step to the left, to the right
?                      show this help; any key closes it
q, Ctrl-C              quit

The line below the title shows pc, the stack pointer and the register that
an exception returns to. On terminals with at least 100 columns, panels
show code, registers, memory, and the trampoline or the path. At a step,
the marked registers are those that changed since the previous step; after
. or , the marked registers and words changed since the previous
instruction."""


def shown(step: Step, width: int = PARAGRAPH, terms: Mapping[str, str] | None = None) -> Text:
    """Format a step for the terminal.

    :param width: columns after which a paragraph wraps.
    :param terms: terms whose definitions follow the step.
    """
    text = Text()
    for part in step.parts:
        if isinstance(part, Table):
            text.append_text(columns(part))
        else:
            text.append("\n".join(textwrap.wrap(part, width)))
        text.append("\n\n")
    for term, meaning in (terms or {}).items():
        text.append("\n".join(textwrap.wrap(f"{term}: {meaning}.", width,
                                             subsequent_indent="  ")) + "\n", TERM)
    return text


def columns(table: Table) -> Text:
    """Format a table with fixed column widths; a narrow terminal scrolls the table sideways."""
    rows = [row for row in (table.heads, *table.rows) if any(row)]
    widths = [max(map(len, cells)) for cells in zip(table.heads, *table.rows, strict=True)]
    before = sum(widths[:-1]) + GAP * (len(widths) - 1)
    text, number = Text(), -1 if any(table.heads) else 0
    for row in rows:
        line = "".join(cell.ljust(width + GAP) for cell, width in zip(row, widths, strict=True))
        last = textwrap.wrap(row[-1], LAST) if widths[-1] > LAST else [row[-1]]
        line = line[:before] + ("\n" + " " * before).join(last or [""])
        text.append(line.rstrip(), MARK if number in table.marked else "")
        text.append("\n")
        number += 1
    text.rstrip()
    return text


class Keys(ModalScreen[None]):
    """Help screen that lists the keys; any key closes it."""

    CSS = """
    Keys { align: center middle; }
    #keys { width: auto; height: auto; max-width: 100%; max-height: 100%;
            border: round $primary; padding: 0 1; background: $surface; }
    """

    def compose(self) -> ComposeResult:
        """Yield the help text."""
        yield Static(HELP, id="keys", markup=False)

    def on_key(self, event: events.Key) -> None:
        """Close the screen."""
        event.stop()
        event.prevent_default()  # the key only closes the help: even q must not quit
        self.dismiss()


class Stepper(App[None], Generic[Moment]):
    """Viewer that shows one step of an explanation at a time, with the step's scene in panels.

    :param scenes: the scenes of the explanation; their steps are those of ``steps`` that are not
        about a deliberate mistake.
    :cvar panels: names of the panels.
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

    panels: ClassVar[tuple[str, ...]]

    def __init__(self, heading: str, steps: Sequence[Step], scenes: Scenes[Moment]) -> None:
        super().__init__()
        self._heading, self.steps, self._scenes = heading, steps, scenes
        self._terms = first_terms(self.steps)
        self._begins = [(moment, number) for (moment, _step), number in zip(
            self._scenes.steps, (number for number, step in enumerate(self.steps)
                                 if not step.wrong), strict=True)]
        self.at = 0
        self.moment: int | None = None  # None while the whole step is shown

    def compose(self) -> ComposeResult:
        """Yield the title, the step, the panels, the input line of key ``g`` and the key bar."""
        yield Static(id="title", markup=False)
        yield Static(id="place", markup=False)
        with Horizontal():
            with ScrollableContainer(id="step"):
                yield Static(id="told", markup=False)
            with Vertical(id="panels"):
                for name in self.panels:
                    with ScrollableContainer() as scroll:
                        scroll.border_title = name
                        yield Static(id=name, markup=False)
        yield Input(id="goto", placeholder=f"step, 1 to {len(self.steps)}, or its name")
        yield Footer()

    def on_mount(self) -> None:
        """Show the first step."""
        self._show(0)
        self.query_one("#step").focus()

    def on_resize(self) -> None:
        """Hide the panels on a narrow terminal, and wrap the step again."""
        self.screen_stack[0].set_class(self.size.width < NARROW, "narrow")
        self._show(self.at)

    def action_next(self) -> None:
        """Go to the next step."""
        self._show(self.at + 1)

    def action_previous(self) -> None:
        """Go to the previous step."""
        self._show(self.at - 1)

    def action_moment(self, by: int) -> None:
        """Move forward or back by a number of instructions."""
        if self.steps[self.at].wrong:
            self.notify("only the correct firing can be stepped by instruction; press p to go "
                        "back to it", markup=False)
            return
        at = (next(moment for moment, number in self._begins if number == self.at)
              if self.moment is None else self.moment)
        moment = max(0, min(len(self._scenes.moments) - 1, at + by))
        step = max(number for begin, number in self._begins if begin <= moment)
        self._show(step, moment)

    def action_scroll(self, columns: int, rows: int) -> None:
        """Scroll the text of the step."""
        self.query_one("#step").scroll_relative(columns, rows, animate=False)

    def action_keys(self) -> None:
        """Show the help screen."""
        self.push_screen(Keys())

    def action_ask(self) -> None:
        """Ask which step to go to."""
        asked = self.query_one("#goto", Input)
        asked.add_class("asked")
        asked.focus()

    @on(Input.Submitted)
    def went(self, event: Input.Submitted) -> None:
        """Go to the step whose number, name or name prefix was entered."""
        names = [step.name for step in self.steps]
        word = event.value.strip().lower()
        matches = [word] if word in names else [name for name in names if name.startswith(word)]
        if word.isascii() and word.isdecimal() and 1 <= int(word[:9]) <= len(names):
            self._show(int(word[:9]) - 1)
        elif word and len(matches) == 1:
            self._show(names.index(matches[0]))
        elif word:
            message = (f"'{word[:40]}' is ambiguous: {' and '.join(matches)}" if matches else
                    f"no step '{word[:40]}'; enter 1 to {len(names)}, or one of "
                    f"{', '.join(names)}")
            self.notify(message, severity="warning", markup=False)
        event.input.value = ""
        event.input.remove_class("asked")
        self.query_one("#step").focus()

    def _show(self, number: int, moment: int | None = None) -> None:
        """Show a step, or one instruction of the step."""
        stayed = moment is not None and number == self.at
        self.at, self.moment = max(0, min(len(self.steps) - 1, number)), moment
        step = self.steps[self.at]
        scene, before = self._of_step(self.at) if moment is None else self._of_moment(moment)
        where = "" if moment is None else f", instruction {moment + 1}/{len(self._scenes.moments)}"
        self._put("title", Text(
            f"{self._heading}   {self.at + 1}/{len(self.steps)}  {step.title}{where}",
            no_wrap=True, overflow="ellipsis"))
        self._put("place", self.place(scene))
        if not stayed:
            room = self.size.width * (1 if self.size.width < NARROW else SHARE) - 4
            self._fit("told", shown(step, min(PARAGRAPH, max(20, int(room))),
                                    self._terms[self.at]))
            self.screen_stack[0].query_one("#step").scroll_home(animate=False)
        for name, content in self.contents(scene, before, moment is not None).items():
            self._fit(name, content)
        self.call_after_refresh(self._reveal)

    def _reveal(self) -> None:
        """Scroll the code panel to the marked line."""
        code = self.screen_stack[0].query_one("#code", Static)
        content, scroll = code.content, code.parent
        if isinstance(content, Text) and isinstance(scroll, ScrollableContainer):
            marked = next((content.plain[: span.start].count("\n") for span in content.spans
                           if span.style == MARK), 0)
            scroll.scroll_to(y=max(0, marked - scroll.size.height // 2), animate=False)

    def _put(self, name: str, content: Text) -> None:
        self.screen_stack[0].query_one(f"#{name}", Static).update(content)

    def _fit(self, name: str, content: Text) -> None:
        """Show content at its full width, so that a narrow widget scrolls instead of wrapping."""
        widget = self.screen_stack[0].query_one(f"#{name}", Static)
        widget.styles.width = max(1, max(map(len, content.plain.split("\n"))))
        widget.update(content)

    def _of_step(self, number: int) -> tuple[Scene, Scene]:
        """Return the scene of a step, and the earlier scene with which registers are compared."""
        moments = {step: moment for moment, step in self._begins}
        return (self._scenes.scene(moments[number], self.steps[number].name),
                self._scenes.scene(moments[max(0, number - 1)]))

    def _of_moment(self, number: int) -> tuple[Scene, Scene]:
        return self._scenes.scene(number), self._scenes.scene(max(0, number - 1))

    @abstractmethod
    def place(self, scene: Scene) -> Text:
        """Return a line with the machine's current position."""

    @abstractmethod
    def contents(self, scene: Scene, before: Scene, stores: bool) -> dict[str, Text]:
        """Return the contents of the panels, keyed by panel name.

        :param before: the scene with which registers are compared.
        :param stores: whether words stored by the last instruction are marked.
        """


class FiringStepper(Stepper[FiringMoment]):
    """Viewer of an explained firing."""

    panels = ("code", "registers", "stack", "trampoline")

    def __init__(self, explained: Explained) -> None:
        scenes = FiringScenes(explained.firing, explained.table, explained.words, explained.steps)
        super().__init__(explained.title, explained.steps, scenes)
        self._trampoline = bool(scenes.in_slot)
        self._wrong = None if explained.wrong is None else FiringScenes(
            explained.wrong, explained.table, explained.words,
            up_to_trampoline(explained.steps, explained.wrong))

    def _of_step(self, number: int) -> tuple[Scene, Scene]:
        step = self.steps[number]
        if step.wrong and self._wrong is not None:
            scenes = self._wrong
            return scenes.scene(at_step(scenes.moments, step)), scenes.scene(0)
        return super()._of_step(number)

    def place(self, scene: Scene) -> Text:
        """Return a line with the pointers and the executed instruction."""
        return place(scene)

    def contents(self, scene: Scene, before: Scene, stores: bool) -> dict[str, Text]:
        """Return the contents of the panels."""
        return panels(scene, before, stores, self._trampoline)


class WayStepper(Stepper[WayMoment]):
    """Viewer of an explained path through the kernel."""

    panels = ("code", "registers", "words", "way")

    def __init__(self, explained: ExplainedWay) -> None:
        super().__init__(explained.title, explained.steps,
                         WayScenes(explained.way, explained.words))

    def place(self, scene: Scene) -> Text:
        """Return a line with pc and the instruction that is about to be executed."""
        words = map(_written, _rows(scene, "code", "code")[-1].cells)
        return Text("  ".join((f"pc {scene.data['pc']}", *words)), no_wrap=True,
                    overflow="ellipsis")

    def contents(self, scene: Scene, before: Scene, stores: bool) -> dict[str, Text]:
        """Return the contents of the panels."""
        then = {row.cells[0]: row.cells[1] for row in _rows(before, "registers", "registers")}
        registers = [Row(row.cells, ("changed",) if then[row.cells[0]] != row.cells[1] else ())
                     for row in _rows(scene, "registers", "registers")]
        stations = _rows(scene, "way", "stations")
        return {
            "code": columns(_table(("", ""), _rows(scene, "code", "code"), "here")),
            "registers": columns(_table(("register", "value"), registers, "changed")),
            "words": columns(_table(("address", "word", "what"), _rows(scene, "words", "words"),
                                    "changed" if stores else "")),
            "way": columns(_table(("part",), stations, "at"))}


def place(scene: Scene) -> Text:
    """Return a line with the machine's current position."""
    words = [f"{name} {value:#x}" for name, value in _registers(scene, "pointers").items()]
    where = _rows(scene, "executed", "code")[-1].cells[0]
    return Text("  ".join([*words, str(where)]), no_wrap=True, overflow="ellipsis")


def panels(scene: Scene, before: Scene, stores: bool, trampoline: bool) -> dict[str, Text]:
    """Return the contents of the panels, keyed by panel name.

    :param before: the scene with which registers are compared.
    :param stores: whether words stored by the last instruction are marked.
    :param trampoline: whether the firing uses a trampoline, even if it is not yet written.
    """
    return {
        "code": columns(_table(("", ""), _rows(scene, "executed", "code"), "here")),
        "registers": _registers_panel(scene, before),
        "stack": columns(_table(("", "word", "address", "field"), _rows(scene, "stack", "top"),
                                "changed" if stores else "")),
        "trampoline": _trampoline(scene, trampoline)}


def _rows(scene: Scene, pane: str, block: str) -> list[Row]:
    return [row for row in scene.panes[pane].blocks[block] if row is not None]


def _table(heads: tuple[str, ...], rows: Sequence[Row], mark: str) -> Table:
    """Return rows of a scene as a table in which the rows with the given mark are highlighted."""
    return Table(heads, tuple(
        tuple(map(_written, row.cells)) for row in rows), frozenset(
            n for n, row in enumerate(rows) if mark in row.marks))


def _written(value: Value) -> str:
    if isinstance(value, bytes):
        return value.hex(" ")
    return value if isinstance(value, str) else f"{value:#018x}"


def _registers(scene: Scene, block: str) -> dict[str, int]:
    return {str(name): value for row in _rows(scene, "registers", block)
            for name, value in [row.cells] if isinstance(value, int)}


def _registers_panel(scene: Scene, before: Scene) -> Text:
    """Return the text of the registers panel: pc, sp, exception return address, other registers."""
    now, then = (_registers(one, "pointers") | _registers(one, "registers")
                 for one in (scene, before))
    return columns(_table(("register", "value"), [
        Row((name, value), ("changed",) if then[name] != value else ())
        for name, value in now.items()], "changed"))


def _trampoline(scene: Scene, there: bool) -> Text:
    """Return the text of the trampoline panel: the instructions executed in the trampoline."""
    rows = [row for row in _rows(scene, "trampoline", "code") if row.data["executed"]]
    if not rows:
        return Text("none yet: the probe is not enabled" if there else
                    "none: the instruction is emulated")
    return columns(_table(("address", "instruction", "bytes"), [
        Row((f"0x{row.data['address']}", text, code), row.marks)
        for row in rows for _offset, code, text in [row.cells]], "here"))
