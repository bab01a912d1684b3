"""Walks through a machine or a recording by source lines and functions, as used by Python."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dtrace.calls.positions import reached_at
from dtrace.debug.source_text import SourceText
from dtrace.descriptions.code_places import code_places
from dtrace.stacks.line_steps import LineSteps
from dtrace.stacks.locals import Local
from dtrace.stacks.shown_locals import text_of
from dtrace.stacks.source_frames import SourceFrame, SourceFrames
from dtrace.stacks.stack import StackFrame
from dwarf.debug_file import DebugDataError
from dwarf.locations import Location, Register
from dwarf.types import Array, Procedure, Structure, Void, declare, size_of, strip
from dwarf.values import Value, from_bits
from emu.gdb.target import (
    Interrupted,
    LiveTarget,
    PlayedTarget,
    Poll,
    StopEvent,
    Target,
    Why,
)
from emu.host.errors import KinstError
from emu.machine.call import DEFAULT_LIMIT
from emu.unicorn.machine import UnicornMachine
from kinst_emu.api.machine import Machine
from kinst_emu.api.recording import Recording
from kinst_emu.api.turn import Turn, in_turn
from kinst_emu.notebook import html
from kinst_emu.notebook.values import VariableTable
from kinst_emu.why.explainer import Answer, Explainer
from kinst_emu.why.text import lines

STEPPED = (Why.STEP, Why.BREAKPOINT)


@dataclass(frozen=True, repr=False)
class Here:
    """Place of a walk.

    :param frame: the selected function on the stack.
    :param source: text of the source line; empty if unknown.
    :param said: what happened on the way; empty if there is nothing to say.
    :param value: after ``finish``, what the function returned, with its C type; otherwise None.
    """

    frame: SourceFrame
    source: str
    said: str = ""
    value: Value = None

    def __repr__(self) -> str:
        return "\n".join([*([self.said] if self.said else []), repr(self.frame),
                          *([f"    {self.source}"] if self.source else [])])

    def _repr_html_(self) -> str:
        return html.text(repr(self).splitlines())


class Stack(list[SourceFrame]):
    """Functions on the stack, innermost first, with inlined functions."""

    def __repr__(self) -> str:
        return "\n".join(map(repr, self))

    def _repr_html_(self) -> str:
        return html.table(("", "function", "line"), [
            (frame.number, frame.function + (" [inlined]" if frame.inlined else ""), frame.line)
            for frame in self])


class Reason:
    """Answer of ``Walk.why``, as text; ``answer`` has its parts."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def __repr__(self) -> str:
        return "\n".join(lines(self.answer))

    def _repr_html_(self) -> str:
        return html.text(lines(self.answer))


