"""Terminal viewer that walks through a path: code, stack and variables at every moment."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from rich.text import Text
from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, ScrollableContainer, Vertical
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, Static, Tree
from textual.widgets.tree import TreeNode
from textual.worker import Worker, WorkerState

from dtrace.calls.positions import go
from dtrace.debug.source_text import SourceText
from dtrace.stacks.shown_locals import text_of
from dtrace.stacks.source_frames import SourceFrame
from dwarf.types import declare
from dwarf.values import CArray, CPointer, CStruct, Value, addressof, parts, sizeof
from emu.host.errors import KinstError
from emu.host.printable import visible
from emu.replay.inputs import Position
from kinst_emu.api.recording import Recording
from kinst_emu.api.walk import Walk
from kinst_emu.path.window import Window
from kinst_emu.why.text import lines as answer_lines

# Positions whose names are not those of functions
PLACES = ("start", "end", "panic", "fault", "failure")
LIMIT = 2_000_000_000  # maximum number of instructions of one step
AROUND = 200  # number of lines or instructions shown before and after the current one
NARROW = 100  # minimum width of a terminal with two columns
HERE = "bold reverse"
HELP = """\
right, left   next, previous instruction
s, S          next, previous line, also in functions that are called
n, N          next, previous line, over calls
o, O          end of the function, its call
v, V          next, previous visit of the line
0 to 9        start of the path, 10 % of it, ... 90 %
e             end of the path
u, d          select the caller, the function below it
tab           go to the variables; there up, down and enter open values
w             why the marked variable has its value
W             why this instruction is executed
/             go to a position, or to the next execution of a function
              or FILE:LINE; -FUNCTION and -FILE:LINE go back
c             source lines or instructions
Escape        interrupt a long step
?             this help; any key but the arrows closes it
q, Ctrl-C     quit"""


@dataclass(frozen=True)
class Row:
    """A line of code.

    :param marked: whether the selected function is there.
    """

    label: str
    text: str
    marked: bool


@dataclass(frozen=True)
class Variable:
    """A row of the variables, or a part of a value.

    :param key: names that lead to it, such as ``("nd", "ni_vp")``.
    :param why: what ``Walk.why`` is asked for it: a name, or an address and a size; None if its
        origin cannot be searched for.
    """

    key: tuple[str, ...]
    text: str
    value: Value = None
    why: str | tuple[int, int] | None = None

    @property
    def opens(self) -> bool:
        """Whether the value has members or elements."""
        return isinstance(self.value, CPointer | CStruct | CArray) and any(True for _ in parts(
            self.value))


@dataclass(frozen=True)
class Moment:
    """What the viewer shows at a position.

    :param frame: the selected function; None outside the kernel.
    :param stack: functions on the stack, with inlined functions.
    :param said: what to say about the step that led here.
    :param changed: names of the registers that differ from the moment shown before.
    """

    position: Position
    frame: SourceFrame | None
    stack: Sequence[SourceFrame]
    source: Sequence[Row]
    instructions: Sequence[Row]
    variables: Sequence[Variable]
    registers: Sequence[Variable]
    said: str = ""
    changed: frozenset[str] = field(default_factory=frozenset)


def read_moment(walk: Walk, recording: Recording, text: SourceText | None, said: str,
                before: dict[str, int]) -> Moment:
    """Return what to show at the walk's place.

    :param before: the registers at the moment shown before.
    """
    registers = dict(walk.machine.registers)
    rows = tuple(Variable(("registers", name), f"{name} {value:#x}", None, name)
                 for name, value in registers.items())
    changed = frozenset(name for name, value in registers.items()
                        if before.get(name, value) != value)
    try:
        frame = walk.frame
    except KinstError as error:  # a program is running
        return Moment(recording.position, None, (), (), (), (), rows, said or str(error), changed)
    return Moment(
        recording.position, frame, tuple(walk.stack()), tuple(_source(frame, text)),
        tuple(_instructions(walk, frame)), tuple(_variables(walk)), rows, said, changed)


def _source(frame: SourceFrame, text: SourceText | None) -> Iterator[Row]:
    path, _colon, number = frame.line.rpartition(":")
    if text is None or not number.isdecimal():
        return
    rows, at = text.lines(path), int(number)
    for line in range(max(1, at - AROUND), min(len(rows), at + AROUND) + 1):
        yield Row(str(line), rows[line - 1].expandtabs(8), line == at)


def _instructions(walk: Walk, frame: SourceFrame) -> Iterator[Row]:
    symbol = walk.machine.kernel.image.symbols.function_at(frame.code)
    if symbol is None:
        return
    try:
        rows = walk.machine.kernel.instructions(symbol.name)
    except KinstError as error:
        yield Row("", str(error), False)
        return
    at = max((n for n, row in enumerate(rows) if row.address <= frame.code), default=0)
    line = ""
    for number in range(max(0, at - AROUND), min(len(rows), at + AROUND)):
        row = rows[number]
        if row.source not in ("?", line):
            line = row.source
            yield Row("", line, False)
        yield Row(f"+{row.offset}", row.text, number == at)


def _variables(walk: Walk) -> Iterator[Variable]:
    for local in walk.locals().all:
        variable = local.variable
        declared = declare(variable.type, variable.name)
        if local.reason:
            yield Variable((variable.name,), f"{declared} <{local.reason}>")
        else:
            value = local.value
            text = text_of(value)
            if isinstance(value, CPointer):  # the declaration has the type
                text = text.partition(") ")[2]
            yield Variable((variable.name,), f"{declared} = {text}", value, variable.name)


def members(of: Variable) -> Iterator[Variable]:
    """Yield the parts of a value as they are now."""
    for name, read in parts(of.value):
        key = (*of.key, name)
        try:
            value = read()
        except KinstError as error:
            yield Variable(key, f"{name} <{error}>")
            continue
        yield Variable(key, f"{name} = {text_of(value)}", value, _place(of.value, name))


def _place(value: Value, member: str) -> tuple[int, int] | None:
    """Return the address and size of a structure's member, or None if it has no address."""
    structure = value[0] if isinstance(value, CPointer) and member != "*" else value
    if not isinstance(structure, CStruct):
        return None
    try:
        return addressof(structure, member), sizeof(structure, member)
    except (TypeError, KinstError):  # a bit-field, or a type without a size
        return None


