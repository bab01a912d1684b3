"""Clauses as BPF functions, and what their records hold.

A clause is checked whole, then its predicate and statements become code, in order; what an action
is given is held to the action's own rules at that point.
"""

from dataclasses import dataclass, field, replace

from dtrace.bpf.assembler import Assembler
from dtrace.bpf.encoding import FRAME, Alu, Jump
from dtrace.bpf.interpreter import signed
from dtrace.bpf.layout import QUANTIZE_BUCKETS, Aggregate, Context, Helper, Region
from dtrace.d import formats, syntax
from dtrace.d.checker import Checker
from dtrace.d.code import CONTEXT, RECORD, Code, Storage
from dtrace.d.errors import DError, Place
from dtrace.d.identifiers import (
    DESTRUCTIVE,
    KINDS,
    STACKS,
    SYMBOLS,
    AggregationInfo,
    Part,
    Role,
    Scope,
    Shape,
    Variable,
)
from dtrace.d.types import (
    LONG,
    UNSIGNED_LONG,
    assignable,
    is_dynamic,
    is_integer,
    is_pointer,
    is_scalar,
    is_string,
    is_void,
    special,
    spelled,
)
from dwarf.types import Type

INT32 = range(-(1 << 31), 1 << 31)
INT16 = 1 << 16
MAX_RECORD = 1 << 20
NEAR = (1 << 15) - 8  # what an instruction's offset reaches
HEAD = 12  # bytes that DTrace has before the values of a record
MAX_FRAMES = 1 << 10
EXITED = 1  # the first word of the state: tracing has ended
NO_DATA = frozenset("stop raise chill panic breakpoint speculate commit discard expression "
                    "aggregate".split())
AGGREGATE, EXPRESSION = "aggregate", "expression"


@dataclass(frozen=True)
class Field:
    """A value of a record.

    :param offset: bytes from the record's begin.
    :param how: "value", "stack", "ustack", or the name of what shows a symbol.
    """

    offset: int
    size: int
    type: Type
    how: str = "value"


@dataclass
class Recorded:
    """What an action left in the record.

    :param name: of the action.
    :param format: of printf and the like.
    """

    name: str
    fields: list[Field]
    format: list[formats.Piece] | None = None
    aggregations: list[AggregationInfo] = field(default_factory=list)


@dataclass
class Function:
    """A clause for one probe description.

    :param size: bytes of its record; None where it makes none.
    :param actions: what the record holds.
    :param counted: bytes of it as DTrace counts them.
    """

    clause: syntax.Clause
    specifier: syntax.Specifier
    name: str
    size: int | None
    actions: list[Recorded]
    code: Assembler
    counted: int
    destructive: bool = False


@dataclass(frozen=True)
class Defaults:
    """What options decide about code: frames of ``stack()``, of ``ustack()``, of ``jstack()``,
    bytes of its strings; the least attributes of variables (``-x amin``; "": any)."""

    frames: int = 20
    user_frames: int = 20
    java_frames: int = 50
    java_strings: int = 512
    least: str = ""


