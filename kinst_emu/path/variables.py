"""Variables in scope along a path, and their types, as data from which a page reads the values."""

from collections.abc import Callable, Iterable
from typing import Any

from dtrace.debug.variable_scopes import Scope, VariableScopes
from dwarf.debug_file import DebugDataError
from dwarf.locations import (
    Constant,
    Entered,
    Load,
    Location,
    Operation,
    Place,
    Register,
    Term,
)
from dwarf.scopes import Variable
from dwarf.types import (
    Array,
    Enumeration,
    Float,
    Integer,
    Pointer,
    Structure,
    Type,
    declare,
    size_of,
    strip,
)

MOST_TYPES = 1500  # maximum number of types that are described
MOST_STEPS = 8  # maximum number of pointers and arrays around a structure that are looked through
MOST_MEMBERS = 2000  # maximum number of members of a structure, or of names of an enumeration
UNDESCRIBED = -1


class TypeTable:
    """Types as JSON data; a type refers to another by its index.

    Each has a kind, its declaration, and its size in bytes:

    - ``i`` integer: signed, encoding; ``f`` floating point; ``e`` enumeration: signed, names
    - ``p`` pointer: index of the target; ``a`` array: index of the element, number of elements
    - ``s`` structure or union: members as [name, offset in bits, width in bits or 0, index]
    - ``o`` other: its value is not shown

    The index of a type that the table has no room for is UNDESCRIBED.
    """

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self._numbers: dict[object, int] = {}
        self._waiting: list[tuple[int, Type]] = []
        # identity of a structure -> the structure, which stays alive, and its members
        self._shapes: dict[int, tuple[Structure, object]] = {}

    def number(self, kind: Type) -> int:
        """Return the index of a type, which is added if necessary."""
        declared = declare(kind)
        # Different files may define different structures of the same name.
        key = declared, self._shape(kind)
        number = self._numbers.get(key)
        if number is None:
            if len(self.rows) >= MOST_TYPES:
                return UNDESCRIBED
            number = self._numbers[key] = len(self.rows)
            self.rows.append(["o", declared, 0])
            self._waiting.append((number, kind))
        return number

    def _shape(self, kind: Type) -> object:
        """Return what tells the structure apart to which a type leads, or None."""
        for _ in range(MOST_STEPS):
            inner = strip(kind)
            if isinstance(inner, Pointer):
                kind = inner.target
            elif isinstance(inner, Array):
                kind = inner.element
            elif isinstance(inner, Structure):
                if id(inner) not in self._shapes:
                    self._shapes[id(inner)] = inner, (inner.size, tuple(
                        (member.name, member.offset) for member in inner.members))
                return self._shapes[id(inner)][1]
            else:
                break
        return None

    def finish(self) -> list[list[Any]]:
        """Describe all types and the types that they refer to, and return the table."""
        while self._waiting:
            number, kind = self._waiting.pop(0)
            try:
                self.rows[number] = [*self._row(kind)]
            except DebugDataError:
                continue  # remains "other"
        return self.rows

    def _row(self, kind: Type) -> Iterable[Any]:
        inner, declared = strip(kind), declare(kind)
        size = size_of(inner) if not isinstance(inner, Array) or inner.count is not None else 0
        match inner:
            case Integer():
                return "i", declared, size, int(inner.signed), inner.encoding
            case Float():
                return "f", declared, size
            case Enumeration():
                names = {str(value): name for name, value in inner.values[:MOST_MEMBERS]}
                return "e", declared, size, int(inner.signed), names
            case Pointer():
                return "p", declared, 8, self.number(inner.target)
            case Array():
                return ("a", declared, size, self.number(inner.element),
                        inner.count or 0)
            case Structure():
                return "s", declared, size, [
                    [m.name, m.offset, m.width or 0, self.number(m.type)]
                    for m in inner.members[:MOST_MEMBERS]]
        return "o", declared, size


class VariableTable:
    """Variables in scope at instructions, as JSON data.

    :ivar scopes: distinct lists of scopes; a scope is [function, whether inlined, variables], a
        variable [name, index of its type, whether a parameter, index in ``places``, or -1 and why
        it has no place].
    :ivar places: [1, term] for the term of an address, [0, term] for that of a value, [2, [[term,
        size], ...]] for pieces. A term is ["r", register], ["c", hexadecimal constant], ["l", term,
        size], ["e", register] (at the function's entry) or ["o", operator, left, right, signed].
    """

    def __init__(self, scopes: VariableScopes, registers: tuple[str, ...]) -> None:
        self._scopes, self._registers = scopes, registers
        self.types = TypeTable()
        self.scopes: list[list[Any]] = []
        self.places: list[Any] = []
        self._known: dict[object, int] = {}
        self._place_numbers: dict[object, int] = {}

    def at(self, address: int) -> int:
        """Return the index of the scopes at an instruction."""
        found = self._scopes.at(address)
        rows = tuple(self._scope(scope) for scope in found)
        if rows not in self._known:
            self._known[rows] = len(self.scopes)
            self.scopes.append([[name, inlined, [list(one) for one in variables]]
                                for name, inlined, variables in rows])
        return self._known[rows]

    def _scope(self, scope: Scope) -> tuple[str, int, tuple[tuple[Any, ...], ...]]:
        return (scope.function.name, int(scope.function.inlined),
                tuple(self._variable(one) for one in scope.variables))

    def _variable(self, variable: Variable) -> tuple[Any, ...]:
        number, reason = -1, variable.reason
        if variable.place is not None:
            try:
                number = self._place(variable.place)
            except DebugDataError as error:
                reason = str(error)
        try:
            kind = self.types.number(variable.type)
        except DebugDataError as error:
            kind, number, reason = UNDESCRIBED, -1, str(error)
        head = (variable.name, kind, int(variable.parameter), number)
        return head if number >= 0 else (*head, reason)

    def _place(self, place: Place) -> int:
        if place not in self._place_numbers:
            row: list[Any]
            if isinstance(place, Location):
                row = [int(place.memory), self._term(place.term)]
            else:
                row = [2, [[self._term(term), size] for term, size in place.parts]]
            self._place_numbers[place] = len(self.places)
            self.places.append(row)
        return self._place_numbers[place]

    def _term(self, term: Term) -> list[Any]:
        match term:
            case Register(number=number):
                return ["r", self._register(number)]
            case Entered(number=number):
                return ["e", self._register(number)]
            case Constant(value=value):
                return ["c", f"{value:x}"]
            case Load(address=address, size=size):
                return ["l", self._term(address), size]
            case Operation(operator=sign, left=left, right=right, signed=signed):
                return ["o", sign, self._term(left), self._term(right), int(signed)]

    def _register(self, number: int) -> int:
        names = self._scopes.register_names
        name = names[number] if 0 <= number < len(names) else ""
        if name not in self._registers:
            raise DebugDataError(f"DWARF register {number} is not a general register")
        return self._registers.index(name)


def variable_table(scopes: VariableScopes, registers: tuple[str, ...], addresses: Iterable[int],
                   advance: Callable[[], object]) -> tuple[VariableTable, list[int]]:
    """Return the variables at instructions, and the index of the scopes of each instruction.

    :param advance: called after each instruction, to show progress.
    """
    table, numbers = VariableTable(scopes, registers), []
    for address in addresses:
        numbers.append(table.at(address))
        advance()
    table.types.finish()
    return table, numbers
