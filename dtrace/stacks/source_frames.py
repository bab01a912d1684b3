"""Frames of a stack as the source describes them, inlined functions included."""

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from dtrace.debug.debug_data import Sources
from dtrace.debug.debug_index import debug_index
from dtrace.stacks.locals import Local, Locals
from dtrace.stacks.shown_locals import text_of
from dtrace.stacks.stack import StackFrame, Stacks
from dwarf.debug_file import DebugDataError
from dwarf.index import Function
from dwarf.locations import Term
from dwarf.types import declare
from dwarf.values import Memory, Value
from emu.host.errors import KinstError
from emu.machine.machine import Machine

MAX_FRAMES = 200  # maximum number of frames of a stack


class NoSuchVariable(KinstError, KeyError):
    """Error for a name that no variable in scope has."""

    __str__ = KinstError.__str__


class Variables(Mapping[str, Value]):
    """Parameters and local variables of one function, by name.

    A variable whose value is unknown is among the names; reading it raises an error that says why.

    :raises NoSuchVariable: from ``[]``, a ``KeyError``, if no variable has that name.
    :raises DebugDataError: from ``[]``, if the variable's value is unknown.
    """

    def __init__(self, function: str, variables: Sequence[Local]) -> None:
        self.function, self.all = function, tuple(variables)
        self._named: dict[str, Local] = {}
        for local in variables:  # those of inner blocks are first, and hide the others
            self._named.setdefault(local.variable.name, local)

    def __getitem__(self, name: str) -> Value:
        local = self.local(name)
        if local.reason:
            raise DebugDataError(f"{name}: {local.reason}")
        return local.value

    def __contains__(self, name: object) -> bool:
        return name in self._named  # also if its value is unknown

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)

    def local(self, name: str) -> Local:
        """Return the variable that a name refers to.

        :raises NoSuchVariable: if no variable has that name.
        """
        local = self._named.get(name)
        if local is None:
            near = difflib.get_close_matches(name, self._named, 1)
            raise NoSuchVariable(f"{self.function} has no variable '{name}' in scope here"
                                 + (f"; did you mean '{near[0]}'?" if near else ""))
        return local

    @property
    def parameters(self) -> Self:
        """The function's parameters only."""
        return type(self)(self.function, [one for one in self.all if one.variable.parameter])

    def rows(self) -> list[tuple[str, str]]:
        """Return the declaration and the value of each variable as text."""
        return [(declare(one.variable.type, one.variable.name),
                 f"<{one.reason}>" if one.reason else text_of(one.value)) for one in self.all]

    def __repr__(self) -> str:
        return "\n".join(f"{declaration} = {value}" for declaration, value in self.rows()) or (
            f"({self.function} has no variables in scope here)")


@dataclass(frozen=True, repr=False)
class SourceFrame:
    """A function on the stack, or an inlined function.

    :param number: 0 for the innermost one.
    :param function: the function's name; ``function+offset`` outside all known functions.
    :param copy: the function in the debug data; None if it has none.
    :param line: ``file:line`` of the next instruction, or of the call in progress; empty if
        unknown.
    :param frame: index of the stack frame; inlined functions share that of the function around
        them.
    :param pc: the next instruction, or the address to which the call in progress returns.
    :param is_return: whether it is a return address.
    """

    number: int
    function: str
    copy: Function | None
    line: str
    frame: int
    pc: int
    is_return: bool = False

    @property
    def code(self) -> int:
        """An address in the next instruction, or in the call in progress."""
        return self.pc - self.is_return

    @property
    def inlined(self) -> bool:
        """Whether the function is inlined into the next frame."""
        return self.copy is not None and self.copy.inlined

    def __repr__(self) -> str:
        return (f"#{self.number}  {self.function}{' [inlined]' if self.inlined else ''}"
                + (f"  {self.line}" if self.line else ""))


class SourceFrames:
    """Reader of the source frames of one machine.

    Without debug data, frames have neither lines nor variables.

    :param memory: the memory that values refer to; by default that of the machine.
    :raises DebugDataError: if the debug data is damaged; methods may raise this, too.
    """

    def __init__(self, machine: Machine, memory: Memory | None = None) -> None:
        self._image = machine.image
        self.sources, self.stacks = Sources(machine.image), Stacks(machine)
        self._index = debug_index(machine.image) if self.sources.known else None
        self._locals = (Locals(machine, memory, self.stacks) if self._index is not None else None)

    def physical(self, read: Callable[[str], int], limit: int = MAX_FRAMES) -> list[StackFrame]:
        """Return the frames of the stack without inlined functions, innermost first."""
        return list(self.stacks.frames(read, limit))

    def all(self, stack: Sequence[StackFrame]) -> list[SourceFrame]:
        """Return the functions on a stack, innermost first, with inlined functions."""
        found = list[SourceFrame]()
        for index, frame in enumerate(stack):
            at = frame.pc - frame.is_return
            line = self.sources.line(at)
            copies = self._index.stack(at) if self._index is not None else []
            if not copies:
                found.append(SourceFrame(len(found), self._where(at, frame.pc), None,
                                         "" if line == "?" else line, index, frame.pc,
                                         frame.is_return))
            for copy in copies:
                found.append(SourceFrame(len(found), copy.name, copy, "" if line == "?" else line,
                                         index, frame.pc, frame.is_return))
                if copy.inlined and self._index is not None:
                    line = self.sources.call(self._index, copy) if copy.call_line else ""
        return found

    def _where(self, code: int, pc: int) -> str:
        """Return ``function+offset`` of an address, also in assembly without a function's size."""
        symbols = self._image.symbols
        symbol = symbols.function_at(code) or symbols.label_at(code)
        return symbols.where(pc) if symbol is None else f"{symbol.name}+{pc - symbol.address:#x}"

    def variables(self, stack: Sequence[StackFrame], frame: SourceFrame) -> Variables:
        """Return the parameters and local variables of a function on the stack, as of now."""
        copy, found = frame.copy, list[Local]()
        if self._locals is not None and copy is not None:
            found = next((variables for scope, variables in self._locals.of(stack, frame.frame)
                          if scope.function.number == copy.number), [])
        return Variables(frame.function, found)

    def address(self, stack: Sequence[StackFrame], frame: SourceFrame, term: Term) -> int:
        """Return the value of a term, such as the address of a variable, in a frame.

        :raises DebugDataError: if it is unknown.
        """
        assert self._locals is not None
        return self._locals.term(stack, frame.frame, term)
