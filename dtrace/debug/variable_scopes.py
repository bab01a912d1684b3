"""Variables in scope at a kernel's instructions: those of inline copies and of their function."""

from dataclasses import dataclass, replace

from dwarf.dwarf_types import DwarfTypes
from dwarf.index import DebugIndex, Function
from dwarf.linked_types import LinkedTypes
from dwarf.locations import Location, Register, Term
from dwarf.scopes import Variable
from dwarf.types import Types
from emu.arch.arch import Arch
from emu.elf.symbols import SymbolTable
from kinst.code.frame import FrameFollower


@dataclass(frozen=True)
class Scope:
    """Variables of a function, or of an inline copy of one, in scope at an instruction.

    :param variables: the variables; those of inner blocks are first.
    """

    function: Function
    variables: tuple[Variable, ...]


def is_ambiguous(arch: Arch, term: Term) -> bool:
    """Return whether debug data with this value may mean a register or zero.

    Clang gives arm64's zero register the number of the stack pointer.
    """
    return arch.zero_alias is not None and term == Register(
        arch.dwarf_registers.index(arch.zero_alias))


def ambiguous(arch: Arch) -> str:
    """Return why such a value is unknown."""
    return f"the debug data may mean {arch.zero_alias} or zero"


class VariableScopes:
    """Variables in scope at the instructions of a kernel and its modules.

    :param types: the kernel's types; without DWARF, nothing is in scope.
    :param follower: finds the frame in prologues and epilogues.
    """

    def __init__(self, arch: Arch, symbols: SymbolTable, types: Types, index: DebugIndex,
                 follower: FrameFollower) -> None:
        self._arch, self._symbols, self._index = arch, symbols, index
        self._types = types if isinstance(types, DwarfTypes | LinkedTypes) else None
        self._follower = follower
        self._known: dict[tuple[int, bool], tuple[Scope, ...]] = {}

    @property
    def register_names(self) -> tuple[str, ...]:
        """Names of the registers, indexed by DWARF number."""
        return self._arch.dwarf_registers

    def at(self, address: int, is_return: bool = False) -> tuple[Scope, ...]:
        """Return the scopes at an instruction, the innermost inline copy first, the function last.

        :param is_return: whether it is a return address; its call determines the scopes.
        """
        key = address, is_return
        if key not in self._known:
            self._known[key] = tuple(self._find(address - is_return, is_return))
        return self._known[key]

    def _find(self, address: int, is_return: bool) -> list[Scope]:
        if self._types is None:
            return []
        frame, function = None, self._symbols.function_at(address)
        if function is not None and not is_return:
            frame = (self._follower.in_epilogue(function, address)
                     or self._follower.in_prologue(function, address))
        numbers = self._arch.dwarf_registers
        placed = None if frame is None else (numbers.index(frame.base), frame.offset)
        return [Scope(copy, tuple(map(self._checked, self._types.variables(
            copy, address, placed)))) for copy in self._index.stack(address)]

    def _checked(self, variable: Variable) -> Variable:
        """Return a variable without its place if that may be a register or zero."""
        if not (isinstance(variable.place, Location)
                and not variable.place.memory and is_ambiguous(self._arch, variable.place.term)):
            return variable
        return replace(variable, place=None, reason=ambiguous(self._arch))

    def names(self, address: int) -> set[str]:
        """Return the names of all variables of the functions at an instruction."""
        types = self._types
        if types is None:
            return set()
        return {name for copy in self._index.stack(address)
                for name in types.variable_names(copy)}

    def find(self, name: str, address: int) -> Variable | None:
        """Return the variable to which a name refers at an instruction, or None.

        The innermost block that declares the name decides, then the inline copies around it.
        """
        return next((variable for scope in self.at(address) for variable in scope.variables
                     if variable.name == name), None)