class Walk:
    """Walk through a machine or a recording by source lines and functions, as in gdb.

    The walk moves the machine or recording itself, which may also be moved by other means; the
    selected function is then the innermost one again.  Backward steps and ``why`` need a recording.

    :param of: a machine on Unicorn, or a recording.
    :param sources: directories with the kernel's source files, such as ``/usr/src``.
    :param limit: maximum number of instructions of one operation.
    :raises KinstError: from all methods, when the kernel has no debug data for what they need.
    """

    def __init__(self, of: Machine | Recording, sources: Sequence[str | Path] | SourceText = (),
                 limit: int = DEFAULT_LIMIT) -> None:
        self._recording = of if isinstance(of, Recording) else None
        machine = of.machine if isinstance(of, Recording) else of
        if not isinstance(machine.emulated, UnicornMachine):
            raise KinstError("a machine on QEMU cannot be walked through: walk before on_qemu()")
        self.machine, self.limit = machine, limit
        self._text = (sources if isinstance(sources, SourceText) else
                      SourceText([Path(one) for one in sources]) if sources else None)
        self._target: Target = (LiveTarget(machine.emulated) if self._recording is None
                                else PlayedTarget(self._recording.player))
        self._frames = SourceFrames(machine.emulated, machine)
        self._steps = LineSteps(self._target, self._frames)
        self._explainer: Explainer | None = None
        #: asked now and then during an operation; it ends early if this returns True
        self.interrupted: Callable[[], bool] = lambda: False
        self._known: tuple[tuple[int, int], list[StackFrame], Stack] | None = None
        self._selected = 0

    @property
    def turn(self) -> Turn:
        """Lock of the machine."""
        return self.machine.turn

    def __repr__(self) -> str:
        try:
            return f"<walk at {self.frame!r}>"
        except KinstError as error:  # outside the kernel, or another thread uses the machine
            return f"<walk: {error}>"

    # -- where the walk is ------------------------------------------------------------------------

    @in_turn
    def stack(self) -> Stack:
        """Return the functions on the stack, innermost first, with inlined functions.

        :raises KinstError: when the CPU executes a program, not the kernel.
        """
        return self._stack()[1]

    def _stack(self) -> tuple[list[StackFrame], Stack]:
        """Return the stack without and with inlined functions."""
        emulated = self.machine.emulated
        assert isinstance(emulated, UnicornMachine)
        now = emulated.instructions, emulated.pc
        moved = self._known is None or self._known[0] != now
        if self._known is None or moved or self._recording is None:
            # The registers and stack of a live machine may have been written since the last time.
            frames = self._frames.physical(emulated.read_register)
            self._known = now, frames, Stack(self._frames.all(frames))
        if moved:
            self._selected = 0
        if not self._known[1]:
            raise KinstError(f"the CPU is about to execute {emulated.pc:#x}, which is not code of "
                             "the kernel: go to a function of the kernel first")
        return self._known[1:]

    @property
    def frame(self) -> SourceFrame:
        """The selected function on the stack."""
        stack = self.stack()
        return stack[self._selected]

    def here(self) -> Here:
        """Return the current place."""
        return self._here("")

    def args(self) -> VariableTable:
        """Return the parameters of the selected function, a mapping from names to values.

        A value that is unknown raises an error that says why.
        """
        return self.locals().parameters

    @in_turn
    def locals(self) -> VariableTable:
        """Return the parameters and local variables of the selected function that are in scope.

        Structures, arrays and pointers read guest memory on access.
        """
        found = self._frames.variables(self._stack()[0], self.frame)
        return VariableTable(found.function, found.all)

    def up(self, count: int = 1) -> Here:
        """Select the function that called the selected one, or around which that was inlined."""
        stack, wanted = self.stack(), self._selected + count
        if not 0 <= wanted < len(stack):
            side, name = "above" if count > 0 else "below", stack[self._selected].function
            raise KinstError(f"cannot select {abs(count)} {side} {name}: the stack has "
                             f"{len(stack)} functions")
        self._selected = wanted
        return self.here()

    def down(self, count: int = 1) -> Here:
        """Select the function that the selected one called; the opposite of ``up``."""
        return self.up(-count)

    # -- steps ------------------------------------------------------------------------------------

    @in_turn
    def next(self, count: int = 1) -> Here:
        """Go to the next source line of the innermost function, over calls, or to its caller.

        :param count: number of lines; negative to go back.
        """
        return self._repeated(count, self._steps.next, self._steps.back_next)

    @in_turn
    def step(self, count: int = 1) -> Here:
        """Go to the next source line, also in functions that are called.

        :param count: number of lines; negative to go back.
        """
        return self._repeated(count, self._steps.step, self._steps.back_step)

    @in_turn
    def visit(self, count: int = 1) -> Here:
        """Go to the next time that the current line begins, in any copy of its function.

        :param count: number of times; negative to go back.
        :raises KinstError: when the line is unknown, or to go back on a machine.
        """
        line = self.stack()[0].line
        if not line:
            raise KinstError(f"the line of {self.machine.where(self.machine.pc)} is unknown")
        addresses = [place.address for place in code_places(self.machine.kernel.image, line)]
        return self._repeated(count, lambda poll: self._steps.reach(addresses, False, poll),
                              lambda poll: self._steps.reach(addresses, True, poll))

    @in_turn
    def reach(self, place: str, back: bool = False) -> Here:
        """Run to the next execution of a place in a recording, or back to the last one.

        :param place: a function, ``FUNCTION:OFFSET`` or ``FILE:LINE``.
        """
        if self._recording is None:
            raise KinstError("reach() needs a recording: on a machine, use run(PLACE)")
        addresses = reached_at(self._recording.player, place).addresses
        said = self._moved(lambda poll: self._steps.reach(addresses, back, poll))
        return self._here(f"{place}: {said}" if said else "")

    def _repeated(self, count: int, forward: Callable[[Poll], StopEvent],
                  back: Callable[[Poll], StopEvent]) -> Here:
        said, begin = "", self._target.count
        for _ in range(abs(count)):
            said = self._moved(forward if count > 0 else back, begin)
            if said:
                break
        return self._here(said)

    @in_turn
    def finish(self, back: bool = False) -> Here:
        """Run until the selected function returns; the place has the value that it returned.

        :param back: go back to the call of the function instead.
        """
        frame = self.frame
        if back:
            return self._here(self._moved(lambda poll: self._steps.back_finish(frame, poll)))
        procedure, called = self._procedure(frame), frame.function
        said = self._moved(lambda poll: self._steps.finish(frame, poll))
        if said or procedure is None or isinstance(strip(procedure.result), Void):
            return self._here(said or f"{called} returned")
        emulated = self.machine.emulated
        try:
            value = from_bits(self.machine, procedure.result,
                              emulated.read_register(emulated.arch.result))
        except DebugDataError as error:  # a structure or a floating-point number
            return self._here(f"{called} returned; its value is unknown: {error}")
        return self._here(f"{called} returned {text_of(value)}", value)

    def _procedure(self, frame: SourceFrame) -> Procedure | None:
        symbol = self.machine.emulated.image.symbols.function_at(frame.code)
        if frame.inlined or symbol is None:
            return None
        return self.machine.kernel.prototypes.of(symbol.name, symbol.address)

    def _moved(self, move: Callable[[Poll], StopEvent], begin: int | None = None) -> str:
        """Move, and return why the walk ended early, or an empty string.

        :param begin: instruction count at which the operation began; None: now.
        :raises KeyboardInterrupt: if the user interrupted it.
        """
        target = self._target
        begin = target.count if begin is None else begin

        def beyond() -> bool:
            return abs(target.count - begin) > self.limit

        try:
            event = move(lambda: beyond() or self.interrupted())
        except Interrupted:
            raise KeyboardInterrupt from None
        if beyond():
            raise KinstError(f"not reached within {self.limit} instructions: the walk is now at "
                             f"{self.machine.where(self.machine.pc)}")
        if event.why is Why.INTERRUPTED:
            raise KeyboardInterrupt
        return "" if event.why in STEPPED else event.detail or event.why.value

    def _here(self, said: str, value: Value = None) -> Here:
        frame = self.frame
        return Here(frame, "" if self._text is None else self._text.line(frame.line), said, value)

    # -- reasons ----------------------------------------------------------------------------------

    @in_turn
    def why(self, what: str | int = "", size: int = 8) -> Reason:
        """Return why the current instruction is executed, or where a value was made.

        The position of the recording does not change.

        :param what: a variable of the selected function, a register, a C expression that denotes a
            place in memory, or an address; by default the current instruction.
        :param size: size in bytes of the value at an address.
        :raises KinstError: when this is not a recording, or the origin cannot be searched for.
        """
        recording = self._recording
        if recording is None:
            raise KinstError("why() needs a recording: make one with machine.record(FILE)")
        if self._explainer is None:
            self._explainer = Explainer(recording.player, self._text)
        here, selected, explainer = recording.position, self._selected, self._explainer
        frame = self.frame
        try:
            if what == "":
                if here == recording.end:
                    raise KinstError("the recording ends here, before the current instruction is "
                                     "executed: go back first")
                answer = explainer.executed(f"{self.machine.where(self.machine.pc)} is executed",
                                            here.instructions)
            elif isinstance(what, int):
                answer = explainer.memory_of(f"the value at {what:#x}", what, size)
            elif what in (variables := self.locals()):
                answer = self._of_variable(explainer, frame, variables.local(what))
            else:
                answer = explainer.value_of(what)
        finally:
            recording.go(here)
            self._selected = selected
        return Reason(answer)

    def _of_variable(self, explainer: Explainer, frame: SourceFrame, local: Local) -> Answer:
        name, place, kind = local.variable.name, local.variable.place, local.variable.type
        if local.reason:
            raise KinstError(f"{name}: {local.reason}")
        if not isinstance(place, Location):
            raise KinstError(f"{name}: its value is in several places: ask for a register or a "
                             "member")
        if isinstance(strip(kind), Structure | Array):
            raise KinstError(f"{name} is a {declare(kind)}: ask for one of its members, by its "
                             "address and size")
        if place.memory:
            address = self._frames.address(self._stack()[0], frame, place.term)
            return explainer.memory_of(name, address, size_of(kind), text_of(local.value))
        if not isinstance(place.term, Register):
            raise KinstError(f"{name}: the debug data computes its value from others; ask for one "
                             "of these")
        if frame.frame:
            raise KinstError(f"{name} is in a register of {frame.function}, which is not the "
                             "innermost function: finish the functions below it first")
        return explainer.value_of(self.machine.emulated.arch.dwarf_registers[place.term.number],
                                  name=name, shown=text_of(local.value))
