"""State that all checks of one program share: known names, and the bindings of parameters."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

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

MAX_INLINES = 64  # maximum nesting depth of inlines and translators
MAX_EXPANSIONS = 5_000  # maximum number of inlines and translators expanded in one expression


class Environment(ABC):
    """The names of a program, and the interface for checking its expressions.

    :param bound: the expressions that the parameters of inlines and translators currently denote.
    :param fresh: new variables that have no storage yet.
    :param created: global variables that the assignments around the expression create.
    :param hidden: names that the selected version of D (``-x version``) does not have.
    :param least: the minimum attributes that built-in variables must have (``-x amin``).
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
        self.created: tuple[str, ...] = ()
        self.least = ""
        self._depth = 0
        self._expansions = 0  # number of expansions in the expression being checked
        for name, value in {"NULL": 0, **CONSTANTS}.items():
            self.inlines[name] = syntax.Inline(
                SourcePlace(0), name, LONG if name == "NULL" else INT, None,
                syntax.Number(SourcePlace(0), value))

    # -- expressions -------------------------------------------------------------------------------

    @abstractmethod
    def check(self, node: syntax.Expression) -> syntax.Expression:
        """Check an expression and return the checked tree.

        The result may be a variable that has no value yet; ``read`` refuses that.

        :raises DError: for the first error in the expression.
        """

    def read(self, node: syntax.Expression) -> syntax.Expression:
        """Check an expression whose value is read; an undeclared, unassigned variable is an error.

        :raises DError: for the first error in the expression.
        """
        if isinstance(node, syntax.Index) and isinstance(node.base, syntax.Name):
            name = node.base.name
            known = self.variables.get((Scope.GLOBAL, name))
            if name not in self.bound and "`" not in name and (
                    not self.knows(name) if known is None else not known.known):
                self.refuse_unset(Scope.GLOBAL, name, node.place)  # before its keys
        checked = self.check(node)
        if isinstance(checked, syntax.VariableUse) and not checked.variable.known:
            self.refuse_unset(checked.variable.scope, checked.variable.name, node.place)
        return checked

    @contextmanager
    def creating(self, name: str) -> Iterator[None]:
        """Note that an assignment creates a variable while its right side is checked."""
        self.created = (*self.created, name)
        try:
            yield
        finally:
            self.created = self.created[:-1]

    @staticmethod
    def refuse_unset(scope: Scope, name: str, place: SourcePlace) -> NoReturn:
        """Refuse to read a variable that the program has neither declared nor assigned.

        :raises DError: always.
        """
        raise DError(
            "D_VAR_UNDEF", f"{scope.value}{name} has not yet been declared or assigned", place)

    @contextmanager
    def binding(self, bound: dict[str, syntax.Expression]) -> Iterator[None]:
        """Bind names to expressions while the context manager is active."""
        before, self.bound = self.bound, bound
        try:
            yield
        finally:
            self.bound = before

    @contextmanager
    def expansion(self, what: str, too_deep: str, bound: dict[str, syntax.Expression],
                  place: SourcePlace) -> Iterator[None]:
        """Bind the parameters of an inline or translator while it is being expanded.

        :param what: the name of the inline or translator, for messages.
        :param too_deep: the subject and verb of the message about too deep nesting.
        :raises DError: if expansions are nested too deep, or if there are too many in one
            expression (their number can double at each level).
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
                    "D_UNKNOWN", f"{what}: more than {MAX_EXPANSIONS} inlines and translators are "
                    "expanded in one expression", place)
            with self.binding(bound):
                yield
        finally:
            self._depth -= 1

    # -- names -------------------------------------------------------------------------------------

    def knows(self, name: str) -> bool:
        """Return whether a word names a variable, function, inline or enumerator."""
        return ((name not in self.hidden and self.builtin(name))
                or name in self.inlines or name in self.externs
                or (Scope.GLOBAL, name) in self.variables
                or self.universe.enumerator(name) is not None)

    @staticmethod
    def builtin(name: str) -> bool:
        """Return whether a word is a built-in name of D."""
        return (name in CONTEXT or name in HOSTED or name in FUNCTIONS or name in REGISTERS
                or name in ("args", "self", "this"))

    def owns(self, name: str) -> bool:
        """Return whether the program has defined a name."""
        return ((Scope.GLOBAL, name) in self.variables or name in self.externs
                or (name in self.inlines and name != "NULL" and name not in CONSTANTS))

    @property
    def unset(self) -> Type:
        """Type of a variable that is used before its first assignment."""
        return self.universe.named("int64_t") or LONG

    def new(self, variable: Variable) -> Variable:
        """Add a variable to the program; return the existing one if the name is already known."""
        key = variable.scope, variable.name
        if key not in self.variables:
            self.variables[key] = variable
            self.fresh.append(variable)
        return self.variables[key]

    def complete(self, kind: Type) -> Type:
        """Return a type without typedefs; replace a forward declaration with its definition."""
        stripped = strip(kind)
        if isinstance(stripped, Incomplete):
            definition = self.universe.tagged(stripped.kind, stripped.name)
            return stripped if definition is None else strip(definition)
        return stripped
