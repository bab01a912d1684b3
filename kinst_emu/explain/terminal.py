"""Steps in a terminal, forwards and backwards, with panels for what the machine holds then."""

from collections.abc import Sequence
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, ScrollableContainer, Vertical
from textual.widgets import Footer, Input, Static

from kinst_emu.explain.recorder import Firing
from kinst_emu.explain.steps import Step, Table, Words

MARK = "bold reverse"
CODE_ROWS = 4  # instructions before and behind the one that is executed
WORD = 8
NARROW, SHARE = 100, 0.6  # columns, below which there are no panels; of the step beside them
PARAGRAPH, LAST = 76, 48  # columns: of text; of a table's last column, which is wrapped


def shown(step: Step, width: int = PARAGRAPH) -> RenderableType:
    """A step for rich.

    :param width: of a paragraph.
    """
    return Group(*(Padding(_table(part) if isinstance(part, Table)
                           else Constrain(Text(part), width), (0, 0, 1, 0))
                   for part in step.parts))


def _table(table: Table) -> RichTable:
    found = RichTable(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for number, head in enumerate(table.heads):
        widest = max(len(row[number]) for row in (table.heads, *table.rows))
        wraps = number == len(table.heads) - 1 and widest > LAST
        found.add_column(Text(head), no_wrap=not wraps, min_width=LAST if wraps else widest,
                         max_width=LAST if wraps else None)
    for number, row in enumerate(table.rows):
        found.add_row(*(Text(cell) for cell in row),
                      style=MARK if number in table.marked else "")
    return found


class Stepper(App[None]):
    """:param title: what is explained.
    :param firing: what was recorded; the panels show it.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #title { height: 1; background: $primary; color: $text; padding: 0 1; }
    #step { width: 3fr; padding: 0 1; }
    #panels { width: 2fr; }
    #panels ScrollableContainer { border: round $primary; height: 1fr; padding: 0 1; }
    #code, #registers, #stack, #trampoline, #told { width: auto; }
    Screen.narrow #panels { display: none; }
    #goto { display: none; height: 3; }
    #goto.asked { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("n,right,space", "next", "next"), ("p,left,backspace", "previous", "previous"),
        ("g", "ask", "go to a step"), ("down", "scroll(0, 3)", "down"),
        ("up", "scroll(0, -3)", "up"), ("l", "scroll(8, 0)", "to the right"),
        ("h", "scroll(-8, 0)", "to the left"), ("q", "quit", "quit")]

    def __init__(self, title: str, steps: Sequence[Step], firing: Firing, words: Words) -> None:
        super().__init__()
        self._heading, self.steps, self._firing, self._words = title, steps, firing, words
        self.at = 0

    def compose(self) -> ComposeResult:
        yield Static(id="title", markup=False)
        with Horizontal():
            with ScrollableContainer(id="step"):
                yield Static(id="told", markup=False)
            with Vertical(id="panels"):
                for name in ("code", "registers", "stack", "trampoline"):
                    with ScrollableContainer() as scroll:
                        scroll.border_title = name
                        yield Static(id=name, markup=False)
        yield Input(id="goto", placeholder=f"step, 1 to {len(self.steps)}, or its name")
        yield Footer()

    def on_mount(self) -> None:
        self._show(0)
        self.query_one("#step").focus()

    def on_resize(self) -> None:
        self.screen.set_class(self.size.width < NARROW, "narrow")
        self._show(self.at)

    def action_next(self) -> None:
        self._show(self.at + 1)

    def action_previous(self) -> None:
        self._show(self.at - 1)

    def action_scroll(self, columns: int, rows: int) -> None:
        self.query_one("#step").scroll_relative(columns, rows, animate=False)

    def action_ask(self) -> None:
        asked = self.query_one("#goto", Input)
        asked.add_class("asked")
        asked.focus()

    @on(Input.Submitted)
    def went(self, event: Input.Submitted) -> None:
        """To a step, by its number or its name."""
        names = [step.name for step in self.steps]
        word = event.value.strip().lower()
        if word.isascii() and word.isdecimal() and 1 <= int(word[:9]) <= len(names):
            self._show(int(word[:9]) - 1)
        elif word in names:
            self._show(names.index(word))
        elif word:
            self.notify(f"there is no step '{word[:40]}': 1 to {len(names)}, or one of "
                        f"{', '.join(names)}", severity="warning", markup=False)
        event.input.value = ""
        event.input.remove_class("asked")
        self.query_one("#step").focus()

    def _show(self, number: int) -> None:
        self.at = max(0, min(len(self.steps) - 1, number))
        step = self.steps[self.at]
        self._put("title", Text(f"{self._heading}   {self.at + 1}/{len(self.steps)}  {step.title}"))
        room = self.size.width * (1 if self.size.width < NARROW else SHARE) - 4
        self._put("told", shown(step, min(PARAGRAPH, max(20, int(room)))))
        self.query_one("#step").scroll_home(animate=False)
        for name, content in self.panels(step).items():
            self._put(name, content)

    def _put(self, name: str, content: RenderableType) -> None:
        self.query_one(f"#{name}", Static).update(content)

    def panels(self, step: Step) -> dict[str, RenderableType]:
        """What the machine holds at a step."""
        return {"code": self._code(step.row), "registers": self._registers(step.row),
                "stack": self._stack(step.row), "trampoline": self._trampoline(step.row)}

    def _code(self, row: int) -> RichTable:
        rows = self._firing.rows
        begin = max(0, row - CODE_ROWS)
        near = rows[begin : row + CODE_ROWS + 1]
        disassemble, where = self._words.arch.disassemble, self._words.where
        return _table(Table(("executed", ""), tuple(
            (where(one.address), disassemble(one.code, one.address)) for one in near),
            frozenset({row - begin})))

    def _registers(self, row: int) -> RichTable:
        rows = self._firing.rows
        before = max((step.row for step in self.steps if step.row < row), default=row)
        values = rows[row].registers
        return _table(Table(("register", "value"), tuple(
            (name, f"{value:#018x}") for name, value in values.items()), frozenset(
            n for n, (name, value) in enumerate(values.items())
            if rows[before].registers[name] != value)))

    def _stack(self, row: int) -> RichTable:
        stacks = self._firing.stacks
        stack = stacks[max((at for at in stacks if at <= row), default=min(stacks))]
        words = [stack.content[i : i + WORD] for i in range(0, len(stack.content), WORD)]
        return _table(Table(("address", "word"), tuple(
            (f"{stack.address + WORD * n:#x}", f"{int.from_bytes(word, 'little'):#018x}")
            for n, word in enumerate(words))))

    def _trampoline(self, row: int) -> RenderableType:
        firing, arch = self._firing, self._words.arch
        if not firing.slot:
            return Text("none: the instruction is emulated")
        found = {one.address: one for one in firing.rows
                 if firing.slot <= one.address < firing.slot + len(firing.trampoline)}
        lines = [(f"{at:#x}", one.code.hex(" "), arch.disassemble(one.code, at))
                 for at, one in sorted(found.items())]
        return _table(Table(("address", "bytes", "instruction"), tuple(lines), frozenset(
            n for n, at in enumerate(sorted(found)) if at == firing.rows[row].address)))
