"""Values of the parameters and local variables in the frames of a stopped guest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dtrace.debug.debug_index import debug_index
from dtrace.debug.kernel_types import kernel_types
from dtrace.debug.variable_scopes import Scope, VariableScopes, ambiguous, is_ambiguous
from dtrace.stacks.stack import StackFrame, Stacks
from dwarf.debug_file import DebugDataError
from dwarf.dwarf_types import DwarfTypes
from dwarf.linked_types import LinkedTypes
from dwarf.locations import Term, Unkept
from dwarf.placed import evaluate, value_at
from dwarf.scopes import Variable
from dwarf.values import Memory, Value
from emu.host.errors import MemoryAccessError
from emu.machine.machine import Machine

MAX_ENTERED = 32  # maximum number of frames through which the entry value of a register is traced


@dataclass(frozen=True)
class Local:
    """A variable in a frame, with its value.

    :param value: the value; structures and arrays read guest memory on access.  None if it is
        unknown.
    :param reason: why the value is unknown; empty if it is known.
    """

    variable: Variable
    value: Value
    reason: str


class Locals:
    """Reader for the variables in the frames of one machine.

    :raises DebugDataError: if the kernel has no DWARF, or it is damaged.
    """

    def __init__(self, machine: Machine, memory: Memory | None = None,
                 stacks: Stacks | None = None) -> None:
        self._machine = machine
        self._memory: Memory = machine if memory is None else memory
        self._stacks = Stacks(machine) if stacks is None else stacks
        image = machine.image
        self._types, self._index = kernel_types(image), debug_index(image)
        self.scopes = VariableScopes(machine.arch, image.symbols, self._types, self._index,
                                     self._stacks.follower)

    def frames(self, read: Callable[[str], int], limit: int) -> list[StackFrame]:
        """Return the frames of the current stack, innermost first."""
        return list(self._stacks.frames(read, limit))

    def of(self, frames: Sequence[StackFrame], number: int = 0
           ) -> list[tuple[Scope, list[Local]]]:
        """Return the variables of a frame with their values, those of inline copies first.

        :param frames: the stack; entry values need the frames after ``number``.
        """
        frame = frames[number]
        return [(scope, [self.read(frames, number, variable) for variable in scope.variables])
                for scope in self.scopes.at(frame.pc, frame.is_return)]

    def read(self, frames: Sequence[StackFrame], number: int, variable: Variable) -> Local:
        """Return a variable of a frame with its value."""
        if variable.place is None:
            return Local(variable, None, variable.reason)
        try:
            value = value_at(variable.place, variable.type, self._register(frames[number]),
                             self._memory, lambda n: self.entered(frames, number, n))
        except (DebugDataError, MemoryAccessError) as error:
            return Local(variable, None, str(error))
        return Local(variable, value, "")

    def term(self, frames: Sequence[StackFrame], number: int, term: Term) -> int:
        """Return the value of a term in a frame.

        :raises DebugDataError: if it is unknown.
        """
        return evaluate(term, self._register(frames[number]), self._memory,
                        lambda n: self.entered(frames, number, n))

    def _register(self, frame: StackFrame) -> Callable[[int], int]:
        names = self._machine.arch.dwarf_registers

        def read(number: int) -> int:
            if not 0 <= number < len(names) or names[number] not in frame.registers:
                raise DebugDataError(f"DWARF register {number} is not a general register")
            if names[number] in frame.unknown:
                raise DebugDataError("optimized out (a function that was called may have "
                                     f"overwritten {names[number]})")
            return frame.registers[names[number]]

        return read

    def entered(self, frames: Sequence[StackFrame], number: int, register: int) -> int:
        """Return the value of a register when the function of a frame was entered.

        :param register: DWARF number of the register.
        :raises DebugDataError: if the caller does not describe it.
        """
        if number >= MAX_ENTERED:
            raise DebugDataError("the value was passed through too many calls")
        try:
            return self._passed(frames, number, register)
        except Unkept as error:
            raise DebugDataError(f"optimized out ({error})") from None

    def _passed(self, frames: Sequence[StackFrame], number: int, register: int) -> int:
        if number + 1 >= len(frames) or not frames[number + 1].is_return:
            raise Unkept("the caller is unknown")
        types, frame, caller = self._types, frames[number], frames[number + 1]
        around = self._index.stack(caller.pc - 1)
        function = self._machine.image.symbols.function_at(frame.pc - frame.is_return)
        if not around or function is None or not isinstance(types, DwarfTypes | LinkedTypes):
            raise Unkept("the caller has no debug data")
        term, target = types.call_value(around[-1], caller.pc, register)

        def value(of: Term) -> int:
            return evaluate(of, self._register(caller), self._memory,
                            lambda n: self.entered(frames, number + 1, n))

        if target is None or (target != function.name if isinstance(target, str)
                              else value(target) != function.address):
            raise Unkept("the function was not called from there, but reached by a tail call")
        if is_ambiguous(self._machine.arch, term):
            raise Unkept(ambiguous(self._machine.arch))
        return value(term)
