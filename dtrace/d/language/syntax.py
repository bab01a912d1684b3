"""Syntax tree of a D program, to which the checker adds the type of every expression."""

from dataclasses import dataclass, field, fields

from dtrace.d.language.errors import SourcePlace
from dtrace.d.language.identifiers import AggregationInfo, Builtin, Variable
from dwarf.types import Member, Type


@dataclass(eq=False)
class Expression:
    """An expression; the checker sets all fields except ``place`` and ``height``.

    :param type: type of the value.
    :param height: height of the tree, as it was parsed.
    :param lvalue: whether the value has an address.
    :param writable: whether that memory can be written.
    """

    place: SourcePlace
    type: Type | None = field(default=None, init=False)
    height: int = field(default=1, init=False)
    lvalue: bool = field(default=False, init=False)
    writable: bool = field(default=False, init=False)

    @property
    def kind(self) -> Type:
        """Type of the value, which the checker must have set."""
        assert self.type is not None
        return self.type


def clone(node: Expression) -> Expression:
    """Copy a tree before it is checked; types and names are shared with the original."""
    values = []
    for name in _parameters(node.__class__):
        value = getattr(node, name)
        if isinstance(value, Expression):
            value = clone(value)
        elif isinstance(value, list):
            value = [clone(v) if isinstance(v, Expression) else v for v in value]
        values.append(value)
    return type(node)(*values)


_PARAMETERS: dict[type[Expression], tuple[str, ...]] = {}


def _parameters(kind: type[Expression]) -> tuple[str, ...]:
    """Return the names of the parameters of a class of nodes."""
    known = _PARAMETERS.get(kind)
    if known is None:
        known = _PARAMETERS[kind] = tuple(one.name for one in fields(kind) if one.init)
    return known


@dataclass(eq=False)
class Number(Expression):
    """An integer constant."""
    value: int
    suffix: str = ""
    decimal: bool = True


@dataclass(eq=False)
class Text(Expression):
    """A string constant."""
    content: bytes


@dataclass(eq=False)
class Name(Expression):
    """A variable or function: ``x``, `` `symbol``, ``kernel`symbol``."""

    name: str


@dataclass(eq=False)
class Aggregation(Expression):
    """An aggregation, such as ``@name[keys]``.

    :param name: name with its ``@``; ``@_`` is the anonymous aggregation.
    """

    name: str
    keys: list[Expression] = field(default_factory=list)


@dataclass(eq=False)
class Index(Expression):
    """An element of an array, or of an associative array."""
    base: Expression
    keys: list[Expression]


@dataclass(eq=False)
class Call(Expression):
    """A call to a function by name."""
    function: Expression
    arguments: list[Expression]


@dataclass(eq=False)
class MemberAccess(Expression):
    """An access to a member.

    :param arrow: whether the operator is ``->`` rather than ``.``.
    """

    base: Expression
    arrow: bool
    name: str


@dataclass(eq=False)
class Unary(Expression):
    """A unary operation.

    :param operator: ``- + ~ ! * & ++ -- stringof sizeof``; the postfix ones are ``x++``, ``x--``.
    """

    operator: str
    operand: Expression


@dataclass(eq=False)
class Binary(Expression):
    """A binary operation, other than an assignment."""
    operator: str
    left: Expression
    right: Expression


@dataclass(eq=False)
class Assign(Expression):
    """An assignment.

    :param operator: ``+``, ``<<`` and so on for a compound assignment; empty for a plain ``=``.
    """

    operator: str
    left: Expression
    right: Expression


@dataclass(eq=False)
class Ternary(Expression):
    """A conditional expression: ``condition ? then : otherwise``."""
    condition: Expression
    then: Expression
    otherwise: Expression


@dataclass(eq=False)
class Cast(Expression):
    """A cast to a type."""
    to: Type
    operand: Expression


@dataclass(eq=False)
class Alias(Cast):
    """An inline that is another name of a variable, converted to the inline's type."""


@dataclass(eq=False)
class SizeOf(Expression):
    """``sizeof`` of a type."""
    of: Type


@dataclass(eq=False)
class OffsetOf(Expression):
    """``offsetof(type, member)``."""
    of: Type
    member: str


@dataclass(eq=False)
class Translate(Expression):
    """``xlate <type>(operand)``."""
    to: Type
    operand: Expression


@dataclass(eq=False)
class Do:
    """An expression statement."""

    place: SourcePlace
    expression: Expression


@dataclass(eq=False)
class If:
    """An ``if`` statement."""
    place: SourcePlace
    condition: Expression
    then: list["Statement"]
    otherwise: list["Statement"]


Statement = Do | If


