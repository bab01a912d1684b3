"""Compilation of clauses to BPF functions.

A whole clause is checked first; then its predicate and statements are compiled in sequence.  At
that point, the arguments of actions are checked against the actions' own rules
(``dtrace/d/compile/actions.py``).
"""

from dataclasses import dataclass

from dtrace.bpf.assembler import Assembler
from dtrace.bpf.encoding import BpfJump
from dtrace.bpf.layout import ContextOffset, Helper
from dtrace.d.checks.checker import Checker
from dtrace.d.compile.actions import ACTIONS
from dtrace.d.compile.aggregations import AggregationCode
from dtrace.d.compile.code import CONTEXT, RECORD
from dtrace.d.compile.records import MAX_RECORD, Recorded
from dtrace.d.compile.storage import Storage
from dtrace.d.language import syntax
from dtrace.d.language.errors import DError, SourcePlace
from dtrace.d.language.identifiers import KeyShape, Role
from dtrace.d.language.options import Options
from dtrace.d.language.types import is_dynamic, is_scalar

AGGREGATE, EXPRESSION = "aggregate", "expression"  # kinds of statements that are not actions


@dataclass
class ClauseFunction:
    """The compiled function of a clause for one probe description.

    :param size: size of its record in bytes; None if it makes no record.
    :param actions: contents of the record.
    :param counted: size of the record in bytes as DTrace counts it.
    """

    clause: syntax.Clause
    specifier: syntax.Specifier
    name: str
    size: int | None
    actions: list[Recorded]
    code: Assembler
    counted: int
    destructive: bool = False


