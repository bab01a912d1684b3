"""What a program's expressions mean: names are resolved, every expression gets its type.

The rules, and the order in which mistakes are reported, are libdtrace's; the tree that comes out
has the classes at the end of ``dtrace/d/syntax.py`` in the place of names.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from dtrace.d import constants, locations, syntax
from dtrace.d.attributes import below
from dtrace.d.errors import DError, Place
from dtrace.d.identifiers import (
    ACTIONS,
    AGGREGATING,
    CONTEXT,
    FUNCTIONS,
    HOSTED,
    HOSTED_NUMBERS,
    REGISTERS,
    AggregationInfo,
    Function,
    Role,
    Scope,
    Variable,
)
from dtrace.d.library import CONSTANTS
from dtrace.d.types import (
    DYNAMIC,
    INT,
    LONG,
    STRING,
    UNSIGNED_LONG,
    Universe,
    arithmetic,
    assignable,
    compatible,
    is_array,
    is_dynamic,
    is_indirect,
    is_integer,
    is_pointer,
    is_scalar,
    is_string,
    is_text,
    is_vague,
    is_void,
    pointed,
    pointer_to,
    pointers_compatible,
    spelled,
    width,
)
from dwarf.locations import Location
from dwarf.types import (
    Array,
    Enumeration,
    Incomplete,
    Member,
    Pointer,
    Procedure,
    Structure,
    Type,
    find_member,
    strip,
)
from emu.errors import KinstError

INTEGRAL = ("&", "^", "|", "<<", ">>", "%")
LOGICAL = ("&&", "||", "^^")
RELATIONS = ("==", "!=", "<", ">", "<=", ">=")
MAX_INLINES = 64  # inside one another
MAX_KEYS = 8


class Surroundings(Protocol):
    """What a program can refer to beside itself."""

    def symbol(self, module: str, name: str) -> tuple[int, Type] | None:
        """Address and type of a kernel's variable.

        :raises KinstError: saying why there is none.
        """

    def entered(self, probes: Sequence[Any]) -> None:
        """A clause for these probes is about to be checked."""

    def argument(self, index: int) -> Type | None:
        """The type of ``args[index]`` in it."""

    def located(self, index: int) -> "Located | None":
        """Where ``args[index]`` is at those of its probes that stand for inline copies; None where
        there are none.

        :raises KinstError: when their functions are different ones.
        """

    @property
    def registers(self) -> Mapping[int, int]:
        """The numbers of registers in ``regs[]``, by DWARF's."""


@dataclasses.dataclass(frozen=True)
class Located:
    """A parameter of an inline function.

    :param places: by the ID of a probe; None where the compiler does not keep it.
    :param others: whether the clause has other probes too.
    :param partly: says of how many probes it is kept, where it is not at all.
    """

    name: str
    function: str
    type: Type
    places: Mapping[int, Location | None]
    others: bool
    partly: Callable[[str], None]


class Nowhere:
    """A program without a kernel."""

    def symbol(self, module: str, name: str) -> tuple[int, Type] | None:
        return None

    def entered(self, probes: Sequence[Any]) -> None:
        return

    def argument(self, index: int) -> Type | None:
        return None

    def located(self, index: int) -> Located | None:
        return None

    @property
    def registers(self) -> Mapping[int, int]:
        return {}


def clone(node: syntax.Expression) -> syntax.Expression:
    """A copy of an unchecked tree; types and names are shared."""
    values = {}
    for f in dataclasses.fields(node):
        if not f.init:
            continue
        value = getattr(node, f.name)
        if isinstance(value, syntax.Expression):
            value = clone(value)
        elif isinstance(value, list):
            value = [clone(v) if isinstance(v, syntax.Expression) else v for v in value]
        values[f.name] = value
    return type(node)(**values)


def _is_time(node: syntax.Expression) -> bool:
    """Whether an expression is a time, perhaps in another unit, or since another."""
    match node:
        case syntax.ContextUse() | syntax.HostedUse():
            return node.name in ("timestamp", "vtimestamp", "walltimestamp")
        case syntax.Binary(operator="+" | "-" | "*" | "/" | "%" | "<<" | ">>"):
            return _is_time(node.left) or _is_time(node.right)
        case syntax.Cast():
            return is_integer(node.to) and _is_time(node.operand)
    return False