@dataclass(eq=False)
class Specifier:
    """A probe description, or the number of a probe, at the beginning of a clause."""

    place: SourcePlace
    text: str
    number: int | None = None


@dataclass(eq=False)
class Clause:
    """A clause: probes, predicate and statements.

    :param bare: whether the clause has no braces.
    :param hidden: whether the compiler generated the clause, which then produces no output row.
    :param body: positions of the first and last character after the probe descriptions.
    """
    place: SourcePlace
    probes: list[Specifier]
    predicate: Expression | None
    statements: list[Statement]
    bare: bool = False
    hidden: bool = False
    body: tuple[SourcePlace, SourcePlace] | None = None


@dataclass(eq=False)
class Inline:
    """An inline definition.

    Examples: ``inline type name = value;``, ``inline type name[type key] = value;``.

    :param keys: (name, type) of each key.
    """

    place: SourcePlace
    name: str
    type: Type
    keys: list[tuple[str, Type]] | None
    value: Expression


@dataclass(eq=False)
class Translator:
    """A translator from one type to another.

    :param members: (name, value, place) of each member.
    """

    place: SourcePlace
    to: Type
    source: Type
    parameter: str
    members: list[tuple[str, Expression, SourcePlace]]


@dataclass(eq=False)
class Declaration:
    """A declaration of a variable.

    :param storage: storage class, such as "self" or "this"; may be empty.
    :param keys: types of an associative array's keys.
    """

    place: SourcePlace
    storage: str
    name: str
    type: Type
    keys: list[Type] | None = None


@dataclass(frozen=True)
class ProbeDeclaration:
    """A probe in the declaration of a provider.

    :param name: its name, in which ``__`` has become a hyphen.
    :param native: types of the arguments that the program passes.
    :param seen: types of the arguments that D programs see.
    :param mapping: for each of the latter, the index of the argument that it comes from.
    """

    place: SourcePlace
    name: str
    native: tuple[Type, ...]
    seen: tuple[Type, ...]
    mapping: tuple[int, ...]


@dataclass(eq=False)
class ProviderDeclaration:
    """A declaration of a provider.

    :param attributes: stability of its parts ("provider", "module", "function", "name", "args"),
        if ``#pragma D attributes`` says it.
    """

    place: SourcePlace
    name: str
    probes: list[ProbeDeclaration] = field(default_factory=list)
    attributes: dict[str, str] = field(default_factory=dict)


Piece = Clause | Inline | Translator | Declaration | ProviderDeclaration


# -- nodes that the checker substitutes for names and other syntax ---------------------------------


@dataclass(eq=False)
class VariableUse(Expression):
    """A use of a variable of the program.

    :param keys: keys of an associative array's element, converted to the declared types.
    """

    variable: Variable
    keys: list[Expression]


@dataclass(eq=False)
class ContextUse(Expression):
    """A use of a variable that is in the context of the firing."""

    name: str
    offset: int


@dataclass(eq=False)
class HostedUse(Expression):
    """A use of a variable whose value the host supplies.

    :param index: index of an array's element (``uregs[R_PC]``).
    """

    name: str
    number: int
    index: Expression | None = None


@dataclass(eq=False)
class ByProbe(Expression):
    """A value that is computed differently at some of a clause's probes.

    :param cases: for groups of probe IDs, the expression to use there; None if there is none.
    :param otherwise: expression to use at all other probes.
    :param refusal: why the value cannot be read at any probe; empty if it can.
    """

    cases: list[tuple[list[int], Expression | None]]
    otherwise: Expression
    refusal: str


@dataclass(eq=False)
class Assembled(Expression):
    """A structure that is assembled by copying its bytes from several places.

    :param parts: from the first byte on: a number, and how many of its low bytes to use.
    """

    parts: list[tuple[Expression, int]]


@dataclass(eq=False)
class SymbolUse(Expression):
    """A use of a kernel variable at a known address."""

    name: str
    address: int


@dataclass(eq=False)
class FunctionCall(Expression):
    """A call to a built-in function."""
    function: Builtin
    arguments: list[Expression]


@dataclass(eq=False)
class MemberUse(Expression):
    """A member of the structure at an address.

    :param base: expression for the address.
    :param offset: bits from that address.
    :param width: bits of a bit-field; None for any other member.
    """

    base: Expression
    offset: int
    width: int | None
    name: str


@dataclass(eq=False)
class AggregationUse(Expression):
    """A use of an aggregation."""
    info: AggregationInfo
    keys: list[Expression]


@dataclass(eq=False)
class Translated(Expression):
    """A structure whose members a translator computes.

    :param values: all members that the translator defines, if the structure is assigned.
    """

    translator: Translator
    operand: Expression
    pointer: bool
    values: list[tuple[Member, Expression]] = field(default_factory=list, init=False)
