"""What a program's expressions mean: names are resolved, every expression gets its type.

The rules, and the order in which mistakes are reported, are libdtrace's; the tree that comes out
has the classes at the end of ``dtrace/d/language/syntax.py`` in the place of names.  The other
files here have the rules of each kind of node.
"""

from dtrace.d.checks import declarations
from dtrace.d.checks.aggregations import check_aggregation
from dtrace.d.checks.arrays import check_index
from dtrace.d.checks.assignments import check_assign
from dtrace.d.checks.binary import check_binary, check_ternary
from dtrace.d.checks.calls import check_call
from dtrace.d.checks.conversions import typed
from dtrace.d.checks.environment import Environment
from dtrace.d.checks.members import check_member, check_offsetof, check_translate
from dtrace.d.checks.unary import check_cast, check_sizeof, check_unary
from dtrace.d.checks.variables import check_name
from dtrace.d.language import constants, syntax
from dtrace.d.language.errors import DError
from dtrace.d.language.types import STRING


class Checker(Environment):
    """The names of a program, and the meaning of its expressions."""

    def declare(self, node: syntax.Declaration) -> None:
        """:raises DError: when the name is taken."""
        declarations.declare(self, node)

    def define_inline(self, node: syntax.Inline) -> None:
        """:raises DError: when the name is taken, for the first mistake in its value."""
        declarations.define_inline(self, node)

    def define_translator(self, node: syntax.Translator) -> None:
        """:raises DError: when there is one of these types, for the first mistake in a member."""
        declarations.define_translator(self, node)

    def check(self, node: syntax.Expression) -> syntax.Expression:
        match node:
            case syntax.Number():
                return typed(node, constants.number_type(node))
            case syntax.Text():
                return typed(node, STRING)
            case syntax.Name():
                return check_name(self, node)
            case syntax.Aggregation():
                return check_aggregation(self, node)
            case syntax.Index():
                return check_index(self, node)
            case syntax.Call():
                return check_call(self, node)
            case syntax.MemberAccess():
                return check_member(self, node)
            case syntax.Unary():
                return check_unary(self, node)
            case syntax.Binary():
                return check_binary(self, node)
            case syntax.Assign():
                return check_assign(self, node)
            case syntax.Ternary():
                return check_ternary(self, node)
            case syntax.Cast():
                return check_cast(self, node)
            case syntax.SizeOf():
                return check_sizeof(self, node.place, node.of)
            case syntax.OffsetOf():
                return check_offsetof(self, node)
            case syntax.Translate():
                return check_translate(self, node)
        return node  # it has been checked

    def check_statement(self, statement: syntax.Do) -> syntax.Expression:
        """:raises DError: also for a statement without effect that is an aggregation."""
        found = self.read(statement.expression)
        if isinstance(found, syntax.AggregationUse):
            raise DError(
                "D_AGG_NULL", f"expression has null effect: {found.info.name}", found.place)
        return found