class Words(ModalScreen[None]):
    """Screen with a text; any key other than the arrows and Page Up and Down closes it."""

    CSS = """
    Words { align: center middle; }
    #box { width: auto; max-width: 100%; height: auto; max-height: 100%;
           border: round $primary; padding: 0 1; background: $surface; }
    #words { width: auto; max-width: 100%; height: auto; }
    """

    def __init__(self, words: str) -> None:
        super().__init__()
        self._words = words

    def compose(self) -> ComposeResult:
        """Yield the text."""
        with ScrollableContainer(id="box"):
            yield Static(Text(visible(self._words)), id="words", markup=False)

    def on_key(self, event: events.Key) -> None:
        """Close the screen, or scroll it."""
        if event.key in ("up", "down", "left", "right", "pageup", "pagedown"):
            return
        event.stop()
        event.prevent_default()
        self.dismiss()


class PathWalk(App[None]):
    """Viewer for a path in a recording.

    :param window: the path; the walk begins at its start.
    :param text: the source files, if the user has any.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #title { height: 1; background: $primary; color: $text; padding: 0 1; }
    #place { height: 1; padding: 0 1; text-style: bold; }
    #said { height: 1; padding: 0 1; color: $text-muted; }
    #codes { width: 3fr; border: round $primary; padding: 0 1; }
    #side { width: 2fr; }
    #stacks { border: round $primary; height: 1fr; padding: 0 1; }
    #values { border: round $primary; height: 2fr; padding: 0 1; }
    #codes:focus, #values:focus { border: round $accent; }
    Screen.narrow Horizontal { layout: vertical; }
    Screen.narrow #codes { width: 100%; height: 1fr; }
    Screen.narrow #side { width: 100%; height: 1fr; }
    Screen.narrow #stacks { display: none; }
    #goto { display: none; height: 3; }
    #goto.asked { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right", "instruction(1)", "instruction", priority=True),
        Binding("left", "instruction(-1)", "back", show=False, priority=True),
        ("n", "move('next', 1)", "line"), Binding("N", "move('next', -1)", "line", show=False),
        ("s", "move('step', 1)", "into"), Binding("S", "move('step', -1)", "into", show=False),
        ("o", "finish(False)", "out"), Binding("O", "finish(True)", "call", show=False),
        ("v", "move('visit', 1)", "visit"), Binding("V", "move('visit', -1)", "visit", show=False),
        ("u", "select(1)", "caller"), Binding("d", "select(-1)", "below", show=False),
        ("w", "why(True)", "why"), Binding("W", "why(False)", "why", show=False),
        ("slash", "ask", "go to"), ("c", "code", "code"),
        *(Binding(str(n), f"scrub({n})", "scrub", show=False) for n in range(10)),
        Binding("e", "scrub(10)", "end", show=False),
        Binding("escape", "interrupt", "interrupt", show=False),
        ("question_mark", "keys", "help"), ("q", "leave", "quit"),
        Binding("ctrl+c", "leave", "quit", show=False, priority=True)]

    def __init__(self, recording: Recording, window: Window, text: SourceText | None = None
                 ) -> None:
        super().__init__()
        self._recording, self._window, self._text = recording, window, text
        self.walk = Walk(recording, () if text is None else text, LIMIT)
        self.walk.interrupted = lambda: self._stopping
        self.moment: Moment | None = None
        self.busy = self._stopping = self._leaving = False
        self._shows_source = text is not None
        self._open: set[tuple[str, ...]] = set()
        self._answer = ""  # answer of a ``why`` that is in progress

    def compose(self) -> ComposeResult:
        """Yield the title, the code, the stack, the variables, and the input line of key ``/``."""
        yield Static(id="title", markup=False)
        yield Static(id="place", markup=False)
        with Horizontal():
            with ScrollableContainer(id="codes"):
                yield Static(id="code", markup=False)
            with Vertical(id="side"):
                with ScrollableContainer(id="stacks") as stacks:
                    stacks.border_title, stacks.can_focus = "stack", False
                    yield Static(id="stack", markup=False)
                tree = Tree[Variable]("variables", id="values")
                tree.show_root = False
                yield tree
        yield Static(id="said", markup=False)
        yield Input(id="goto", placeholder="FUNCTION, FILE:LINE, with - before it to go back, or a "
                    "position such as 50%")
        yield Footer()

    def on_mount(self) -> None:
        """Show the start of the path."""
        self.query_one("#codes").focus()
        self._run(lambda: self._sought(self._window.begin), False)

    def on_resize(self) -> None:
        """Put the values below the code on a narrow terminal."""
        self.screen_stack[0].set_class(self.size.width < NARROW, "narrow")

    # -- moving -----------------------------------------------------------------------------------

    def _run(self, move: Callable[[], str], stops: bool = True) -> None:
        """Make a step in a thread, then show where it led.

        :param move: makes the step, and returns what to say about it.
        :param stops: whether Escape can interrupt it.
        """
        if self.busy:
            return
        self.busy, self._stopping = True, False
        self._put("said", Text("working ... (Escape interrupts)" if stops else "working ..."))
        before = {} if self.moment is None else dict(self.walk.machine.registers)

        def step() -> Moment:
            try:
                said = move()
            except KeyboardInterrupt:
                said = "interrupted"
            except KinstError as error:
                said = str(error)
            return read_moment(self.walk, self._recording, self._text, said, before)

        self.run_worker(step, thread=True, exit_on_error=True)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Show the result of a step."""
        if event.state is WorkerState.SUCCESS and isinstance(event.worker.result, Moment):
            self.busy = False
            if self._leaving:
                self.exit()
                return
            self.moment = event.worker.result
            self._show(self.moment)
            if self._answer:
                self.push_screen(Words(self._answer))
                self._answer = ""

    def _sought(self, position: Position | int) -> str:
        self._recording.go(position)
        return ""

    def action_instruction(self, by: int) -> None:
        """Go forward or back by instructions."""
        if isinstance(self.focused, Input):
            self.focused.cursor_position += by
        elif isinstance(self.screen, Words):
            self.screen.query_one("#box").scroll_relative(x=8 * by, animate=False)
        else:
            self._run(lambda: self._sought(max(
                self._recording.start.instructions, min(
                    self._recording.end.instructions,
                    self._recording.position.instructions + by))), False)

    def action_move(self, verb: str, count: int) -> None:
        """Step by lines."""
        self._run(lambda: str(getattr(self.walk, verb)(count).said))

    def action_finish(self, back: bool) -> None:
        """Go to the end of the selected function, or to its call."""
        self._run(lambda: self.walk.finish(back).said)

    def action_select(self, by: int) -> None:
        """Select a function on the stack."""
        self._run(lambda: self.walk.up(by).said)

    def action_scrub(self, tenths: int) -> None:
        """Go to a part of the path."""
        begin, end = self._window.begin, self._window.end
        self._run(lambda: self._sought(begin if not tenths else end if tenths == 10 else (
            begin.instructions + (end.instructions - begin.instructions) * tenths // 10)), False)

    def action_interrupt(self) -> None:
        """Interrupt the step in progress, or leave the input line."""
        self._stopping = True
        self._close_input()

    def action_leave(self) -> None:
        """Quit, after interrupting a step in progress."""
        self._stopping = self._leaving = True
        if not self.busy:
            self.exit()

    # -- asking -----------------------------------------------------------------------------------

    def action_ask(self) -> None:
        """Ask where to go."""
        asked = self.query_one("#goto", Input)
        asked.add_class("asked")
        asked.focus()

    def _close_input(self) -> None:
        asked = self.query_one("#goto", Input)
        asked.value = ""
        asked.remove_class("asked")
        if self.focused is asked:
            self.query_one("#codes").focus()

    @on(Input.Submitted)
    def went(self, event: Input.Submitted) -> None:
        """Go to the place or position that was entered."""
        words = event.value.strip()
        self._close_input()
        if words:
            self._run(lambda: self._to(words))

    def _to(self, words: str) -> str:
        """Go to a place or position, and return what to say about it."""
        here = self._recording.position
        if words[0] == "-":
            return self._unless_missed(words[1:], True, here)
        if words[0].isdigit() or "#" in words or words in PLACES:
            try:
                if go(self._recording.player, words) is not None:
                    raise KeyboardInterrupt
            except KinstError:
                self._recording.go(here)
                raise
            self._recording.player.give()
            return ""
        return self._unless_missed(words, False, here)

    def _unless_missed(self, place: str, back: bool, here: Position) -> str:
        """Go to a place; if it is not executed, stay and say so."""
        if self.walk.reach(place, back).said:
            self._recording.go(here)
            return f"{place} is not executed {'before' if back else 'after'} this moment"
        return ""

    def action_why(self, marked: bool) -> None:
        """Show why the marked variable has its value, or why the instruction is executed."""
        node = self.query_one("#values", Tree).cursor_node if marked else None
        chosen = node.data if node is not None and isinstance(node.data, Variable) else None
        if marked and (chosen is None or chosen.why is None):
            self._put("said", Text("press Tab and mark a variable with a known value, then w"))
            return
        what: str | tuple[int, int] = "" if chosen is None or chosen.why is None else chosen.why

        def ask() -> str:
            reason = (self.walk.why(what) if isinstance(what, str) else self.walk.why(*what))
            self._answer = "\n".join(answer_lines(reason.answer))
            return ""

        self._run(ask, False)

    def action_keys(self) -> None:
        """Show the keys."""
        self.push_screen(Words(HELP))

    def action_code(self) -> None:
        """Show source lines or instructions."""
        if self._text is None:
            self._put("said", Text("source lines need --sources DIR"))
            return
        self._shows_source = not self._shows_source
        if self.moment is not None:
            self._show(self.moment)

    # -- showing ----------------------------------------------------------------------------------

    def _show(self, moment: Moment) -> None:
        begin, end = self._window.begin, self._window.end
        done = moment.position.instructions - begin.instructions
        whole = max(1, end.instructions - begin.instructions)
        share = f"{100 * done // whole} %" if 0 <= done <= whole else (
            "before the path" if done < 0 else "after the path")
        self._put("title", shown(f"{self._window.title}   instruction {done} of {whole}, {share}   "
                                 f"{moment.position.time - begin.time} ns"))
        frame = moment.frame
        self._put("place", shown("a program" if frame is None else (
            f"{frame.function}{' [inlined]' if frame.inlined else ''}  "
            f"{frame.line or hex(frame.pc)}")))
        self._put("said", shown(moment.said))
        rows = moment.source if self._shows_source and moment.source else moment.instructions
        self._fit("code", _code(rows))
        self._fit("stack", _stack(moment))
        self._fill(moment)
        self.call_after_refresh(self._reveal, rows)

    def _reveal(self, rows: Sequence[Row]) -> None:
        """Scroll the code to the marked line."""
        codes = self.screen_stack[0].query_one("#codes", ScrollableContainer)
        marked = next((number for number, row in enumerate(rows) if row.marked), 0)
        codes.scroll_to(x=0, y=max(0, marked - codes.size.height // 2), animate=False)

    def _fill(self, moment: Moment) -> None:
        """Show the variables; values that were open stay open."""
        tree = self.screen_stack[0].query_one("#values", Tree)
        tree.border_title = visible("variables" if moment.frame is None else
                                    f"variables of {moment.frame.function}")
        line = tree.cursor_line
        tree.clear()
        for variable in moment.variables:
            self._add(tree.root, variable)
        if not moment.variables:
            tree.root.add_leaf(shown("no variables in scope"))
        registers = tree.root.add("registers", data=Variable(("registers",), "registers"))
        for one in moment.registers:
            registers.add_leaf(shown(one.text, HERE if one.key[1] in moment.changed else ""),
                               data=one)
        if ("registers",) in self._open:
            registers.expand()
        tree.root.expand()
        if line >= 0:
            self.call_after_refresh(lambda: tree.move_cursor_to_line(
                min(line, max(0, tree.last_line))))

    def _add(self, node: TreeNode[Variable], variable: Variable) -> None:
        if not variable.opens:
            node.add_leaf(shown(variable.text), data=variable)
            return
        inner = node.add(shown(variable.text), data=variable)
        if variable.key in self._open:
            self._fill_parts(inner, variable)
            inner.expand()

    def _fill_parts(self, node: TreeNode[Variable], variable: Variable) -> None:
        for part in members(variable):
            self._add(node, part)

    @on(Tree.NodeExpanded)
    def opened(self, event: Tree.NodeExpanded[Variable]) -> None:
        """Read the parts of a value that is opened."""
        node = event.node
        if node.data is None:
            return
        if self.busy:
            node.collapse()
            return
        self._open.add(node.data.key)
        if not node.children:
            self._fill_parts(node, node.data)

    @on(Tree.NodeCollapsed)
    def closed(self, event: Tree.NodeCollapsed[Variable]) -> None:
        """Remember that a value is closed."""
        if event.node.data is not None:
            self._open.discard(event.node.data.key)

    def _put(self, name: str, content: Text) -> None:
        self.screen_stack[0].query_one(f"#{name}", Static).update(content)

    def _fit(self, name: str, content: Text) -> None:
        """Show content at its full width, so that a narrow widget scrolls instead of wrapping."""
        widget = self.screen_stack[0].query_one(f"#{name}", Static)
        widget.styles.width = max(1, max(map(len, content.plain.split("\n"))))
        widget.update(content)


def shown(text: str, style: str = "") -> Text:
    """Return one line of text for the terminal, with control characters made visible."""
    return Text(visible(text).replace("\n", " "), style, no_wrap=True, overflow="ellipsis")


def _code(rows: Sequence[Row]) -> Text:
    width = max((len(row.label) for row in rows), default=0)
    text = Text()
    for row in rows:
        text.append(visible(f"{'>' if row.marked else ' '} {row.label.rjust(width)}  {row.text}"),
                    HERE if row.marked else "")
        text.append("\n")
    text.rstrip()
    return text if rows else Text("no code of the kernel is known here")


def _stack(moment: Moment) -> Text:
    text = Text()
    for frame in moment.stack:
        line = "/".join(frame.line.rsplit("/", 2)[-2:])
        text.append(visible(f"#{frame.number}  {frame.function}"
                            f"{' [inlined]' if frame.inlined else ''}  {line}"),
                    HERE if frame == moment.frame else "")
        text.append("\n")
    text.rstrip()
    return text