class Checker:
    """The names of a program, and the meaning of its expressions."""

    def __init__(self, universe: Universe, surroundings: Surroundings) -> None:
        self.universe, self.surroundings = universe, surroundings
        self.variables: dict[tuple[Scope, str], Variable] = {}
        self.aggregations: dict[str, AggregationInfo] = {}
        self.inlines: dict[str, syntax.Inline] = {}
        self.translators: list[syntax.Translator] = []
        self.externs: dict[str, Type] = {}
        self._bound: dict[str, syntax.Expression] = {}
        self._depth = 0
        self.hidden: frozenset[str] = frozenset()  # what the program's version does not have
        self.least = ""  # attributes that DTrace's variables must have (``-x amin``)
        for name, value in {"NULL": 0, **CONSTANTS}.items():
            self.inlines[name] = syntax.Inline(
                Place(0), name, LONG if name == "NULL" else INT, None,
                syntax.Number(Place(0), value))

    def knows(self, name: str) -> bool:
        """Whether a word is a variable or function, for the parser."""
        return ((name not in self.hidden and self._builtin(name))
                or name in self.inlines or name in self.externs
                or (Scope.GLOBAL, name) in self.variables
                or self.universe.enumerator(name) is not None)

    @staticmethod
    def _builtin(name: str) -> bool:
        return (name in CONTEXT or name in HOSTED or name in FUNCTIONS or name in REGISTERS
                or name in ("args", "self", "this"))

    def owns(self, name: str) -> bool:
        """Whether a name is the program's."""
        return ((Scope.GLOBAL, name) in self.variables or name in self.externs
                or (name in self.inlines and name != "NULL" and name not in CONSTANTS))

    # -- declarations ------------------------------------------------------------------------------

    def declare(self, node: syntax.Declaration) -> None:
        """:raises DError: when the name is taken."""
        name, kind, place = node.name, node.type, node.place
        if node.storage == "extern" or isinstance(strip(kind), Procedure):
            self._extern(node)
            return
        scope = {"self": Scope.THREAD, "this": Scope.LOCAL}.get(node.storage, Scope.GLOBAL)
        if scope is Scope.GLOBAL and self._builtin(name) and name not in self.hidden:
            raise DError("D_DECL_IDRED", f"built-in identifier redeclared: {name}", place)
        if self.universe.own(name) is not None:
            raise DError("D_DECL_IDRED", f"typedef identifier redeclared: {name}", place)
        if scope is Scope.LOCAL and node.keys is not None:
            raise DError("D_DECL_LOCASSC", "associative arrays may not be declared as local "
                         f"variables: {name}", place)
        if scope is Scope.GLOBAL and (name in self.inlines
                                      or self.universe.enumerator(name) is not None):
            raise DError("D_DECL_IDRED", f"identifier redeclared: {name}", place)
        known = self.variables.get((scope, name))
        if known is not None:
            self._redeclared(known, node)
            return
        if is_void(kind):
            raise DError("D_DECL_VOIDOBJ", f"cannot have void object: {name}", place)
        found = strip(kind)
        if isinstance(found, Incomplete) or (isinstance(found, Structure) and not found.size):
            raise DError(
                "D_DECL_INCOMPLETE", f"incomplete struct/union/enum {spelled(kind)}: {name}", place)
        self.variables[scope, name] = Variable(name, scope, kind, node.keys, known=True)

    def _extern(self, node: syntax.Declaration) -> None:
        before = self.externs.get(node.name)
        if before is not None and not compatible(before, node.type):
            raise DError("D_DECL_IDRED", f"identifier redeclared: D`{node.name}\n\t current: "
                         f"{spelled(node.type)}\n\tprevious: {spelled(before)}", node.place)
        self.externs[node.name] = node.type

    def _redeclared(self, known: Variable, node: syntax.Declaration) -> None:
        name, place = node.name, node.place
        kind = "scalar" if node.keys is None else "associative array"
        start = f"identifier redeclared: {name}"
        if known.kind != kind or not compatible(known.type, node.type):
            raise DError("D_DECL_IDRED", f"{start}\n\t current: {kind} {spelled(node.type)}\n\t"
                         f"previous: {known.kind} {spelled(known.type)}", place)
        if node.keys is None or known.keys is None:
            return
        if len(node.keys) != len(known.keys):
            raise DError(
                "D_DECL_IDRED", f"{start}\n\t current: {kind} of {spelled(node.type)}, tuple "
                f"length {len(node.keys)}\n\tprevious: {known.kind} of {spelled(known.type)}, "
                f"tuple length {len(known.keys)}", place)
        for number, (new, old) in enumerate(zip(node.keys, known.keys, strict=True), 1):
            if not compatible(new, old):
                raise DError(
                    "D_DECL_IDRED", f"{start}\n\t current: {kind}, key #{number} of type "
                    f"{spelled(new)}\n\tprevious: {known.kind}, key #{number} of type "
                    f"{spelled(old)}", place)

    def define_inline(self, node: syntax.Inline) -> None:
        name, place = node.name, node.place
        previous = None
        if name in self.inlines:
            previous = "inline definition"
        elif (Scope.GLOBAL, name) in self.variables:
            previous = self.variables[Scope.GLOBAL, name].kind + " "
        elif name in FUNCTIONS:
            previous = FUNCTIONS[name].role.value + " "
        elif name in CONTEXT or name in HOSTED:
            previous = "scalar "
        elif self.universe.enumerator(name) is not None:
            previous = "enumerator "
        if previous is not None:
            raise DError("D_DECL_IDRED", f"identifier redefined: {name}\n\t current: inline "
                         f"definition\n\tprevious: {previous}", place)
        value = clone(node.value)
        bound = dict(self._bound)
        for key, kind in node.keys or ():
            stand_in = syntax.ContextUse(place, key, 0)
            stand_in.type = kind
            self._bound[key] = stand_in
        value = self.read(value)
        self._bound = bound
        given = self._assigned_type(value)
        if isinstance(value, syntax.Translated) and value.pointer:
            given = pointer_to(value.translator.to)  # a name for what is translated, not a value
        if not (self._fits(node.type, value) if value.kind is given
                else compatible(node.type, given)):
            raise DError("D_OP_INCOMPAT", f"inline {name} definition uses incompatible types: "
                         f'"{spelled(node.type)}" = "{spelled(value.kind)}"', node.value.place)
        self.inlines[name] = node

    def define_translator(self, node: syntax.Translator) -> None:
        place = node.place
        to = self.complete(node.to)
        for other in self.translators:
            if compatible(other.to, node.to) and compatible(other.source, node.source):
                raise DError("D_XLATE_REDECL", f"translator from {spelled(node.source)} to "
                             f"{spelled(node.to)} has already been declared", place)
        if isinstance(to, Incomplete):
            raise DError("D_XLATE_SOU", f"incomplete struct/union/enum {spelled(node.to)}", place)
        if not isinstance(to, Structure):
            raise DError(
                "D_XLATE_SOU", "translator output type must be a struct or union", place)
        bound = dict(self._bound)
        stand_in = syntax.ContextUse(place, node.parameter, 0)
        stand_in.type = node.source
        stand_in.lvalue = True
        self._bound[node.parameter] = stand_in
        for name, value, where in node.members:
            member = find_member(to, name)
            if member is None:
                raise DError("D_XLATE_MEMB", f"translator member {name} is not a member of "
                             f"{spelled(node.to)}", where)
            checked = self.read(clone(value))
            if not self._fits(member.type, checked):
                raise DError(
                    "D_XLATE_INCOMPAT", f"translator member {name} definition uses incompatible "
                    f'types: "{spelled(member.type)}" = "{spelled(checked.kind)}"', where)
        self._bound = bound
        self.translators.append(node)

    # -- helpers of the rules ----------------------------------------------------------------------

    def complete(self, kind: Type) -> Type:
        """A type without typedefs; a structure that was only declared, by its definition."""
        found = strip(kind)
        if isinstance(found, Incomplete):
            better = self.universe.tagged(found.kind, found.name)
            return found if better is None else strip(better)
        return found

    @staticmethod
    def _zero(node: syntax.Expression) -> bool:
        return isinstance(node, syntax.Number) and node.value == 0

    def _fits(self, to: Type, value: syntax.Expression) -> bool:
        return assignable(to, value.kind, self._zero(value))

    def _typed(self, node: syntax.Expression, kind: Type) -> syntax.Expression:
        node.type = kind
        return node

    def _number(self, place: Place, value: int, kind: Type) -> syntax.Number:
        node = syntax.Number(place, value)
        node.type = kind
        return node

    # -- expressions -------------------------------------------------------------------------------

    def read(self, node: syntax.Expression) -> syntax.Expression:
        """Check an expression whose value is wanted."""
        found = self.check(node)
        if isinstance(found, syntax.VariableUse) and not found.variable.known:
            v = found.variable
            raise DError("D_VAR_UNDEF", f"{v.scope.value}{v.name} has not yet been declared or "
                         "assigned", node.place)
        return found

    def check(self, node: syntax.Expression) -> syntax.Expression:
        """The checked tree; a variable may be one that nothing has been assigned to."""
        match node:
            case syntax.Number():
                return self._typed(node, constants.number_type(node))
            case syntax.Text():
                return self._typed(node, STRING)
            case syntax.Name():
                return self._name(node)
            case syntax.Aggregation():
                return self._aggregation(node)
            case syntax.Index():
                return self._index(node)
            case syntax.Call():
                return self._call(node)
            case syntax.Member():
                return self._member(node)
            case syntax.Unary():
                return self._unary(node)
            case syntax.Binary():
                return self._binary(node)
            case syntax.Assign():
                return self._assign(node)
            case syntax.Ternary():
                return self._ternary(node)
            case syntax.Cast():
                return self._cast(node)
            case syntax.SizeOf():
                return self._size(node.place, node.of)
            case syntax.OffsetOf():
                return self._offset_of(node)
            case syntax.Translate():
                return self._translate(node)
        return node  # it has been checked

    def check_statement(self, statement: syntax.Do) -> syntax.Expression:
        """:raises DError: also for a statement without effect that is an aggregation."""
        found = self.read(statement.expression)
        if isinstance(found, syntax.AggregationUse):
            raise DError(
                "D_AGG_NULL", f"expression has null effect: {found.info.name}", found.place)
        return found

    # -- names -------------------------------------------------------------------------------------

    def _name(self, node: syntax.Name) -> syntax.Expression:
        name, place = node.name, node.place
        if name in self._bound:
            return self._bound[name]
        if "`" in name:
            return self._symbol(node)
        variable = self.variables.get((Scope.GLOBAL, name))
        if variable is not None:
            if variable.keys is not None:
                raise self._bad_reference(place, variable.kind, name, "scalar")
            return self._use(place, variable, [])
        inline = self.inlines.get(name)
        if inline is not None:
            if inline.keys is not None:
                raise self._bad_reference(place, "associative array", name, "scalar")
            return self._inline(place, inline, [])
        enumerator = self.universe.enumerator(name)
        if enumerator is not None:
            return self._number(place, *enumerator)
        if name in CONTEXT:
            self._permitted(name, place)
            if name[:3] == "arg" and (known := self._located(place, int(name[3:]), LONG)):
                return known
            kind, offset = CONTEXT[name]
            found = syntax.ContextUse(place, name, offset)
            found.lvalue = True
            return self._typed(found, self._known_type(kind, name, place))
        if name in HOSTED:
            self._permitted(name, place)
            hosted = syntax.HostedUse(place, name, HOSTED_NUMBERS[name])
            hosted.lvalue = True
            return self._typed(hosted, self._known_type(HOSTED[name], name, place))
        if name in ("self", "this"):
            raise self._bad_reference(place, "pointer", name, "scalar")
        if name in FUNCTIONS:
            raise self._bad_reference(place, FUNCTIONS[name].role.value, name, "scalar")
        if name == "args" or name in REGISTERS:
            raise self._bad_reference(place, "associative array", name, "scalar")
        if name in self.externs:
            return self._symbol(node)
        raise DError("D_IDENT_UNDEF", f"failed to resolve {name}: Unknown variable name", place)

    def _permitted(self, name: str, place: Place) -> None:
        own = below(name, self.least) if self.least else None
        if own is not None:
            raise DError("D_ATTR_MIN", f"attributes for scalar {name} ({own}) are less than "
                         "predefined minimum", place)

    def _bad_reference(self, place: Place, kind: str, name: str, wanted: str) -> DError:
        return DError(
            "D_IDENT_BADREF", f"{kind} '{name}' may not be referenced as {wanted}", place)

    def _known_type(self, text: str, name: str, place: Place) -> Type:
        """A type that a table names.

        :raises DError: when the kernel that has it is not there.
        """
        stars = text.count("*")
        words = [w for w in text.replace("*", " ").split() if w != "const"]
        kind: Type | None
        if words[0] == "struct":
            kind = self.universe.tagged("struct", words[1])
            if kind is None and stars:
                kind = Incomplete("struct", words[1])
        else:
            kind = self.universe.named(" ".join(words))
            if kind is None and words[0] in ("uid_t", "gid_t"):
                kind = self.universe.named("unsigned int")
        if kind is None:
            raise DError("D_UNKNOWN", f"failed to resolve type {text} for identifier {name}: "
                         "Unknown type name", place)
        for _ in range(stars):
            kind = pointer_to(kind)
        return kind

    def _symbol(self, node: syntax.Name) -> syntax.Expression:
        module, mark, name = node.name.rpartition("`")
        found = self.surroundings.symbol(module, name)
        if found is None:
            why = "Unknown symbol name" if not module else "Module is no longer loaded"
            raise DError(
                "D_IDENT_UNDEF", f"failed to resolve {module}{mark}{name}: {why}", node.place)
        address, kind = found
        use = syntax.SymbolUse(node.place, name, address)
        use.lvalue = True
        if isinstance(strip(kind), Procedure):
            function = self._number(node.place, address, pointer_to(kind))
            function.lvalue = True  # its address is itself
            return function
        return self._typed(use, kind)

    def _use(self, place: Place, variable: Variable, keys: list[syntax.Expression]
             ) -> syntax.VariableUse:
        found = syntax.VariableUse(place, variable, keys)
        found.type, found.lvalue, found.writable = variable.type, True, True
        return found

    def _inline(self, place: Place, inline: syntax.Inline, arguments: list[syntax.Expression]
                ) -> syntax.Expression:
        self._depth += 1
        if self._depth > MAX_INLINES:
            raise DError("D_UNKNOWN", f"inline {inline.name} is nested too deep", place)
        bound = dict(self._bound)
        for (name, kind), argument in zip(inline.keys or (), arguments, strict=True):
            self._bound[name] = self._converted(argument, kind)
        value = self.read(clone(inline.value))
        self._bound = bound
        self._depth -= 1
        if isinstance(value, syntax.Number | syntax.Translated) or is_dynamic(value.kind):
            return value
        found = self._converted(value, inline.type)
        if found is not value:
            found.lvalue, found.writable = value.lvalue, value.writable
        return found

    def _converted(self, value: syntax.Expression, to: Type) -> syntax.Expression:
        """A value passed as another type: cut or extended to it."""
        if compatible(value.kind, to) or not is_scalar(to) or not is_scalar(value.kind):
            return value
        if isinstance(value, syntax.Number) and is_integer(to):
            return self._number(
                value.place, constants.converted(value.value, value.kind, to), to)
        return self._typed(syntax.Cast(value.place, to, value), to)

    def _aggregation(self, node: syntax.Aggregation) -> syntax.Expression:
        info = self.aggregations.get(node.name)
        if info is None and node.keys:
            info = AggregationInfo(node.name, line=node.place.line)
            self.aggregations[node.name] = info
            info.keys = self._new_keys([self.read(k) for k in node.keys], "aggregation", node.place)
        if info is None:
            raise DError("D_IDENT_UNDEF",
                         f"failed to resolve {node.name}: Unknown variable name", node.place)
        keys = [self.read(key) for key in node.keys]
        if keys:
            self._keys(info.name, info.keys, keys, node.place, "aggregation")
        found = syntax.AggregationUse(node.place, info, keys)
        return self._typed(found, DYNAMIC)

    # -- arrays ------------------------------------------------------------------------------------

    def _keys(self, name: str, wanted: list[Type] | None, keys: list[syntax.Expression],
              place: Place, container: str) -> None:
        """Hold keys to those of the first use."""
        if wanted is None:
            return
        self._arguments(f"{name}[ ]", [(spelled(k), k) for k in wanted], len(wanted), len(wanted),
                        keys, place, "key")

    def _arguments(self, called: str, formals: list[tuple[str, Type | None]], least: int,
                   most: int | None, given: list[syntax.Expression], place: Place, what: str
                   ) -> None:
        """Hold arguments, or keys, to a prototype."""
        if len(given) < least or (most is not None and len(given) > most):
            some = "at least " if most is not None and most != least else ""
            plural = " " if len(given) == 1 else "s "
            raise DError("D_PROTO_LEN", f"{called} prototype mismatch: {len(given)} {what}{plural}"
                         f"passed, {some}{least} expected", place)
        long = "argument" if what == "arg" else "key"
        for number, (value, (text, kind)) in enumerate(zip(given, formals, strict=False), 1):
            if kind is not None and not self._fits(kind, value):
                raise DError(
                    "D_PROTO_ARG", f"{called} {long} #{number} is incompatible with prototype:\n\t"
                    f"prototype: {text}\n\t{long:>9}: {self._shown(value)}", place)

    def _shown(self, value: syntax.Expression) -> str:
        """A type in a message; what is dynamic, by its name's kind."""
        if isinstance(value, syntax.AggregationUse):
            return "aggregation"
        if isinstance(value, syntax.Translated):
            return "pointer to translated data" if value.pointer else "translated data"
        return spelled(value.kind)

    def _new_keys(self, keys: list[syntax.Expression], container: str, place: Place) -> list[Type]:
        for number, key in enumerate(keys, 1):
            if is_dynamic(key.kind) or is_void(key.kind):
                raise DError("D_KEY_TYPE", f"{self._shown(key)} expression may not be used as "
                             f"{container} index: key #{number}", place)
        return [key.kind for key in keys]

    def _index(self, node: syntax.Index) -> syntax.Expression:
        place, base = node.place, node.base
        if isinstance(base, syntax.Aggregation):
            raise DError("D_AGG_MDIM", f"improper attempt to reference {base.name} as a "
                         "multi-dimensional array", place)
        if isinstance(base, syntax.Name):
            special = self._special_array(node, base.name)
            if special is not None:
                return special
        variable = self._array(base)
        if variable is not None:
            keys = [self.read(key) for key in node.keys]
            variable = self.variables.setdefault((variable.scope, variable.name), variable)
            if len(keys) > MAX_KEYS:
                raise DError("", "Insufficient tuple registers to generate code", place)
            if variable.keys is None:
                variable.keys = self._new_keys(keys, "associative array", place)
            else:
                self._keys(variable.name, variable.keys, keys, base.place, "associative array")
            assert variable.keys is not None
            held = [self._converted(k, t) for k, t in zip(keys, variable.keys, strict=True)]
            return self._use(place, variable, held)
        if len(node.keys) != 1:
            raise DError("D_ARR_BADREF", f"cannot access {self._described(base)} as an associative "
                         "array", place)
        total = syntax.Binary(place, "+", base, node.keys[0])
        return self.check(syntax.Unary(place, "*", total))

    @staticmethod
    def _described(node: syntax.Expression) -> str:
        match node:
            case syntax.Name(name=name):
                return f"identifier {name}"
            case syntax.Number(value=value):
                return f"integer constant {value:#x}"
            case syntax.Text(content=content):
                return f'string constant "{content.decode(errors="replace")}"'
            case syntax.Binary(operator=operator) | syntax.Unary(operator=operator):
                return f"operator {operator}"
            case syntax.Member(name=name, arrow=arrow):
                return f"operator {'->' if arrow else '.'}"
        return "expression"

    def _special_array(self, node: syntax.Index, name: str) -> syntax.Expression | None:
        """``args[]``, ``regs[]``, ``uregs[]``, an inline with keys."""
        place = node.place
        inline = self.inlines.get(name)
        if inline is not None and inline.keys is not None:
            arguments = [self.read(key) for key in node.keys]
            self._keys(name, [kind for _n, kind in inline.keys], arguments, node.base.place, "")
            return self._inline(place, inline, arguments)
        if name in self._bound or (name != "args" and name not in REGISTERS):
            return None
        keys = [self.read(key) for key in node.keys]
        if len(keys) != 1:
            plural = " " if len(keys) == 1 else "s "
            raise DError("D_PROTO_LEN", f"{name}[ ] prototype mismatch: {len(keys)} arg{plural}"
                         "passed, 1 expected", place)
        if name == "args":
            return self._probe_argument(place, keys[0])
        if not is_integer(keys[0].kind):
            raise DError("D_PROTO_ARG", f"{name}[ ] argument #1 is incompatible with prototype:\n\t"
                         f"prototype: integer\n\t argument: {spelled(keys[0].kind)}", place)
        if isinstance(keys[0], syntax.Number) and not 0 <= keys[0].value < 1 << 31:
            raise DError("D_REGS_IDX", f"index {keys[0].value} is out of range for array {name}",
                         place)
        use = syntax.HostedUse(place, name, REGISTERS[name], keys[0])
        use.lvalue = True
        return self._typed(use, UNSIGNED_LONG)

    def _probe_argument(self, place: Place, key: syntax.Expression) -> syntax.Expression:
        if not isinstance(key, syntax.Number):
            raise DError("D_PROTO_ARG", "args[ ] argument #1 is incompatible with prototype:\n\t"
                         f"prototype: integer constant\n\t argument: {spelled(key.kind)}", place)
        if 0 <= key.value < 10 and (located := self._located(place, key.value, None)):
            return located
        kind = self.surroundings.argument(key.value) if 0 <= key.value < 10 else None
        if kind is None:
            raise DError("D_ARGS_IDX", f"index {key.value} is out of range for args[ ]", place)
        return self._in_context(place, key.value, kind)

    def _in_context(self, place: Place, index: int, kind: Type) -> syntax.Expression:
        """An argument that the firing's context holds."""
        _type, offset = CONTEXT[f"arg{index}"]
        use = syntax.ContextUse(place, f"arg{index}", offset)
        use.lvalue = True
        use.type = INT if width(kind) == 4 else LONG
        return self._typed(syntax.Cast(place, kind, use), kind) if is_scalar(kind) else \
            self._typed(use, kind)

    def _located(self, place: Place, index: int, kind: Type | None) -> syntax.Expression | None:
        """An argument where some of a clause's probes stand for inline copies.

        :param kind: what it is taken as; None: its own type.
        :raises DError: when the function has no such parameter.
        """
        try:
            found = self.surroundings.located(index)
        except KinstError as error:
            if kind is not None:
                return None
            raise DError("D_ARGS_IDX", str(error), place) from None
        if found is None:
            return None
        values: dict[Location | None, tuple[list[int], syntax.Expression | None]] = {}
        registers = self.surroundings.registers
        for number, location in found.places.items():
            if location not in values:
                try:
                    values[location] = [], None if location is None else locations.value(
                        place, location, found.type, registers)
                except locations.Unreadable:
                    values[location] = [], None
            values[location][0].append(number)
        kept = sum(len(numbers) for numbers, value in values.values() if value is not None)
        what = f"args[{index}] ('{found.name}' of {found.function})"
        nowhere = not kept and not found.others
        if not nowhere and kept < len(found.places):
            found.partly(f"{what} is kept by the compiler at {kept} of {len(found.places)} inline "
                         "copies; at the others a clause that reads it ends with an error")
        chosen: syntax.Expression = self._typed(syntax.ByProbe(
            place, list(values.values()), self._in_context(place, index, found.type),
            f"{what} is kept by the compiler at none of its {len(found.places)} inline copies"
            if nowhere else ""), found.type)
        if kind is not None:
            return self._typed(syntax.Cast(place, kind, chosen), kind)
        chosen.lvalue = not is_scalar(found.type)
        return chosen

    def _array(self, base: syntax.Expression) -> Variable | None:
        """The associative array that a name is, or becomes; None: it is something else."""
        if isinstance(base, syntax.Name) and "`" not in base.name and base.name not in self._bound:
            name = base.name
            known = self.variables.get((Scope.GLOBAL, name))
            if known is not None:
                if known.keys is None and not known.known:
                    raise self._bad_reference(base.place, "scalar", name, "associative array")
                return known if known.keys is not None else None
            if self.knows(name):
                if name in FUNCTIONS:
                    raise self._bad_reference(
                        base.place, FUNCTIONS[name].role.value, name, "associative array")
                return None
            return Variable(name, Scope.GLOBAL, DYNAMIC)
        if isinstance(base, syntax.Member) and isinstance(base.base, syntax.Name) and base.arrow \
                and base.base.name in ("self", "this") and base.base.name not in self._bound:
            scope = Scope.THREAD if base.base.name == "self" else Scope.LOCAL
            known = self.variables.get((scope, base.name))
            if known is not None and known.keys is None and known.known:
                return None
            if scope is Scope.LOCAL:
                raise DError("D_ARR_LOCAL", "local variables may not be used as associative "
                             f"arrays: {base.name}", base.place)
            return known if known is not None else Variable(base.name, scope, DYNAMIC)
        return None

    # -- members -----------------------------------------------------------------------------------

    def _member(self, node: syntax.Member) -> syntax.Expression:
        place, name = node.place, node.name
        if isinstance(node.base, syntax.Name) and node.arrow and node.base.name in (
                "self", "this") and node.base.name not in self._bound:
            return self._scoped(node, Scope.THREAD if node.base.name == "self" else Scope.LOCAL)
        base = self.read(node.base)
        mark = "->" if node.arrow else "."
        if isinstance(base, syntax.Translated):
            return self._translated_member(base, node)
        if node.arrow:
            if not is_pointer(base.kind):
                raise DError("D_OP_PTR", f"operator {mark} must be applied to a pointer", place)
            holder = self.complete(pointed(base.kind))
        else:
            holder = self.complete(base.kind)
        if isinstance(holder, Incomplete):
            raise DError("D_OP_INCOMPLETE", f"operator {mark} cannot be applied to a forward "
                         f"declaration: no {spelled(holder)} definition is available", place)
        if not isinstance(holder, Structure):
            what = "pointer to type" if node.arrow else "type"
            end = " pointer" if node.arrow else ""
            raise DError("D_OP_SOU", f'operator {mark} cannot be applied to {what} '
                         f'"{spelled(holder)}"; must be applied to a struct or union{end}', place)
        member = find_member(holder, name)
        if member is None:
            raise DError("D_TYPE_MEMBER", f"{name} is not a member of {spelled(holder)}", place)
        found = syntax.MemberUse(place, base, member.offset, member.width, name)
        found.lvalue = (node.arrow or base.lvalue) and not is_array(member.type)
        found.writable = base.writable
        return self._typed(found, member.type)

    def _scoped(self, node: syntax.Member, scope: Scope) -> syntax.Expression:
        variable = self.variables.get((scope, node.name))
        if variable is None:
            variable = Variable(node.name, scope, DYNAMIC)
            self.variables[scope, node.name] = variable
        if variable.keys is not None:
            raise self._bad_reference(node.place, variable.kind, node.name, "scalar")
        return self._use(node.place, variable, [])

    def _translate(self, node: syntax.Translate) -> syntax.Expression:
        operand = self.read(node.operand)
        to = strip(node.to)
        pointer = isinstance(to, Pointer)
        wanted = to.target if isinstance(to, Pointer) else node.to
        candidates = [t for t in self.translators if compatible(t.to, wanted)]
        exact = [t for t in candidates if compatible(t.source, operand.kind)]
        fitting = exact or [t for t in candidates if self._fits(t.source, operand)]
        if fitting:
            found = syntax.Translated(node.place, fitting[0], operand, pointer)
            return self._typed(found, DYNAMIC)
        raise DError("D_XLATE_NONE", f'cannot translate from "{spelled(operand.kind)}" to '
                     f'"{spelled(node.to)}"', node.place)

    def _translated_values(self, node: syntax.Translated
                           ) -> list[tuple[Member, syntax.Expression]]:
        """What a translated structure holds, where it is assigned whole."""
        to = self.complete(node.translator.to)
        assert isinstance(to, Structure)
        found = []
        for name, _value, place in node.translator.members:
            member = find_member(to, name)
            assert member is not None
            found.append((member, self._translated_member(
                node, syntax.Member(place, node, False, name))))
        return found

    def _translated_member(self, base: syntax.Translated, node: syntax.Member
                           ) -> syntax.Expression:
        translator = base.translator
        for name, value, _place in translator.members:
            if name == node.name:
                to = self.complete(translator.to)
                assert isinstance(to, Structure)
                member = find_member(to, name)
                assert member is not None
                bound = self._bound
                self._bound = {translator.parameter: base.operand}
                self._depth += 1
                if self._depth > MAX_INLINES:
                    raise DError("D_UNKNOWN", "translators are nested too deep", node.place)
                found = self._converted(self.read(clone(value)), member.type)
                self._depth -= 1
                self._bound = bound
                return found
        raise DError("D_XLATE_NOCONV", "translator does not define conversion for member: "
                     f"{node.name}", node.place)

    # -- calls -------------------------------------------------------------------------------------

    def _call(self, node: syntax.Call) -> syntax.Expression:
        place = node.place
        if not isinstance(node.function, syntax.Name):
            raise DError(
                "D_FUNC_IDENT", "function designator is not of function type", place)
        name, place = node.function.name, node.function.place
        function = FUNCTIONS.get(name)
        if function is None:
            variable = self.variables.get((Scope.GLOBAL, name))
            kind = None
            if variable is not None:
                kind = variable.kind
            elif name in CONTEXT or name in HOSTED or name in self.inlines:
                kind = "scalar"
            elif name in self.externs:
                kind = "external symbol reference"
            elif self.universe.enumerator(name) is not None:
                kind = "enumerator"
            if kind is not None:
                raise DError("D_FUNC_IDKIND",
                             f"{kind} '{name}' may not be referenced as a function", place)
            raise DError("D_FUNC_UNDEF", f"undefined function name: {name}", place)
        arguments = [self.read(argument) for argument in node.arguments]
        return self._applied(function, arguments, place)

    def _applied(self, function: Function, arguments: list[syntax.Expression], place: Place
                 ) -> syntax.Expression:
        name = function.name
        formals: list[tuple[str, Type | None]] = []
        for text in function.parameters:
            plain = text.strip("[]")
            if plain == "...":
                break
            if plain == "@":
                formals.append((plain, None))
                continue
            kind = self._prototype(plain, name, len(formals) + 1, place)
            formals.append((spelled(kind), kind))
        least = function.least
        self._arguments(f"{name}( )", formals, least, function.most, arguments, place, "arg")
        held = [value if formal is None else self._converted(value, formal)
                for value, (_text, formal) in zip(
                    arguments, [*formals, *[("", None)] * len(arguments)], strict=False)]
        found = syntax.FunctionCall(place, function, held)
        if function.role is Role.AGGREGATING:
            return self._typed(found, DYNAMIC)
        result = self._prototype(function.result, name, 0, place)
        return self._typed(found, result)

    def _prototype(self, text: str, function: str, number: int, place: Place) -> Type:
        stars = text.count("*")
        words = [w for w in text.replace("*", " ").split() if w != "const"]
        kind: Type | None
        if words[0] == "struct":
            kind = self.universe.tagged("struct", words[1]) or Incomplete("struct", words[1])
        elif words[0] == "in_addr_t":
            kind = self.universe.named("in_addr_t") or self.universe.named("uint32_t")
        else:
            kind = self.universe.named(" ".join(words))
        if kind is None:
            which = f"arg#{number} " if number else ""
            raise DError("D_UNKNOWN", f"failed to resolve type of {function} {which}({text}): "
                         "Unknown type name", place)
        for _ in range(stars):
            kind = pointer_to(kind)
        return kind

    # -- operators with one operand ----------------------------------------------------------------

    def _unary(self, node: syntax.Unary) -> syntax.Expression:
        operator, place = node.operator, node.place
        if operator in ("++", "--", "x++", "x--"):
            return self._increment(node)
        if operator == "sizeof":
            return self._size_of(node)
        operand = self.check(node.operand)
        if isinstance(operand, syntax.VariableUse) and not operand.variable.known:
            v = operand.variable
            if v.scope is Scope.GLOBAL and v.keys is None:
                raise DError(
                    "D_IDENT_UNDEF", f"failed to resolve {v.name}: Unknown variable name", place)
            if is_dynamic(v.type):
                v.type = LONG
            v.known = True
            operand.type = v.type
        node.operand = operand
        if operator == "&":
            return self._address(node, operand)
        if operator == "*":
            return self._dereference(node, operand)
        if operator == "stringof":
            if isinstance(operand, syntax.Translated) or not (
                    is_scalar(operand.kind) or is_pointer(operand.kind) or is_text(operand.kind)):
                raise DError("D_STRINGOF_TYPE", "cannot apply stringof to a value of type "
                             f"{self._shown(operand)}", place)
            return self._typed(node, STRING)
        kind = operand.kind
        if operator == "!":
            if not is_scalar(kind):
                raise DError(
                    "D_OP_SCALAR", "operator ! requires an operand of scalar type", place)
            if isinstance(operand, syntax.Number):
                return self._number(place, int(not operand.value), INT)
            return self._typed(node, INT)
        if not is_integer(kind):
            word, tag = ("integral", "D_OP_INT") if operator == "~" else ("arithmetic",
                                                                          "D_OP_ARITH")
            raise DError(tag, f"operator {operator} requires an operand of {word} type", place)
        if isinstance(operand, syntax.Number):
            return self._number(place, constants.unary(operator, operand.value, kind), kind)
        return self._typed(node, kind)

    def _address(self, node: syntax.Unary, operand: syntax.Expression) -> syntax.Expression:
        place = node.place
        if isinstance(operand, syntax.VariableUse | syntax.AggregationUse):
            raise DError("D_ADDROF_VAR", "cannot take address of dynamic variable", place)
        if isinstance(operand, syntax.Translated) or is_dynamic(operand.kind):
            raise DError("D_ADDROF_VAR", "cannot take address of dynamic object", place)
        if isinstance(operand, syntax.ContextUse | syntax.HostedUse):
            raise DError("D_ADDROF_VAR", "cannot take address of dynamic variable", place)
        if isinstance(operand, syntax.Number) and operand.lvalue:
            return operand
        if not operand.lvalue:
            raise DError("D_ADDROF_LVAL", "unacceptable operand for unary & operator", place)
        if isinstance(operand, syntax.MemberUse) and operand.width is not None:
            raise DError("D_ADDROF_BITFIELD", "cannot take address of bit-field", place)
        node.writable = operand.writable
        return self._typed(node, pointer_to(operand.kind))

    def _dereference(self, node: syntax.Unary, operand: syntax.Expression) -> syntax.Expression:
        place = node.place
        if isinstance(operand, syntax.Translated) and operand.pointer:
            whole = syntax.Translated(place, operand.translator, operand.operand, False)
            whole.values = self._translated_values(whole)
            return self._typed(whole, DYNAMIC)
        found = strip(operand.kind)
        if not isinstance(found, Pointer | Array):
            raise DError("D_DEREF_NONPTR", "cannot dereference non-pointer type", place)
        inner = pointed(found)
        if is_void(inner):
            raise DError("D_DEREF_VOID", "cannot dereference pointer to void", place)
        if isinstance(strip(inner), Procedure):
            raise DError("D_DEREF_FUNC", "cannot dereference pointer to function", place)
        node.lvalue, node.writable = not is_array(inner), operand.writable
        return self._typed(node, inner)

    def _size_of(self, node: syntax.Unary) -> syntax.Expression:
        if isinstance(node.operand, syntax.Text):
            return self._number(node.place, len(node.operand.content) + 1, UNSIGNED_LONG)
        operand = self.check(node.operand)
        if isinstance(operand, syntax.VariableUse) and not operand.variable.known:
            if operand.variable.scope is Scope.GLOBAL and operand.variable.keys is None:
                raise DError("D_IDENT_UNDEF", f"failed to resolve {operand.variable.name}: Unknown "
                             "variable name", node.place)
            operand.variable.type, operand.variable.known = LONG, True
            operand.type = LONG
        if isinstance(operand, syntax.MemberUse) and operand.width is not None:
            raise DError(
                "D_SIZEOF_BITFIELD", "cannot apply sizeof to a bit-field", node.place)
        return self._size(node.place, operand.kind)

    def _size(self, place: Place, kind: Type) -> syntax.Expression:
        size = width(self.complete(kind)) if not is_string(kind) else width(kind)
        if not size:
            raise DError(
                "D_SIZEOF_TYPE", "cannot apply sizeof to an operand of unknown size", place)
        return self._number(place, size, self._size_type())

    def _size_type(self) -> Type:
        found = self.universe.own("size_t")
        assert found is not None
        return found

    def _offset_of(self, node: syntax.OffsetOf) -> syntax.Expression:
        holder = self.complete(node.of)
        if not isinstance(holder, Structure):
            raise DError("D_OFFSETOF_TYPE", "offsetof operand must be a struct or union type",
                         node.place)
        member = find_member(holder, node.member)
        if member is None:
            raise DError("D_UNKNOWN", f"failed to determine offset of {node.member}: Invalid "
                         "member name", node.place)
        if member.width is not None:
            raise DError("D_OFFSETOF_BITFIELD",
                         f"cannot take offset of a bit-field: {node.member}", node.place)
        return self._number(node.place, member.offset // 8, INT)

    def _increment(self, node: syntax.Unary) -> syntax.Expression:
        place, shown = node.place, node.operator.lstrip("x")
        operand = self._target(node.operand, LONG)
        kind = operand.kind
        if not is_scalar(kind):
            raise DError(
                "D_OP_SCALAR", f"operator {shown} requires operand of scalar type", place)
        if is_vague(kind):
            raise DError(
                "D_OP_VFPTR", f"operator {shown} requires an operand of known size", place)
        if not operand.lvalue:
            raise DError("D_OP_LVAL",
                         f"operator {shown} requires modifiable lvalue as an operand", place)
        if not operand.writable:
            raise DError("D_OP_WRITE",
                         f"operator {shown} can only be applied to a writable variable", place)
        node.operand = operand
        return self._typed(node, kind)

    # -- operators with two operands ---------------------------------------------------------------

    def _binary(self, node: syntax.Binary) -> syntax.Expression:
        operator, place = node.operator, node.place
        if operator in ("/", "%") and isinstance(node.right, syntax.Number) \
                and not node.right.value:
            raise DError("D_DIV_ZERO", "expression contains division by zero", place)
        left = node.left = self.read(node.left)
        right = node.right = self.read(self._enumerated(node, left))
        if operator == ",":
            return self._comma(node)
        if isinstance(left, syntax.Number) and isinstance(right, syntax.Number):
            value, kind = constants.fold(
                operator, left.value, left.kind, right.value, right.kind, place)
            return self._number(place, value, kind)
        if operator in ("/", "%") and self._zero(right):
            raise DError("D_DIV_ZERO", "expression contains division by zero", place)
        both = is_integer(left.kind) and is_integer(right.kind)
        if operator in INTEGRAL:
            if not both:
                raise DError("D_OP_INT", f"operator {operator} requires operands of integral type",
                             place)
            return self._typed(node, left.kind if operator in ("<<", ">>")
                               else arithmetic(left.kind, right.kind))
        if operator in ("*", "/"):
            if not both:
                raise DError(
                    "D_OP_ARITH", f"operator {operator} requires operands of arithmetic type",
                    place)
            return self._typed(node, arithmetic(left.kind, right.kind))
        if operator in LOGICAL:
            if not (is_scalar(left.kind) and is_scalar(right.kind)):
                raise DError("D_OP_SCALAR",
                             f"operator {operator} requires operands of scalar type", place)
            return self._typed(node, INT)
        if operator in RELATIONS:
            if not self._comparable(left, right):
                raise self._incompatible(left, operator, right, place)
            return self._typed(node, INT)
        return self._additive(node, left, right)

    def _enumerated(self, node: syntax.Binary, left: syntax.Expression) -> syntax.Expression:
        """A name behind a comparison with an enumeration is one of its enumerators."""
        right = node.right
        kind = strip(left.kind)
        if node.operator in RELATIONS and isinstance(kind, Enumeration) and isinstance(
                right, syntax.Name):
            for name, value in kind.values:
                if name == right.name:
                    variable = self.variables.get((Scope.GLOBAL, name))
                    if variable is not None:
                        raise DError("D_IDENT_AMBIG", f"ambiguous use of operator {node.operator}: "
                                     f"{name} is both a {spelled(left.kind)} enum tag and a global "
                                     f"{variable.kind}", node.place)
                    return self._number(right.place, value, left.kind)
        return right

    def _comma(self, node: syntax.Binary) -> syntax.Expression:
        for side in (node.left, node.right):
            if isinstance(side, syntax.FunctionCall) and side.function.role is not \
                    Role.SUBROUTINE and not is_dynamic(side.kind):
                raise DError("D_OP_ACT", "operator , operands cannot be actions", node.place)
            if is_dynamic(side.kind):
                raise DError(
                    "D_OP_DYN", "operator , operands cannot be of dynamic type", node.place)
        return self._typed(node, node.right.kind)

    def _incompatible(self, left: syntax.Expression, operator: str, right: syntax.Expression,
                      place: Place) -> DError:
        return DError("D_OP_INCOMPAT", f'operands have incompatible types: "{self._shown(left)}" '
                      f'{operator} "{self._shown(right)}"', place)

    def _comparable(self, left: syntax.Expression, right: syntax.Expression) -> bool:
        first, second = left.kind, right.kind
        if is_dynamic(first) or is_dynamic(second):
            return False
        if compatible(first, second) and not is_void(first):
            return True
        if is_integer(first) and is_integer(second):
            return True
        if is_text(first) and is_text(second) and (is_string(first) or is_string(second)):
            return True
        if is_indirect(first) and is_integer(second):
            return self._zero(right)
        if is_integer(first) and is_indirect(second):
            return self._zero(left)
        return pointers_compatible(first, second)

    def _additive(self, node: syntax.Binary, left: syntax.Expression, right: syntax.Expression
                  ) -> syntax.Expression:
        def counts(kind: Type) -> bool:
            return is_string(kind) or (is_pointer(kind) and not is_vague(kind))

        first, second = left.kind, right.kind
        if not (is_dynamic(first) or is_dynamic(second)):
            if is_integer(first) and is_integer(second):
                return self._typed(node, arithmetic(first, second))
            if counts(first) and is_integer(second):
                node.writable = left.writable
                return self._typed(node, self._decayed(first))
            if node.operator == "+" and is_integer(first) and counts(second):
                node.writable = right.writable
                return self._typed(node, self._decayed(second))
            if node.operator == "-" and counts(first) and counts(second) and pointers_compatible(
                    self._decayed(first), self._decayed(second)):
                difference = self.universe.own("ptrdiff_t")
                assert difference is not None
                return self._typed(node, difference)
        raise self._incompatible(left, node.operator, right, node.place)

    @staticmethod
    def _decayed(kind: Type) -> Type:
        found = strip(kind)
        return pointer_to(found.element) if isinstance(found, Array) else kind

    # -- assignment --------------------------------------------------------------------------------

    def _target(self, node: syntax.Expression, kind: Type) -> syntax.Expression:
        """What is assigned to; a name that was not known becomes a variable of a type."""
        if isinstance(node, syntax.Name) and "`" not in node.name and node.name not in \
                self._bound and not self.knows(node.name):
            variable = Variable(node.name, Scope.GLOBAL, kind, known=True)
            self.variables[Scope.GLOBAL, node.name] = variable
            return self._use(node.place, variable, [])
        found = self.check(node)
        if isinstance(found, syntax.VariableUse) and not found.variable.known:
            if is_dynamic(found.variable.type):
                found.variable.type = kind
            found.variable.known = True
            found.type = found.variable.type
        return found

    def _assign(self, node: syntax.Assign) -> syntax.Expression:
        if isinstance(node.left, syntax.Aggregation):
            return self._aggregate(node)
        if node.operator:
            return self._modify(node)
        place = node.place
        fresh = self._fresh(node.left)
        if fresh is not None:
            right = self.read(node.right)
            kind = self._assigned_type(right)
            found = self._fresh(node.left)  # the right side may have made it
            if found is None:
                left = self.check(node.left)
            else:
                if isinstance(strip(kind), Procedure) or is_array(kind):
                    raise DError("D_OP_ARRFUN", "operator = may not be applied to operand of type "
                                 f'"{spelled(kind)}"', place)
                if is_void(kind) or is_dynamic(kind):
                    first = "scalar" if is_dynamic(kind) else "void"
                    raise DError("D_OP_INCOMPAT", "operands have incompatible types: "
                                 f'"{first}" = "{self._shown(right)}"', place)
                left = self._target(node.left, kind)
        else:
            left = self.check(node.left)
            right = self.read(node.right)
            kind = self._assigned_type(right)
            if isinstance(left, syntax.VariableUse) and not left.variable.known:
                if is_array(kind) or isinstance(strip(kind), Procedure):
                    raise DError("D_OP_ARRFUN", "operator = may not be applied to operand of type "
                                 f'"{spelled(kind)}"', place)
                if is_dynamic(left.variable.type):
                    left.variable.type = kind
                left.variable.known = True
                left.type = left.variable.type
        node.left, node.right = left, right
        if is_array(left.kind) or isinstance(strip(left.kind), Procedure):
            raise DError("D_OP_ARRFUN", "operator = may not be applied to operand of type "
                         f'"{spelled(left.kind)}"', place)
        if isinstance(right, syntax.Translated):
            if not compatible(left.kind, kind):
                raise self._incompatible(left, "=", right, place)
            right.values = self._translated_values(right)
        elif not self._fits(left.kind, right) or is_void(right.kind):
            raise self._incompatible(left, "=", right, place)
        self._writable(left, "=", place)
        if isinstance(right, syntax.Number):
            value = constants.converted(right.value, right.kind, left.kind)
            node.right = self._number(right.place, value, right.kind)
        return self._typed(node, left.kind)

    def _fresh(self, node: syntax.Expression) -> str | None:
        """The name that an assignment would make a variable of."""
        if isinstance(node, syntax.Name) and "`" not in node.name and node.name not in \
                self._bound and not self.knows(node.name):
            return node.name
        return None

    def _assigned_type(self, right: syntax.Expression) -> Type:
        if isinstance(right, syntax.Translated):
            return right.translator.to if not right.pointer else DYNAMIC
        return right.kind

    def _writable(self, left: syntax.Expression, operator: str, place: Place) -> None:
        if not left.lvalue:
            raise DError("D_OP_LVAL",
                         f"operator {operator} requires modifiable lvalue as an operand", place)
        if not left.writable:
            raise DError("D_OP_WRITE",
                         f"operator {operator} can only be applied to a writable variable", place)

    def _modify(self, node: syntax.Assign) -> syntax.Expression:
        place, operator = node.place, node.operator
        shown = f"{operator}="
        fresh = self._fresh(node.left)
        if operator in ("/", "%") and isinstance(node.right, syntax.Number) \
                and not node.right.value:
            raise DError("D_DIV_ZERO", "expression contains division by zero", place)
        if fresh is not None:
            self.variables[Scope.GLOBAL, fresh] = Variable(fresh, Scope.GLOBAL, LONG)
        left, right = self.check(node.left), self.read(node.right)
        if isinstance(left, syntax.VariableUse) and not left.variable.known:
            v = left.variable
            raise DError("D_VAR_UNDEF", f"{v.scope.value}{v.name} has not yet been declared or "
                         "assigned", place)
        node.left, node.right = left, right
        both = is_integer(left.kind) and is_integer(right.kind)
        if operator in INTEGRAL and not both:
            raise DError("D_OP_INT", f"operator {shown} requires operands of integral type", place)
        if operator in ("*", "/") and not both:
            raise DError(
                "D_OP_ARITH", f"operator {shown} requires operands of arithmetic type", place)
        if operator in ("/", "%") and self._zero(right):
            raise DError("D_DIV_ZERO", "expression contains division by zero", place)
        if operator in ("+", "-") and not both:
            if is_string(left.kind) or is_string(right.kind):
                raise self._incompatible(left, shown, right, place)
            if not is_pointer(left.kind) or is_vague(left.kind):
                raise DError("D_OP_VFPTR", f"operator {shown} requires left-hand scalar operand of "
                             "known size", place)
            if not is_integer(right.kind) and not pointers_compatible(left.kind, right.kind):
                raise self._incompatible(left, shown, right, place)
        self._writable(left, shown, place)
        return self._typed(node, left.kind)

    def _aggregate(self, node: syntax.Assign) -> syntax.Expression:
        """``@name[keys] = function(...)``"""
        left, place = node.left, node.place
        assert isinstance(left, syntax.Aggregation)
        info = self.aggregations.get(left.name)
        right = node.right
        named = isinstance(right, syntax.Call) and isinstance(right.function, syntax.Name)
        name = right.function.name if named else ""  # type: ignore[attr-defined]
        if node.operator or name not in AGGREGATING:
            if isinstance(right, syntax.Call):
                self.check_callable(right)
            raise DError("D_AGG_FUNC", f"{left.name} must be assigned the result of an aggregating "
                         "function", place)
        assert isinstance(right, syntax.Call)
        function = AGGREGATING[name]
        if info is None:
            info = AggregationInfo(left.name, line=left.place.line)
        elif info.function is not None and info.function is not function:
            raise DError("D_AGG_REDEF", f"aggregation redefined: {left.name}\n\t current: "
                         f"{left.name} = {name}( )\n\tprevious: {left.name} = "
                         f"{info.function.name}( ) : line {info.line}", place)
        value = self._call(right)
        assert isinstance(value, syntax.FunctionCall)
        keys = [self.read(key) for key in left.keys]
        if info.keys is None:
            info.keys = self._new_keys(keys, "aggregation", place)
            info.timed = len(keys) == 1 and _is_time(keys[0])
        else:
            self._keys(info.name, info.keys, keys, left.place, "aggregation")
        info.function = function
        self.aggregations[left.name] = info
        use = syntax.AggregationUse(left.place, info, keys)
        use.type = DYNAMIC
        node.left, node.right = use, value
        return self._typed(node, DYNAMIC)

    def check_callable(self, call: syntax.Call) -> None:
        """:raises DError: when what is called is no function at all."""
        if not isinstance(call.function, syntax.Name):
            raise DError("D_FUNC_IDENT", "function designator is not of function type", call.place)
        if call.function.name not in FUNCTIONS:
            self._call(call)

    # -- other operators ---------------------------------------------------------------------------

    def _ternary(self, node: syntax.Ternary) -> syntax.Expression:
        place = node.place
        condition = self.read(node.condition)
        if isinstance(condition, syntax.Number):
            return self.read(node.then if condition.value else node.otherwise)
        then, otherwise = self.read(node.then), self.read(node.otherwise)
        node.condition, node.then, node.otherwise = condition, then, otherwise
        if not is_scalar(condition.kind):
            raise DError(
                "D_OP_SCALAR", "operator ?: expression must be of scalar type", place)
        if is_dynamic(then.kind) or is_dynamic(otherwise.kind):
            raise DError("D_OP_DYN", "operator ?: operands cannot be of dynamic type", place)
        first, second = then.kind, otherwise.kind
        kind: Type
        if compatible(first, second):
            kind = first
        elif is_integer(first) and is_integer(second):
            kind = arithmetic(first, second)
        elif is_text(first) and is_text(second) and (is_string(first) or is_string(second)):
            kind = STRING
        elif is_indirect(first) and is_integer(second) and self._zero(otherwise):
            kind = first
        elif is_integer(first) and is_indirect(second) and self._zero(then):
            kind = second
        elif pointers_compatible(first, second):
            kind = second if is_void(pointed(first)) else first
        else:
            raise DError(
                "D_OP_INCOMPAT", "operator ?: operands must have compatible types", place)
        for side in (then, otherwise):
            if isinstance(side, syntax.FunctionCall) and side.function.name in ACTIONS:
                raise DError(
                    "D_OP_ACT", "action cannot be used in a conditional context", place)
        return self._typed(node, kind)

    def _cast(self, node: syntax.Cast) -> syntax.Expression:
        to, operand = node.to, self.read(node.operand)
        given = operand.kind
        node.operand = operand
        legal = not is_dynamic(given) and (
            compatible(to, given) or is_void(to)
            or (is_scalar(to) and (is_scalar(given) or isinstance(strip(given), Procedure)))
            or (isinstance(strip(to), Pointer) and (is_pointer(given) or is_string(given)))
            or (is_string(to) and (is_scalar(given) or is_pointer(given) or is_text(given))))
        if not legal:
            raise DError("D_CAST_INVAL", f'invalid cast expression: "{self._shown(operand)}" to '
                         f'"{spelled(to)}"', node.place)
        if isinstance(operand, syntax.Number) and is_integer(to):
            return self._number(
                node.place, constants.converted(operand.value, given, to), to)
        node.writable = isinstance(strip(to), Pointer) or operand.writable
        return self._typed(node, to)

