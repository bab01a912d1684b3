"""A D program as a tree.  The checker gives every expression its type."""

from dataclasses import dataclass, field, fields

from dtrace.d.language.errors import SourcePlace
from dtrace.d.language.identifiers import AggregationInfo, Builtin, Variable
from dwarf.types import Member, Type


@dataclass(eq=False)
class Expression:
    """:param type: of the value; set by the checker, as the others.
    :param lvalue: whether it has a place.
    :param writable: whether that may be written.
    """

    place: SourcePlace
    type: Type | None = field(default=None, init=False)
    height: int = field(default=1, init=False)  # of the tree, as it was parsed
    lvalue: bool = field(default=False, init=False)
    writable: bool = field(default=False, init=False)

    @property
    def kind(self) -> Type:
        """The type, which the checker has set."""
        assert self.type is not None
        return self.type


def clone(node: Expression) -> Expression:
    """A copy of an unchecked tree; types and names are shared."""
    values = {}
    for f in fields(node):
        if not f.init:
            continue
        value = getattr(node, f.name)
        if isinstance(value, Expression):
            value = clone(value)
        elif isinstance(value, list):
            value = [clone(v) if isinstance(v, Expression) else v for v in value]
        values[f.name] = value
    return type(node)(**values)


@dataclass(eq=False)
class Number(Expression):
    value: int
    suffix: str = ""
    decimal: bool = True


@dataclass(eq=False)
class Text(Expression):
    content: bytes


@dataclass(eq=False)
class Name(Expression):
    """A variable or function: ``x``, `` `symbol``, ``kernel`symbol``."""

    name: str


@dataclass(eq=False)
class Aggregation(Expression):
    """:param name: with its ``@``; ``@_`` is the one without a name."""

    name: str
    keys: list[Expression] = field(default_factory=list)


@dataclass(eq=False)
class Index(Expression):
    base: Expression
    keys: list[Expression]


@dataclass(eq=False)
class Call(Expression):
    function: Expression
    arguments: list[Expression]


@dataclass(eq=False)
class MemberAccess(Expression):
    """:param arrow: ``->``, not ``.``."""

    base: Expression
    arrow: bool
    name: str


@dataclass(eq=False)
class Unary(Expression):
    """:param operator: ``- + ~ ! * & ++ -- stringof sizeof``; a postfix one is ``x++``, ``x--``."""

    operator: str
    operand: Expression


@dataclass(eq=False)
class Binary(Expression):
    operator: str
    left: Expression
    right: Expression


@dataclass(eq=False)
class Assign(Expression):
    """:param operator: "" for a plain ``=``, else what is done before: ``+``, ``<<``, ..."""

    operator: str
    left: Expression
    right: Expression


@dataclass(eq=False)
class Ternary(Expression):
    condition: Expression
    then: Expression
    otherwise: Expression


@dataclass(eq=False)
class Cast(Expression):
    to: Type
    operand: Expression


@dataclass(eq=False)
class SizeOf(Expression):
    of: Type


@dataclass(eq=False)
class OffsetOf(Expression):
    of: Type
    member: str


@dataclass(eq=False)
class Translate(Expression):
    to: Type
    operand: Expression


@dataclass(eq=False)
class Do:
    """A statement that is an expression."""

    place: SourcePlace
    expression: Expression


@dataclass(eq=False)
class If:
    place: SourcePlace
    condition: Expression
    then: list["Statement"]
    otherwise: list["Statement"]


Statement = Do | If


@dataclass(eq=False)
class Specifier:
    """A probe description, or a probe's number."""

    place: SourcePlace
    text: str
    number: int | None = None


@dataclass(eq=False)
class Clause:
    place: SourcePlace
    probes: list[Specifier]
    predicate: Expression | None
    statements: list[Statement]
    bare: bool = False  # without braces
    hidden: bool = False  # not in the program: it makes no row
    body: tuple[SourcePlace,
                SourcePlace] | None = None  # first and last character behind the descriptions


@dataclass(eq=False)
class Inline:
    """``inline type name = value;``, ``inline type name[type key] = value;``.

    :param keys: (name, type) of each key.
    """

    place: SourcePlace
    name: str
    type: Type
    keys: list[tuple[str, Type]] | None
    value: Expression


@dataclass(eq=False)
class Translator:
    """:param members: (name, value, place)."""

    place: SourcePlace
    to: Type
    source: Type
    parameter: str
    members: list[tuple[str, Expression, SourcePlace]]


@dataclass(eq=False)
class Declaration:
    """A variable's declaration.

    :param storage: "", "self" or "this".
    :param keys: the types of an associative array's keys.
    """

    place: SourcePlace
    storage: str
    name: str
    type: Type
    keys: list[Type] | None = None


@dataclass(eq=False)
class ProviderDeclaration:
    place: SourcePlace
    name: str


Piece = Clause | Inline | Translator | Declaration | ProviderDeclaration


# -- what the checker puts in the place of names --------------------------------------------------


@dataclass(eq=False)
class VariableUse(Expression):
    """:param keys: of an associative array's element, converted to the keys' types."""

    variable: Variable
    keys: list[Expression]


@dataclass(eq=False)
class ContextUse(Expression):
    """A variable in the context of the firing."""

    name: str
    offset: int


@dataclass(eq=False)
class HostedUse(Expression):
    """A variable that the host is asked for.

    :param index: of an array's element (``uregs[R_PC]``).
    """

    name: str
    number: int
    index: Expression | None = None


@dataclass(eq=False)
class ByProbe(Expression):
    """A value that is found in another way at some of a clause's probes.

    :param cases: IDs of probes, and how it is found there; None: it cannot be.
    :param otherwise: at all others.
    :param refusal: why it cannot be read at all; empty: it can.
    """

    cases: list[tuple[list[int], Expression | None]]
    otherwise: Expression
    refusal: str


@dataclass(eq=False)
class Assembled(Expression):
    """A structure whose bytes lie in several places: its value is copied together.

    :param parts: from its first byte on: a number, and how many of its low bytes belong to it.
    """

    parts: list[tuple[Expression, int]]


@dataclass(eq=False)
class SymbolUse(Expression):
    """A variable of the kernel, at an address."""

    name: str
    address: int


@dataclass(eq=False)
class FunctionCall(Expression):
    function: Builtin
    arguments: list[Expression]


@dataclass(eq=False)
class MemberUse(Expression):
    """A member of what lies at an address.

    :param base: gives the address.
    :param offset: bits.
    :param width: of a bit-field.
    """

    base: Expression
    offset: int
    width: int | None
    name: str


@dataclass(eq=False)
class AggregationUse(Expression):
    info: AggregationInfo
    keys: list[Expression]


@dataclass(eq=False)
class Translated(Expression):
    """A structure that a translator makes, member by member.

    :param values: of all members that the translator defines, where the structure is assigned.
    """

    translator: Translator
    operand: Expression
    pointer: bool
    values: list[tuple[Member, Expression]] = field(default_factory=list, init=False)