class ClauseCompiler(AggregationCode):
    """Compiler of one clause for one probe description.

    :param functions: the program's aggregations, each with the shape of its keys, by number.
    """

    def __init__(self, checker: Checker, storage: Storage, options: Options,
                 functions: list[KeyShape]) -> None:
        super().__init__(storage, options, functions)
        self.checker = checker
        self._sized: int | None = None  # index of the instruction that loads the record's size
        self.destructive = False

    def compile(self, clause: syntax.Clause, specifier: syntax.Specifier,
                name: str) -> ClauseFunction:
        """Compile a clause and return its function.

        :raises DError: for the first error in the clause.
        """
        statements, predicate = self._checked(clause)
        waiting = []
        for variable in self.checker.fresh:
            if is_dynamic(variable.type):
                waiting.append(variable)
            else:
                self.storage.place(variable)
        self.checker.fresh = waiting
        out = self.out
        out.move(CONTEXT, 1)
        if predicate is not None:
            out.line = predicate.place.line
            true = out.label()
            self.unless(predicate, true)
            self._leave()
            out.place(true)
        kinds = [_kind(e) for e in statements]
        order = _Order()
        row = not clause.hidden and (
            not kinds or kinds == ["speculate"] or any(_records(kind) for kind in kinds))
        if row and "speculate" not in kinds:
            self._begin_record()
        for number, statement in enumerate(statements):
            place = clause.statements[number].place
            out.line = place.line
            self.next_action()
            self._statement(statement, kinds[number])
            if kinds[number] == "speculate":
                self._unless_zero()
                if row:
                    self._begin_record()
            order.follow(kinds[number], statement, place)
        if row:
            out.helper(Helper.COMMIT)
        self._leave()
        if self.size > MAX_RECORD:
            raise DError("D_UNKNOWN", f"a record of {self.size} bytes is too large", clause.place)
        if self._sized is not None:
            out.instructions[self._sized] = out.instructions[self._sized]._replace(
                immediate=self.size)
            out.instructions[self._sized + 1] = out.instructions[self._sized + 1]._replace(
                immediate=-(-self.counted // 4) * 4)
        if self.speculated is not None and row:
            out.instructions[self.speculated] = out.instructions[self.speculated]._replace(
                immediate=-(-self.counted // 4) * 4)
        return ClauseFunction(clause, specifier, name, self.size if row else None, self.actions,
                              out, self.counted, self.destructive)

    def _checked(
        self, clause: syntax.Clause
    ) -> tuple[list[syntax.Expression], syntax.Expression | None]:
        """Check the statements, then the predicate, and return both.

        If a statement uses an unknown name, check the predicate first and the statements again,
        since the predicate may define the name.
        """
        predicate = clause.predicate
        todo = [s for s in clause.statements if isinstance(s, syntax.Do)]
        # Checking a statement changes it.
        again = [] if predicate is None else [
            syntax.Do(s.place, syntax.clone(s.expression)) for s in todo]
        try:
            statements = [self.checker.check_statement(s) for s in todo]
        except DError as error:
            if predicate is None or error.tag not in ("D_IDENT_UNDEF", "D_VAR_UNDEF"):
                raise
            predicate = self._predicate(predicate)
            return [self.checker.check_statement(s) for s in again], predicate
        return statements, None if predicate is None else self._predicate(predicate)

    def _predicate(self, node: syntax.Expression) -> syntax.Expression:
        checked = self.checker.read(node)
        if not is_scalar(checked.kind):
            raise DError(
                "D_PRED_SCALAR", "predicate result must be of scalar type", node.place)
        return checked

    def _leave(self) -> None:
        self.out.constant(0, 0)
        self.out.leave()

    def _unless_zero(self) -> None:
        """Emit code that returns if r0 is 0.

        The return directly follows the test, so the jump past it is short in a clause of any size.
        """
        fine = self.out.label()
        self.out.branch_constant(BpfJump.JNE, 0, 0, fine)
        self._leave()
        self.out.place(fine)

    def _begin_record(self) -> None:
        out = self.out
        out.load(1, CONTEXT, ContextOffset.CLAUSE)
        self._sized = len(out.instructions)
        out.constant(2, 0)
        out.constant(3, 0)
        out.helper(Helper.RECORD)
        self._unless_zero()
        out.move(RECORD, 0)

    def _statement(self, e: syntax.Expression, kind: str) -> None:
        self.destructive = self.destructive or _destructive(e)
        if kind == AGGREGATE:
            assert isinstance(e, syntax.Assign)
            self.aggregate(e)
        elif kind == EXPRESSION:
            self.value(e)
        else:
            assert isinstance(e, syntax.FunctionCall)
            ACTIONS[kind].emit(self, e)


def _kind(e: syntax.Expression) -> str:
    if isinstance(e, syntax.Assign) and isinstance(e.left, syntax.AggregationUse):
        return AGGREGATE
    if isinstance(e, syntax.FunctionCall) and e.function.role is Role.ACTION:
        return e.function.name
    return EXPRESSION


def _records(kind: str) -> bool:
    """Return whether a statement of a given kind adds data to the clause's record."""
    return kind in ACTIONS and ACTIONS[kind].data


def _destructive(e: syntax.Expression) -> bool:
    return isinstance(e, syntax.FunctionCall) and e.function.destructive


@dataclass
class _Order:
    """Rules for the sequence of actions in a clause."""

    commit: bool = False
    speculate: bool = False
    data: bool = False

    def follow(self, kind: str, statement: syntax.Expression, place: SourcePlace) -> None:
        """Check that a statement may follow the previous statements of its clause, and record it.

        :raises DError: if the statement may not follow them.
        """
        destructive = _destructive(statement)
        refused = self._refused(kind, destructive)
        if refused is not None:
            raise DError(*refused, place)
        self.commit |= kind == "commit"
        self.speculate |= kind == "speculate"
        self.data |= kind == AGGREGATE or not (
            self.speculate or destructive or kind in ("commit", "discard", EXPRESSION))

    def _refused(self, kind: str, destructive: bool) -> tuple[str, str] | None:
        """Return (tag, message) of the error if a statement is not allowed next, else None."""
        if kind == "commit":
            if self.commit:
                return "D_COMM_COMM", "commit( ) may not follow commit( )"
            if self.data:
                return "D_COMM_DREC", "commit( ) may not follow data-recording action(s)"
        elif kind == "speculate":
            if self.speculate:
                return "D_SPEC_SPEC", "speculate( ) may not follow speculate( )"
            if self.commit:
                return "D_SPEC_COMM", "speculate( ) may not follow commit( )"
            if self.data:
                return "D_SPEC_DREC", "speculate( ) may not follow data-recording action(s)"
        elif kind == AGGREGATE:
            if self.commit:
                return "D_AGG_COMM", "aggregating actions may not follow commit( )"
            if self.speculate:
                return "D_AGG_SPEC", "aggregating actions may not follow speculate( )"
        elif self.speculate and destructive:
            return "D_ACT_SPEC", "destructive actions may not follow speculate( )"
        elif self.speculate and kind == "exit":
            return "D_EXIT_SPEC", "exit( ) may not follow speculate( )"
        elif self.commit and not destructive and kind not in ("discard", EXPRESSION):
            return "D_DREC_COMM", "data-recording actions may not follow commit( )"
        return None
