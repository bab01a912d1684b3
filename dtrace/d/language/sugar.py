"""Rewriting of ``if`` statements as clauses with predicates, as in DTrace.

A clause with an ``if`` is split into several clauses for the same probes: the statements outside
the ``if``, and each branch under its condition, which is stored in a clause-local variable.  An
error in one of these clauses prevents the later ones from running.
"""

from dataclasses import dataclass, field

from dtrace.d.language import syntax
from dtrace.d.language.errors import SourcePlace

ERROR_FLAG = "%error"


def has_if(clause: syntax.Clause) -> bool:
    """Return whether a clause contains an ``if`` statement."""
    return any(isinstance(statement, syntax.If) for statement in clause.statements)


def error_clause() -> syntax.Clause:
    """Return the ERROR clause that sets the error flag; this clause must precede all others."""
    place = SourcePlace(0)
    noted = syntax.Assign(place, "", _flag(place), syntax.Number(place, 1))
    return syntax.Clause(
        place, [syntax.Specifier(place, "dtrace:::ERROR")], None, [syntax.Do(place, noted)],
        hidden=True)


def _flag(place: SourcePlace) -> syntax.Expression:
    return syntax.MemberAccess(place, syntax.Name(place, "self"), True, ERROR_FLAG)


@dataclass
class Cutter:
    """Converter of clauses with ``if`` statements to clauses with predicates."""

    _count: int = 0
    _out: list[syntax.Clause] = field(default_factory=list)

    def cut(self, clause: syntax.Clause) -> list[syntax.Clause]:
        """Return the clauses that replace a clause with ``if`` statements."""
        self._out, self._clause = [], clause
        place = clause.place
        clear = syntax.Assign(place, "", _flag(place), syntax.Number(place, 0))
        self._emit([syntax.Do(place, clear)], None)
        condition = None
        if clause.predicate is not None:
            condition = self._condition(None, clause.predicate)
        self._statements(clause.statements, condition)
        return self._out

    def _variable(self, number: int, place: SourcePlace) -> syntax.Expression:
        return syntax.MemberAccess(place, syntax.Name(place, "this"), True, f"%condition_{number}")

    def _condition(self, outer: int | None, value: syntax.Expression) -> int:
        """Emit a clause that stores a condition in a variable, and return the variable's number."""
        self._count += 1
        place = value.place
        left = syntax.Number(place, 1) if outer is None else self._variable(outer, place)
        both = syntax.Binary(place, "&&", left, value)
        keep = syntax.Assign(place, "", self._variable(self._count, place), both)
        self._emit([syntax.Do(place, keep)], None, guarded=True)
        return self._count

    def _emit(self, statements: list[syntax.Statement], condition: int | None,
              guarded: bool = False) -> None:
        place = self._clause.place
        predicate: syntax.Expression | None = None
        if guarded or condition is not None:
            predicate = syntax.Unary(place, "!", _flag(place))
        if condition is not None:
            assert predicate is not None
            predicate = syntax.Binary(place, "&&", predicate, self._variable(condition, place))
        self._out.append(syntax.Clause(place, self._clause.probes, predicate, statements))

    def _statements(self, statements: list[syntax.Statement], condition: int | None) -> None:
        run: list[syntax.Statement] = []
        for statement in statements:
            if isinstance(statement, syntax.Do):
                run.append(statement)
                continue
            if run:
                self._emit(run, condition, guarded=True)
                run = []
            inner = self._condition(condition, statement.condition)
            self._statements(statement.then, inner)
            if statement.otherwise:
                place = statement.place
                opposite = syntax.Unary(place, "!", self._variable(inner, place))
                self._statements(statement.otherwise, self._condition(condition, opposite))
        if run:
            self._emit(run, condition, guarded=True)
