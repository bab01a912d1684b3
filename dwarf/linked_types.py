"""Combined C types of a kernel and its modules; the kernel's types take precedence."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dwarf.dwarf_types import DwarfTypes
from dwarf.index import Function
from dwarf.linked_index import OWN, SHIFT
from dwarf.types import Procedure, Type, Types

if TYPE_CHECKING:
    from dwarf.locations import Frame, Place, Term
    from dwarf.scopes import Variable


class LinkedTypes(Types):
    """C types of a kernel and its modules.

    :param kernel: types of the kernel, in any format; None if there are none.
    :param modules: (number, first address, end, types) of the modules with debug data, numbered
        from 1 as in the index.
    """

    def __init__(self, kernel: Types | None,
                 modules: Sequence[tuple[int, int, int, DwarfTypes]]) -> None:
        self._kernel, self._modules = kernel, modules
        self._all: list[Types] = [*([kernel] if kernel is not None else ()),
                                  *(types for _n, _begin, _end, types in modules)]

    @property
    def format(self) -> str:
        """User-visible name of the format of the kernel's debug data, such as "CTF version 3"."""
        return self._all[0].format if self._all else "DWARF"

    def _at(self, address: int | None) -> tuple[Types | None, int | None]:
        """Return the types of the module that contains an address, and the address in the module.

        For any other address, return the kernel's types and the address itself.
        """
        for _number, begin, end, types in self._modules:
            if address is not None and begin <= address < end:
                return types, address - begin
        return self._kernel, address

    def named(self, name: str) -> list[Type]:
        """Return the types with a C name: the kernel's or, if it has none, those of a module."""
        return next((found for types in self._all if (found := types.named(name))), [])

    def function(self, name: str, address: int | None = None) -> Procedure | None:
        """Return the type of a function, or None; ``address`` selects the kernel or a module."""
        types, own = self._at(address)
        procedure = types.function(name, own) if types is not None else None
        if procedure is None and address is None:
            procedure = next((p for t in self._all if (p := t.function(name)) is not None), None)
        return procedure

    def variable(self, name: str, address: int | None = None) -> Type | None:
        """Return the type of a variable, or None; ``address`` selects the kernel or a module."""
        types, own = self._at(address)
        kind = types.variable(name, own) if types is not None else None
        if kind is None and address is None:
            kind = next((v for t in self._all if (v := t.variable(name)) is not None), None)
        return kind

    def inlined(self, copy: Function, address: int
                ) -> tuple[Procedure, "list[Place | None]"] | None:
        """Return the prototype and the parameter locations of an inline copy.

        The result is that of ``DwarfTypes.inlined``; it is None if the types are not from DWARF.
        """
        types, own, begin = self._own(copy)
        return None if types is None else types.inlined(own, address - begin)

    def _own(self, copy: Function) -> tuple[DwarfTypes | None, Function, int]:
        """Return the types of a function's file, and the function as that file numbers it.

        The third element is the address at which the file is loaded, 0 for the kernel.
        """
        part = copy.number >> SHIFT
        for number, begin, _end, types in self._modules:
            if number == part:
                return types, replace(
                    copy, number=copy.number & OWN, unit=copy.unit & OWN,
                    parent=None if copy.parent is None else copy.parent & OWN,
                    pieces=tuple((low - begin, high - begin) for low, high in copy.pieces)), begin
        return self._kernel if isinstance(self._kernel, DwarfTypes) else None, copy, 0

    def variables(self, copy: Function, address: int, frame: "Frame | None"
                  ) -> "list[Variable]":
        """Return the variables in scope at an instruction, as ``DwarfTypes.variables`` does."""
        types, own, begin = self._own(copy)
        return [] if types is None else types.variables(own, address - begin, frame)

    def variable_names(self, copy: Function) -> set[str]:
        """Return the names of all variables of a function, in scope or not."""
        types, own, _begin = self._own(copy)
        return set() if types is None else types.variable_names(own)

    def call_value(self, caller: Function, back: int, register: int
                   ) -> "tuple[Term, str | Term | None]":
        """Return the value that a call passes in a register, as ``CallSites.value`` does."""
        from dwarf.locations import Unkept  # imported late, because it is rarely needed

        types, own, begin = self._own(caller)
        if types is None:
            raise Unkept("the caller has no debug data")
        return types.call_value(own, back - begin, register)

    def kept(self, name: str, start: int, address: int, frame: "Frame | None"
             ) -> "list[Place | None] | None":
        """Return the parameter locations of a function, as ``DwarfTypes.kept`` does."""
        types, own = self._at(start)
        if not isinstance(types, DwarfTypes) or own is None:
            return None
        return types.kept(name, own, own + address - start, frame)

    def changed(self, name: str, start: int) -> bool:
        """Return whether the compiler has changed how a function takes its arguments.

        See ``DwarfTypes.changed``.
        """
        types, own = self._at(start)
        return isinstance(types, DwarfTypes) and own is not None and types.changed(name, own)

    def names(self) -> Iterator[str]:
        """Yield the distinct C names of all types."""
        seen = set()
        for types in self._all:
            for name in types.names():
                if name not in seen:
                    seen.add(name)
                    yield name
