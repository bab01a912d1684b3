"""Checker of D expressions, which resolves names and assigns a type to every expression.

The rules, and the sequence in which errors are reported, are libdtrace's.  In the checked tree, the
classes at the end of ``dtrace/d/language/syntax.py`` take the place of names.  The other modules of
this package contain the rules for each kind of node.
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
    """Checker of a program: holds its names and checks its expressions and declarations."""

    def declare(self, node: syntax.Declaration) -> None:
        """Declare a variable or an external object.

        :raises DError: if the name is already in use.
        """
        declarations.declare(self, node)

    def define_inline(self, node: syntax.Inline) -> None:
        """Define an inline.

        :raises DError: if the name is already in use, or for the first error in the value.
        """
        declarations.define_inline(self, node)

    def define_translator(self, node: syntax.Translator) -> None:
        """Define a translator.

        :raises DError: if a translator between these types exists, or for the first error in a
            member.
        """
        declarations.define_translator(self, node)

    def check(self, node: syntax.Expression) -> syntax.Expression:
        """Check an expression of any kind and return the checked tree.

        :raises DError: for the first error in the expression.
        """
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
        return node  # nodes that the checker itself creates need no check

    def check_statement(self, statement: syntax.Do) -> syntax.Expression:
        """Check an expression that is used as a statement.

        :raises DError: for the first error in it, or if it is only the name of an aggregation.
        """
        checked = self.read(statement.expression)
        if isinstance(checked, syntax.AggregationUse):
            raise DError(
                "D_AGG_NULL", f"expression has null effect: {checked.info.name}", checked.place)
        return checked
