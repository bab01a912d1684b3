"""What the checks of one program's expressions share: the names that there are, and what a
parameter stands for while an inline or translator is put in the place of its name."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from dtrace.d.language import syntax
from dtrace.d.language.errors import DError, SourcePlace
from dtrace.d.language.identifiers import (
    CONTEXT,
    FUNCTIONS,
    HOSTED,
    REGISTERS,
    AggregationInfo,
    Scope,
    Variable,
)
from dtrace.d.language.library import CONSTANTS
from dtrace.d.language.surroundings import Surroundings
from dtrace.d.language.types import INT, LONG, Universe
from dwarf.types import Incomplete, Type, strip

MAX_INLINES = 64  # inside one another
MAX_EXPANSIONS = 5_000  # of inlines and translators in one


class Environment(ABC):
    """The names of a program, and what checks its expressions.

    :param bound: what the parameters of inlines and translators stand for.
    :param fresh: variables that have no place yet.
    :param hidden: what the program's version of D does not have.
    :param least: attributes that DTrace's variables must have (``-x amin``).
    """

    def __init__(self, universe: Universe, surroundings: Surroundings) -> None:
        self.universe, self.surroundings = universe, surroundings
        self.variables: dict[tuple[Scope, str], Variable] = {}
        self.fresh: list[Variable] = []
        self.aggregations: dict[str, AggregationInfo] = {}
        self.inlines: dict[str, syntax.Inline] = {}
        self.translators: list[syntax.Translator] = []
        self.externs: dict[str, Type] = {}
        self.bound: dict[str, syntax.Expression] = {}
        self.hidden: frozenset[str] = frozenset()
        self.least = ""
        self._depth = 0
        self._expansions = 0  # in the expression that is being checked
        for name, value in {"NULL": 0, **CONSTANTS}.items():
            self.inlines[name] = syntax.Inline(
                SourcePlace(0), name, LONG if name == "NULL" else INT, None,
                syntax.Number(SourcePlace(0), value))

    # -- expressions -------------------------------------------------------------------------------

    @abstractmethod
    def check(self, node: syntax.Expression) -> syntax.Expression:
        """The checked tree; a variable may be one that nothing has been assigned to.

        :raises DError: for the first mistake in it.
        """

    def read(self, node: syntax.Expression) -> syntax.Expression:
        """Check an expression whose value is wanted.

        :raises DError: for the first mistake in it.
        """
        found = self.check(node)
        if isinstance(found, syntax.VariableUse) and not found.variable.known:
            v = found.variable
            raise DError("D_VAR_UNDEF", f"{v.scope.value}{v.name} has not yet been declared or "
                         "assigned", node.place)
        return found

    @contextmanager
    def binding(self, bound: dict[str, syntax.Expression]) -> Iterator[None]:
        """Inside, these names stand for expressions."""
        before, self.bound = self.bound, bound
        try:
            yield
        finally:
            self.bound = before

    @contextmanager
    def expansion(self, what: str, too_deep: str, bound: dict[str, syntax.Expression],
                  place: SourcePlace) -> Iterator[None]:
        """Inside, an inline or translator is put in the place of its name.

        :raises DError: when there are too many inside one another, or (each may use others twice)
            in one expression.
        """
        if self._depth == 0:
            self._expansions = 0
        self._depth += 1
        try:
            if self._depth > MAX_INLINES:
                raise DError("D_UNKNOWN", f"{too_deep} nested too deep", place)
            self._expansions += 1
            if self._expansions > MAX_EXPANSIONS:
                raise DError(
                    "D_UNKNOWN", f"{what} is made of more than {MAX_EXPANSIONS} others", place)
            with self.binding(bound):
                yield
        finally:
            self._depth -= 1

    # -- names -------------------------------------------------------------------------------------

    def knows(self, name: str) -> bool:
        """Whether a word is a variable or function, for the parser."""
        return ((name not in self.hidden and self.builtin(name))
                or name in self.inlines or name in self.externs
                or (Scope.GLOBAL, name) in self.variables
                or self.universe.enumerator(name) is not None)

    @staticmethod
    def builtin(name: str) -> bool:
        """Whether a word is DTrace's."""
        return (name in CONTEXT or name in HOSTED or name in FUNCTIONS or name in REGISTERS
                or name in ("args", "self", "this"))

    def owns(self, name: str) -> bool:
        """Whether a name is the program's."""
        return ((Scope.GLOBAL, name) in self.variables or name in self.externs
                or (name in self.inlines and name != "NULL" and name not in CONSTANTS))

    def new(self, variable: Variable) -> Variable:
        """A variable of the program; the one of its name, where there is one."""
        key = variable.scope, variable.name
        if key not in self.variables:
            self.variables[key] = variable
            self.fresh.append(variable)
        return self.variables[key]

    def complete(self, kind: Type) -> Type:
        """A type without typedefs; a structure that was only declared, by its definition."""
        found = strip(kind)
        if isinstance(found, Incomplete):
            better = self.universe.tagged(found.kind, found.name)
            return found if better is None else strip(better)
        return found