class ClauseCompiler(Code):
    """Compiles one clause for one probe description.

    :param functions: all aggregations of the program, by their numbers.
    """

    def __init__(self, checker: Checker, storage: Storage, defaults: Defaults,
                 functions: list[Shape]) -> None:
        super().__init__(storage)
        self.checker, self.defaults, self.functions = checker, defaults, functions
        self.actions: list[Recorded] = []
        self.size = 0
        self._speculated: int | None = None  # the instruction that says it to speculate()
        self.counted = HEAD  # the record's size, as DTrace counts it
        self._sized: int | None = None  # the instruction that says the record's size
        self.destructive = False

    # -- the clause --------------------------------------------------------------------------------

    def compile(self, clause: syntax.Clause, specifier: syntax.Specifier, name: str) -> Function:
        """:raises DError: for the first mistake in it."""
        statements, predicate = self._checked(clause)
        for variable in self.checker.variables.values():
            if not is_dynamic(variable.type):
                self.storage.place(variable)
        out = self.out
        out.move(CONTEXT, 1)
        if predicate is not None:
            out.line = predicate.place.line
            true = out.label()
            self.unless(predicate, true)
            self._leave()
            out.place(true)
        kinds = [_kind(e) for e in statements]
        row = not clause.hidden and (
            not kinds or kinds == ["speculate"] or any(kind not in NO_DATA for kind in kinds))
        if row and "speculate" not in kinds:
            self._begin_record()
        for number, statement in enumerate(statements):
            place = clause.statements[number].place
            out.line = place.line
            self._statement(statement, kinds[number])
            if kinds[number] == "speculate":
                self._unless_zero()
                if row:
                    self._begin_record()
            _mixed(kinds[: number + 1], place, statements)
        if row:
            out.helper(Helper.COMMIT)
        self._leave()
        if self.size > MAX_RECORD:
            raise DError("D_UNKNOWN", f"a record of {self.size} bytes is too large", clause.place)
        if self._sized is not None:
            out.instructions[self._sized] = replace(
                out.instructions[self._sized], immediate=self.size)
            out.instructions[self._sized + 1] = replace(
                out.instructions[self._sized + 1], immediate=-(-self.counted // 4) * 4)
        if self._speculated is not None and row:
            out.instructions[self._speculated] = replace(
                out.instructions[self._speculated], immediate=-(-self.counted // 4) * 4)
        return Function(clause, specifier, name, self.size if row else None, self.actions, out,
                        self.counted, self.destructive)

    def _checked(
        self, clause: syntax.Clause
    ) -> tuple[list[syntax.Expression], syntax.Expression | None]:
        """Statements, then the predicate; where a name is missing, once more behind the
        predicate, which may define it."""
        predicate = clause.predicate
        todo = [s for s in clause.statements if isinstance(s, syntax.Do)]
        try:
            statements = [self.checker.check_statement(s) for s in todo]
        except DError as error:
            if predicate is None or error.tag not in ("D_IDENT_UNDEF", "D_VAR_UNDEF"):
                raise
            predicate = self._predicate(predicate)
            return [self.checker.check_statement(s) for s in todo], predicate
        return statements, None if predicate is None else self._predicate(predicate)

    def _predicate(self, node: syntax.Expression) -> syntax.Expression:
        found = self.checker.read(node)
        if not is_scalar(found.kind):
            raise DError(
                "D_PRED_SCALAR", "predicate result must be of scalar type", node.place)
        return found

    def _leave(self) -> None:
        self.out.constant(0, 0)
        self.out.leave()

    def _unless_zero(self) -> None:
        """Leave where r0 is 0.  The way out is next to its jump, however long the clause is."""
        fine = self.out.label()
        self.out.branch_constant(Jump.JNE, 0, 0, fine)
        self._leave()
        self.out.place(fine)

    def _begin_record(self) -> None:
        out = self.out
        out.load(1, CONTEXT, Context.CLAUSE)
        self._sized = len(out.instructions)
        out.constant(2, 0)
        out.constant(3, 0)
        out.helper(Helper.RECORD)
        self._unless_zero()
        out.move(RECORD, 0)

    def _statement(self, e: syntax.Expression, kind: str) -> None:
        if kind == AGGREGATE:
            assert isinstance(e, syntax.Assign)
            self._aggregate(e)
        elif kind == EXPRESSION:
            self.value(e)
            self.destructive = self.destructive or _destructive(e)
        else:
            assert isinstance(e, syntax.FunctionCall)
            self.destructive = self.destructive or kind in DESTRUCTIVE
            getattr(self, ACTIONS[kind])(e)

    # -- values of a record ------------------------------------------------------------------------

    def _field(self, size: int, kind: Type, how: str = "value") -> Field:
        found = Field(self.size, size, kind, how)
        self.size += -(-size // 8) * 8
        self._count_bytes(size, size if size in (1, 2, 4, 8) else 1 if is_string(kind) else 8)
        return found

    def _count_bytes(self, size: int, alignment: int) -> None:
        self.counted = -(-self.counted // alignment) * alignment + size

    def _recorded(self, e: syntax.Expression) -> Field:
        """Put a value into the record."""
        kind = e.kind
        size = self.storage.size(kind)
        self.value(e)
        found = self._field(size, kind)
        if is_scalar(kind):
            self._store_field(found, size)
            return found
        self.out.move(2, 0)
        self._record_address(1, found)
        self.out.constant(3, size)
        self.out.helper(Helper.COPY_TEXT if is_string(kind) else Helper.COPY)
        return found

    def _store_field(self, found: Field, size: int = 8) -> None:
        """Put r0 into the record."""
        if found.offset <= NEAR:
            self.out.store(RECORD, found.offset, 0, size)
        else:
            self._record_address(1, found)
            self.out.store(1, 0, 0, size)

    def _record_address(self, to: int, found: Field) -> None:
        self.out.move(to, RECORD)
        if found.offset:
            self.out.alu_constant(Alu.ADD, to, found.offset)

    def _noted(self, name: str, fields: list[Field], format_: list[formats.Piece] | None = None,
               aggregations: list[AggregationInfo] | None = None) -> None:
        self.actions.append(Recorded(name, fields, format_, aggregations or []))

    # -- actions -----------------------------------------------------------------------------------

    def _trace(self, e: syntax.FunctionCall) -> None:
        name, argument = e.function.name, e.arguments[0]
        tag = name.upper()
        place = argument.place
        if is_void(argument.kind):
            raise DError(f"D_{tag}_VOID", f"{name}( ) may not be applied to a void expression",
                         place)
        if isinstance(argument, syntax.AggregationUse):
            end = " -- did you mean printa()?" if name == "print" else ""
            raise DError(
                f"D_{tag}_AGG", f"{name}( ) may not be applied to an aggregation{end}", place)
        if isinstance(argument, syntax.Translated) and argument.values:
            argument = self._translated_copy(argument)
        if is_dynamic(argument.kind):
            raise DError(
                f"D_{tag}_DYN", f"{name}( ) may not be applied to a translated pointer", place)
        self._noted(name, [self._recorded(argument)])

    def _translated_copy(self, translated: syntax.Translated) -> syntax.Expression:
        """What a translator makes of a structure, put together in memory."""
        kind = translated.translator.to
        variable = Variable("", Scope.GLOBAL, kind)
        self.storage.place(variable)
        use = syntax.VariableUse(translated.place, variable, [])
        use.type, use.lvalue, use.writable = kind, True, True
        made = syntax.Assign(translated.place, "", use, translated)
        made.type = kind
        self.value(made)
        return use

    def _tracemem(self, e: syntax.FunctionCall) -> None:
        address, size, *more = e.arguments
        if not (is_pointer(address.kind) or is_integer(address.kind)):
            raise DError("D_TRACEMEM_ADDR", "tracemem( ) argument #1 is incompatible with "
                         "prototype:\n\tprototype: pointer or integer\n\t argument: "
                         f"{spelled(address.kind)}", address.place)
        if not isinstance(size, syntax.Number) or size.value <= 0:
            raise DError("D_TRACEMEM_SIZE", "tracemem( ) argument #2 must be a non-zero positive "
                         "integral constant expression", size.place)
        if len(more) > 1:
            raise DError("D_TRACEMEM_ARGS",
                         "tracemem ( ) prototype mismatch: expected at most 3 args", e.place)
        if more and not is_scalar(more[0].kind):
            raise DError("D_TRACEMEM_DYNSIZE", "tracemem ( ) dynamic size (argument #3) must be of "
                         "scalar type", more[0].place)
        self._large(size.value, size.place)
        self.value(address)
        found = self._field(size.value, UNSIGNED_LONG)
        self.out.move(2, 0)
        self._record_address(1, found)
        self.out.constant(3, size.value)
        self.out.helper(Helper.COPY)
        self._noted("tracemem", [found, *(self._recorded(m) for m in more)])

    def _large(self, size: int, place: Place) -> None:
        if size > MAX_RECORD:
            raise DError("D_UNKNOWN", f"a record of {size} bytes is too large", place)

    def _printm(self, e: syntax.FunctionCall) -> None:
        size, reference = e.arguments
        if not isinstance(size, syntax.Number) or size.value <= 0:
            raise DError("D_PRINTM_SIZE", "printm( ) argument #1 must be a non-zero positive "
                         "integral constant expression", size.place)
        if not is_pointer(reference.kind):
            raise DError("D_PRINTM_ADDR", "printm( ) argument #2 is incompatible with prototype:"
                         f"\n\tprototype: pointer\n\t argument: {spelled(reference.kind)}",
                         reference.place)
        self._large(size.value, size.place)
        self.value(reference)
        length, content = self._field(8, LONG), self._field(size.value, UNSIGNED_LONG)
        self._record_address(1, length)
        self.out.move(2, 0)
        self.out.constant(3, size.value)
        self.out.helper(Helper.COPY_REFERENCE)
        self._noted("printm", [length, content])

    def _printf(self, e: syntax.FunctionCall) -> None:
        name, (first, *arguments) = e.function.name, e.arguments
        if not isinstance(first, syntax.Text):
            raise DError(
                "D_PRINTF_ARG_FMT", f"{name}( ) argument #1 is incompatible with prototype:\n\t"
                f"prototype: string constant\n\t argument: {self._shown(first)}", e.place)
        if name == "freopen" and first.content == b".":
            raise DError(
                "D_FREOPEN_INVALID", 'freopen( ) argument #1 cannot be "."', e.place)
        pieces = formats.parse(first.content, e.place)
        if pieces or name != "freopen":
            formats.check(name, pieces, arguments, e.place)
        if not arguments:
            self._count_bytes(8, 8)
        self._noted(name, [self._recorded(argument) for argument in arguments], pieces)

    @staticmethod
    def _shown(e: syntax.Expression) -> str:
        if isinstance(e, syntax.AggregationUse):
            return "aggregation"
        return spelled(e.kind)

    def _aggregation_argument(self, e: syntax.FunctionCall, number: int, tag: str
                              ) -> AggregationInfo:
        argument, name = e.arguments[number - 1], e.function.name
        if not isinstance(argument, syntax.AggregationUse):
            raise DError(
                f"D_{tag}_AGGARG", f"{name}( ) argument #{number} is incompatible with prototype:"
                f"\n\tprototype: aggregation\n\t argument: {self._shown(argument)}",
                argument.place)
        if argument.info.function is None:
            raise DError(f"D_{tag}_AGGBAD", f"undefined aggregation: {argument.info.name}",
                         argument.place)
        return argument.info

    def _printa(self, e: syntax.FunctionCall) -> None:
        first, pieces, start = e.arguments[0], None, 1
        if isinstance(first, syntax.Text):
            start = 2
            pieces = formats.parse(first.content, e.place)
        if len(e.arguments) < start:
            raise DError("D_PRINTA_PROTO", f"printa( ) prototype mismatch: {len(e.arguments)} args "
                         f"passed, {start} expected", e.place)
        found: list[AggregationInfo] = []
        for number in range(start, len(e.arguments) + 1):
            info = self._aggregation_argument(e, number, "PRINTA")
            if not found and pieces is not None:
                self._check_printa(pieces, info, e.place)
            elif found:
                self._same_keys(found[0], info, e.place)
            found.append(info)
            self._count_bytes(8, 8)
        self._noted("printa", [], pieces, found)

    def _check_printa(self, pieces: list[formats.Piece], info: AggregationInfo, place: Place
                      ) -> None:
        stand_ins: list[syntax.Expression] = []
        for kind in info.keys or ():
            stand_in = syntax.ContextUse(place, "", 0)
            stand_in.type = kind
            stand_ins.append(stand_in)
        assert info.function is not None
        value = UNSIGNED_LONG if info.function.name == "count" else LONG
        formats.check("printa", pieces, stand_ins, place, value)

    def _same_keys(self, first: AggregationInfo, info: AggregationInfo, place: Place) -> None:
        mine, other = first.keys or [], info.keys or []
        a, b = first.name, info.name
        if len(mine) != len(other):
            raise DError("D_PRINTA_AGGKEY", f"printa( ): {a} and {b} do not have matching key "
                         f"signatures: {a} has {len(mine)} key{'s' * (len(mine) != 1)}, {b} has "
                         f"{len(other)} key{'s' * (len(other) != 1)}", place)
        for number, (x, y) in enumerate(zip(mine, other, strict=True), 1):
            if not assignable(x, y):
                raise DError("D_PRINTA_AGGPROTO", f"printa( ): {b}[ ] key #{number} is "
                             f"incompatible with {a}:\n{a:>9} key #{number}: {spelled(x)}\n{b:>9} "
                             f"key #{number}: {spelled(y)}", place)

    def _clear(self, e: syntax.FunctionCall) -> None:
        self._count(e, "CLEAR", 1, 1)
        self._noted("clear", [], aggregations=[self._aggregation_argument(e, 1, "CLEAR")])

    def _count(self, e: syntax.FunctionCall, tag: str, least: int, most: int) -> None:
        name, given = e.function.name, len(e.arguments)
        if least <= given <= most:
            return
        wanted = str(least)
        if least != most:
            wanted = f"at least {least}" if given < least else f"no more than {most}"
        raise DError(f"D_{tag}_PROTO", f"{name}( ) prototype mismatch: {given} args passed, "
                     f"{wanted} expected", e.place)

    def _normalize(self, e: syntax.FunctionCall) -> None:
        name = e.function.name
        wanted = 2 if name == "normalize" else 1
        self._count(e, "NORMALIZE", wanted, wanted)
        info = self._aggregation_argument(e, 1, "NORMALIZE")
        self._noted(name, self._scalar_arguments(e, "NORMALIZE"), aggregations=[info])

    def _trunc(self, e: syntax.FunctionCall) -> None:
        self._count(e, "TRUNC", 1, 2)
        info = self._aggregation_argument(e, 1, "TRUNC")
        self._noted("trunc", self._scalar_arguments(e, "TRUNC"), aggregations=[info])

    def _scalar_arguments(self, e: syntax.FunctionCall, tag: str) -> list[Field]:
        """What follows the aggregation, as 64 bits."""
        found = []
        for argument in e.arguments[1:]:
            if not is_scalar(argument.kind):
                raise DError(f"D_{tag}_SCALAR",
                             f"{e.function.name}( ) argument #2 must be of scalar type",
                             argument.place)
            self.value(argument)
            held = self._field(8, LONG)
            self._store_field(held)
            found.append(held)
        return found

    def _setopt(self, e: syntax.FunctionCall) -> None:
        self._noted("setopt", [self._recorded(self._as_string(a)) for a in e.arguments])

    def _as_string(self, e: syntax.Expression) -> syntax.Expression:
        if is_string(e.kind):
            return e
        node = syntax.Unary(e.place, "stringof", e)
        return self.checker.check(node)

    def _exit(self, e: syntax.FunctionCall) -> None:
        self._noted("exit", [self._recorded(e.arguments[0])])
        self.out.address(1, Region.STATE, 0)
        self.out.constant(0, EXITED)
        self.out.store(1, 0, 0)

    def _plain(self, e: syntax.FunctionCall) -> None:
        """An action without arguments that only the consumer carries out."""
        self._noted(e.function.name, [])

    def _stack(self, e: syntax.FunctionCall) -> None:
        frames, user = self._frames(e)
        found = self._field(8 * frames, special(e.kind) or e.kind, "ustack" if user else "stack")
        self._record_address(1, found)
        self._walk(frames, user)
        self._noted(e.function.name, [found])

    def _walk(self, frames: int, user: bool) -> None:
        """Put the stack where r1 points."""
        self.out.constant(2, frames)
        self.out.constant(3, int(user))
        self.out.helper(Helper.STACK)

    def _frames(self, e: syntax.FunctionCall) -> tuple[int, bool]:
        """How many frames a stack action keeps, and whether they are the user's."""
        name, arguments = e.function.name, e.arguments
        if name == "stack":
            if len(arguments) > 1:
                raise DError("D_STACK_PROTO", "stack( ) prototype mismatch: too many arguments",
                             arguments[0].place)
            if arguments and (not isinstance(arguments[0], syntax.Number)
                              or arguments[0].value <= 0):
                raise DError("D_STACK_SIZE", "stack( ) size must be a non-zero positive integral "
                             "constant expression", arguments[0].place)
            count = self.defaults.frames
        else:
            if arguments and (not isinstance(arguments[0], syntax.Number)
                              or arguments[0].value <= 0):
                raise DError("D_USTACK_FRAMES", "ustack( ) argument #1 must be a non-zero positive "
                             "integer constant", arguments[0].place)
            if len(arguments) > 1 and (not isinstance(arguments[1], syntax.Number)
                                       or arguments[1].value < 0):
                raise DError("D_USTACK_STRSIZE", "ustack( ) argument #2 must be a positive integer "
                             "constant", arguments[1].place)
            if len(arguments) > 2:
                raise DError("D_USTACK_PROTO", "ustack( ) prototype mismatch: too many arguments",
                             arguments[2].place)
            count = self.defaults.user_frames if name == "ustack" else self.defaults.java_frames
        if arguments:
            assert isinstance(arguments[0], syntax.Number)
            count = arguments[0].value
        return max(1, min(count, MAX_FRAMES)), name != "stack"

    def _symbol(self, e: syntax.FunctionCall) -> None:
        self.value(e.arguments[0])
        found = self._field(8, e.kind, e.function.name)
        self._store_field(found)
        self._noted(e.function.name, [found])

    def _speculate(self, e: syntax.FunctionCall) -> None:
        """The principal buffer must have room as well, as DTrace wants it."""
        self.value(e.arguments[0])
        self.out.move(1, 0)
        self._speculated = len(self.out.instructions)
        self.out.constant(2, 0)
        self.out.helper(Helper.SPECULATE)

    def _commit(self, e: syntax.FunctionCall) -> None:
        self.call(Helper.COMMIT_SPECULATION, e.arguments, e.place)

    def _discard(self, e: syntax.FunctionCall) -> None:
        self.call(Helper.DISCARD_SPECULATION, e.arguments, e.place)

    def _destructive(self, e: syntax.FunctionCall) -> None:
        """What changes the system: the host does it, if it may."""
        self.call(Helper.DESTRUCTIVE + DESTRUCTIVE_NUMBERS.index(e.function.name),
                  e.arguments, e.place)

    # -- aggregations ------------------------------------------------------------------------------

    def part_size(self, e: syntax.Expression) -> int:
        if isinstance(e, syntax.FunctionCall) and e.function.name in STACKS:
            return 8 * self._frames(e)[0]
        if isinstance(e, syntax.FunctionCall) and e.function.name in SYMBOLS:
            return 8
        return super().part_size(e)

    def _put_part(self, e: syntax.Expression, region: Region | None, at: int) -> None:
        if isinstance(e, syntax.FunctionCall) and e.function.name in STACKS:
            frames, user = self._frames(e)
            self.place_part(region, at)
            self._walk(frames, user)
        elif isinstance(e, syntax.FunctionCall) and e.function.name in SYMBOLS:
            self.value(e.arguments[0])
            self.place_part(region, at)
            self.out.store(1, 0, 0)
        else:
            super()._put_part(e, region, at)

    def _part(self, e: syntax.Expression) -> Part:
        how = "value"
        if isinstance(e, syntax.FunctionCall) and e.function.name in STACKS | SYMBOLS:
            how = e.function.name
            return special(e.kind) or e.kind, how, self.part_size(e)
        return e.kind, how, self.storage.size(e.kind)

    def _aggregate(self, e: syntax.Assign) -> None:
        use, call = e.left, e.right
        assert isinstance(use, syntax.AggregationUse) and isinstance(call, syntax.FunctionCall)
        info, kind = use.info, KINDS[call.function.name]
        arguments = call.arguments
        increment = None
        if arguments and not is_scalar(arguments[0].kind):
            raise DError("D_AGG_SCALAR",
                         f"{call.function.name}( ) argument #1 must be of scalar type", call.place)
        if kind is Aggregate.QUANTIZE:
            increment = self._increment_of(call, 1)
        elif kind is Aggregate.LQUANTIZE:
            self._parameters(info, self._lquantize(call, info, use.place), use.place)
            increment = self._increment_of(call, 4) if len(arguments) > 3 else None
        elif kind is Aggregate.LLQUANTIZE:
            self._parameters(info, self._llquantize(call, info, use.place), use.place)
            increment = self._increment_of(call, 5)
        number = self._shape(info, [self._part(k) for k in use.keys])
        if arguments:
            self.value(arguments[0])
        else:
            self.out.constant(0, 0)
        value = self.keep(e.place)
        if increment is not None:
            self.value(increment)
        else:
            self.out.constant(0, 1)
        step = self.keep(e.place)
        key = self.key(use.keys)
        self.key_arguments(number, key)
        self.out.load(4, FRAME, value)
        self.out.load(5, FRAME, step)
        self.drop(2)
        self.out.helper(Helper.AGGREGATE)

    def _shape(self, info: AggregationInfo, parts: list[Part]) -> int:
        """The number of an aggregation with such keys."""
        if info.number < 0:
            info.number = len(self.functions)
        for number, shape in enumerate(self.functions):
            if shape.info is info and [p[1:] for p in shape.parts] == [p[1:] for p in parts]:
                return number
        self.functions.append(Shape(info, parts))
        return len(self.functions) - 1

    def _increment_of(self, call: syntax.FunctionCall, at: int) -> syntax.Expression | None:
        name, given = call.function.name, call.arguments
        if len(given) <= at:
            return None
        if not is_scalar(given[at].kind):
            raise DError("D_PROTO_ARG", f"{name}( ) increment value (argument #{at + 1}) must be "
                         "of scalar type", call.place)
        if len(given) > at + 1:
            raise DError("D_PROTO_LEN", f"{name}( ) prototype mismatch: {len(given)} args passed, "
                         f"at most {at + 1} expected", given[at].place)
        return given[at]

    def _parameters(self, info: AggregationInfo, given: tuple[int, ...], place: Place) -> None:
        if not info.parameters:
            info.parameters = given

    def _lquantize(self, call: syntax.FunctionCall, info: AggregationInfo, place: Place
                   ) -> tuple[int, ...]:
        """Base, step and levels."""
        def fail(tag: str, text: str, at: Place) -> DError:
            return DError(f"D_LQUANT_{tag}", f"lquantize( ) {text}", at)

        arguments = call.arguments
        values = []
        for number, word in ((1, "BASE"), (2, "LIM")):
            argument = arguments[number]
            if not isinstance(argument, syntax.Number):
                tag = "BASETYPE" if number == 1 else "LIMTYPE"
                raise fail(tag, f"argument #{number} must be an integer constant", argument.place)
            if signed(argument.value) not in INT32:
                raise fail(f"{word}VAL", f"argument #{number} must be a 32-bit quantity",
                           argument.place)
            values.append(signed(argument.value))
        base, limit = values
        if limit < base:
            raise fail("MISMATCH", "base (argument #1) must be less than limit (argument #2)",
                       place)
        step = 1
        if len(arguments) > 3:
            third = arguments[3]
            if not isinstance(third, syntax.Number) or third.value <= 0:
                raise fail("STEPTYPE", "argument #3 must be a non-zero positive integer constant",
                           third.place)
            if third.value >= INT16:
                raise fail("STEPVAL", "argument #3 must be a 16-bit quantity", third.place)
            step = third.value
        levels = (limit - base) // step
        if levels == 0:
            raise fail("STEPLARGE", "step (argument #3) too large: must have at least one "
                       "quantization level", place)
        if levels >= INT16:
            raise fail("STEPSMALL", "step (argument #3) too small: number of quantization levels "
                       "must be a 16-bit quantity", place)
        found = (base, step, levels)
        if info.parameters and info.parameters != found:
            old_base, old_step, old_levels = info.parameters
            for tag, text, expected, given in (
                ("MATCHBASE", "base (argument #1)", old_base, base),
                ("MATCHLIM", "limit (argument #2)", old_base + old_levels * old_step,
                 base + levels * step),
                ("MATCHSTEP", "step (argument #3)", old_step, step),
            ):
                if expected != given:
                    raise fail(tag, f"{text} doesn't match previous declaration: expected "
                               f"{expected}, found {given}", place)
        return found

    def _llquantize(self, call: syntax.FunctionCall, info: AggregationInfo, place: Place
                    ) -> tuple[int, ...]:
        """Factor, low and high magnitude, steps."""
        def fail(tag: str, text: str, at: Place) -> DError:
            return DError(f"D_LLQUANT_{tag}", f"llquantize( ) {text}", at)

        names = (("FACTOR", "factor"), ("LOW", "low magnitude"), ("HIGH", "high magnitude"),
                 ("NSTEP", "linear steps per magnitude"))
        values = []
        for number, (tag, text) in enumerate(names, 1):
            argument = call.arguments[number]
            if not isinstance(argument, syntax.Number):
                raise fail(f"{tag}TYPE", f"argument #{number} ({text}) must be an integer constant",
                           argument.place)
            if not 0 <= argument.value < INT16:
                raise fail(f"{tag}VAL", f"argument #{number} ({text}) must be an unsigned 16-bit "
                           "quantity", argument.place)
            values.append(argument.value)
        factor, low, high, steps = values
        if factor < 2:
            raise fail("FACTORSMALL", "factor (argument #1) must be two or more", place)
        if low >= high:
            raise fail("MAGRANGE", "high magnitude (argument #3) must be greater than low "
                       "magnitude (argument #2)", place)
        if factor > steps:
            raise fail("FACTORNSTEPS", "factor (argument #1) must be less than or equal to the "
                       "number of linear steps per magnitude (argument #4)", place)
        power = factor
        while power < steps:
            power *= factor
        if steps % factor or power % steps:
            raise fail("FACTOREVEN", "factor (argument #1) must evenly divide the number of steps "
                       "per magnitude (argument #4), and the number of steps per magnitude must "
                       "evenly divide a power of the factor", place)
        if factor ** min(high + 2, 70) >= 1 << 64:
            raise fail("MAGTOOBIG", f"factor ({factor}) raised to power of high magnitude ({high}) "
                       "plus 1 overflows 64-bits", place)
        found = (factor, low, high, steps)
        if info.parameters and info.parameters != found:
            for number, ((tag, text), old, new) in enumerate(
                    zip(names, info.parameters, found, strict=True), 1):
                if old != new:
                    raise fail(f"{tag}MATCH", f"{text} (argument #{number}) doesn't match previous "
                               f"declaration: expected {old}, found {new}", place)
        return found


def value_count(info: AggregationInfo) -> int:
    """How many 64-bit values an aggregation keeps for each key."""
    assert info.function is not None
    kind = KINDS[info.function.name]
    if kind is Aggregate.LQUANTIZE:
        return info.parameters[2] + 2
    if kind is Aggregate.LLQUANTIZE:
        factor, low, high, steps = info.parameters
        return (high - low + 1) * (steps - steps // factor) + 2 + steps
    return {Aggregate.AVG: 2, Aggregate.STDDEV: 4, Aggregate.QUANTIZE: QUANTIZE_BUCKETS}.get(
        kind, 1)


def _kind(e: syntax.Expression) -> str:
    if isinstance(e, syntax.Assign) and isinstance(e.left, syntax.AggregationUse):
        return AGGREGATE
    if isinstance(e, syntax.FunctionCall) and e.function.role is Role.ACTION:
        return e.function.name
    return EXPRESSION


def _destructive(e: syntax.Expression) -> bool:
    return isinstance(e, syntax.FunctionCall) and e.function.name in DESTRUCTIVE


def _mixed(kinds: list[str], place: Place, statements: list[syntax.Expression]) -> None:
    """Which actions may follow which, in one clause."""
    def fail(tag: str, text: str) -> DError:
        return DError(tag, text, place)

    commit = speculate = data = False
    for number, kind in enumerate(kinds):
        destructive = kind in DESTRUCTIVE or (kind == EXPRESSION and _destructive(
            statements[number]))
        if kind == "commit":
            if commit:
                raise fail("D_COMM_COMM", "commit( ) may not follow commit( )")
            if data:
                raise fail("D_COMM_DREC", "commit( ) may not follow data-recording action(s)")
            if AGGREGATE in kinds[number:]:
                raise fail("D_AGG_COMM", "aggregating actions may not follow commit( )")
            commit = True
            continue
        if kind == "speculate":
            if speculate:
                raise fail("D_SPEC_SPEC", "speculate( ) may not follow speculate( )")
            if commit:
                raise fail("D_SPEC_COMM", "speculate( ) may not follow commit( )")
            if data:
                raise fail("D_SPEC_DREC", "speculate( ) may not follow data-recording action(s)")
            speculate = True
            continue
        if kind == AGGREGATE:
            if speculate:
                raise fail("D_AGG_SPEC", "aggregating actions may not follow speculate( )")
            data = True
            continue
        if speculate and destructive:
            raise fail("D_ACT_SPEC", "destructive actions may not follow speculate( )")
        if speculate and kind == "exit":
            raise fail("D_EXIT_SPEC", "exit( ) may not follow speculate( )")
        if destructive or kind in ("discard", EXPRESSION):
            continue
        if commit:
            raise fail("D_DREC_COMM", "data-recording actions may not follow commit( )")
        if not speculate:
            data = True


DESTRUCTIVE_NUMBERS = ("breakpoint", "chill", "panic", "raise", "stop")
ACTIONS: dict[str, str] = {
    "trace": "_trace", "print": "_trace", "tracemem": "_tracemem", "printm": "_printm",
    "printf": "_printf", "system": "_printf", "freopen": "_printf", "printa": "_printa",
    "clear": "_clear", "normalize": "_normalize", "denormalize": "_normalize", "trunc": "_trunc",
    "setopt": "_setopt", "exit": "_exit", "ftruncate": "_plain", "speculate": "_speculate",
    "commit": "_commit", "discard": "_discard",
    **dict.fromkeys(STACKS, "_stack"), **dict.fromkeys(SYMBOLS, "_symbol"),
    **dict.fromkeys(DESTRUCTIVE_NUMBERS, "_destructive"),
}
