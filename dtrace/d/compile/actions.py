"""Code generation for D's actions, driven by the table ``ACTIONS``.

Each function checks the arguments against the action's own rules, where the prototype does not
express them, and emits code that leaves in the record what the consumer needs.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dtrace.bpf.encoding import BpfJump
from dtrace.bpf.layout import IN_PROGRAM, Helper, Region
from dtrace.d.compile.records import MAX_RECORD, Field, RecordCode
from dtrace.d.language import formats, syntax
from dtrace.d.language.errors import DError, SourcePlace
from dtrace.d.language.identifiers import AggregationInfo, Scope, Variable
from dtrace.d.language.types import (
    LONG,
    STRING,
    UNSIGNED_LONG,
    assignable,
    is_dynamic,
    is_integer,
    is_pointer,
    is_scalar,
    is_signed,
    is_string,
    is_void,
    special,
    spelled,
)

MAX_FRAMES = 1 << 10
EXITED = 1  # value of the first word of Region.STATE after tracing has ended
Emit = Callable[[RecordCode, syntax.FunctionCall], None]


@dataclass(frozen=True)
class Action:
    """Implementation of an action; its prototype is in ``identifiers.py``.

    :param emit: function that emits the action's code; it raises DError for invalid arguments.
    :param consumer: name of the method of ``Consumer`` (``dtrace/run/consumer.py``), without its
        leading ``_``, that prints the record or carries out the request; "" if the code does
        everything.
    :param data: whether the action records data; statements that record none make no row.
    """

    emit: Emit
    consumer: str = ""
    data: bool = True


def _trace(code: RecordCode, e: syntax.FunctionCall) -> None:
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
        argument = _translated_copy(code, argument)
    if is_dynamic(argument.kind):
        raise DError(
            f"D_{tag}_DYN", f"{name}( ) may not be applied to a translated pointer", place)
    code.noted(name, [code.recorded(argument)])


def _translated_copy(code: RecordCode, translated: syntax.Translated) -> syntax.Expression:
    """Emit code that stores a translator's result in a hidden variable; return the variable."""
    kind = translated.translator.to
    variable = Variable("", Scope.GLOBAL, kind)
    code.storage.place(variable)
    use = syntax.VariableUse(translated.place, variable, [])
    use.type, use.lvalue, use.writable = kind, True, True
    made = syntax.Assign(translated.place, "", use, translated)
    made.type = kind
    code.value(made)
    return use


def _tracemem(code: RecordCode, e: syntax.FunctionCall) -> None:
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
    _large(size.value, size.place)
    content = code.field(size.value, UNSIGNED_LONG)
    wanted: list[Field] = []
    if more:  # in DTrace, the dynamic size is a separate action before the bytes
        wanted.append(code.recorded(more[0]))
        code.next_action()
    code.value(address)
    code.out.move(2, 0)
    code.record_address(1, content)
    code.out.constant(3, size.value)
    if wanted:
        _limit(code, wanted[0], size.value)
    code.store_by_reference(Helper.COPY)
    code.noted("tracemem", [content, *wanted])


def _limit(code: RecordCode, wanted: Field, most: int) -> None:
    """Emit code that sets r3 to the number in a field if the number is from 1 to ``most``."""
    out, end = code.out, code.out.label()
    code.record_address(4, wanted)
    out.load(4, 4, 0, wanted.size, is_signed(wanted.type))
    out.branch_constant(BpfJump.JEQ, 4, 0, end)
    out.branch_constant(BpfJump.JGT, 4, most, end)
    out.move(3, 4)
    out.place(end)


def _large(size: int, place: SourcePlace) -> None:
    if size > MAX_RECORD:
        raise DError("D_UNKNOWN", f"a record of {size} bytes is too large", place)


def _printm(code: RecordCode, e: syntax.FunctionCall) -> None:
    size, reference = e.arguments
    if not isinstance(size, syntax.Number) or size.value <= 0:
        raise DError("D_PRINTM_SIZE", "printm( ) argument #1 must be a non-zero positive "
                     "integral constant expression", size.place)
    if not is_pointer(reference.kind):
        raise DError("D_PRINTM_ADDR", "printm( ) argument #2 is incompatible with prototype:"
                     f"\n\tprototype: pointer\n\t argument: {spelled(reference.kind)}",
                     reference.place)
    _large(size.value, size.place)
    code.value(reference)
    length, content = code.field(8, LONG), code.field(size.value, UNSIGNED_LONG)
    code.record_address(1, length)
    code.out.move(2, 0)
    code.out.constant(3, size.value)
    code.store_by_reference(Helper.COPY_REFERENCE)
    code.noted("printm", [length, content])


def _printf(code: RecordCode, e: syntax.FunctionCall) -> None:
    name, (first, *arguments) = e.function.name, e.arguments
    if not isinstance(first, syntax.Text):
        raise DError(
            "D_PRINTF_ARG_FMT", f"{name}( ) argument #1 is incompatible with prototype:\n\t"
            f"prototype: string constant\n\t argument: {_shown(first)}", e.place)
    if name == "freopen" and first.content == b".":
        raise DError(
            "D_FREOPEN_INVALID", 'freopen( ) argument #1 cannot be "."', e.place)
    pieces = formats.parse(first.content, e.place)
    if pieces or name != "freopen":
        formats.check(name, pieces, arguments, e.place)
    if not arguments:
        code.count_bytes(8, 8)
    fields = []
    for number, argument in enumerate(arguments):
        if number:
            code.next_action()
        fields.append(code.recorded(argument))
    code.noted(name, fields, pieces)


def _printa(code: RecordCode, e: syntax.FunctionCall) -> None:
    first, pieces, start = e.arguments[0], None, 1
    if isinstance(first, syntax.Text):
        start = 2
        pieces = formats.parse(first.content, e.place)
    if len(e.arguments) < start:
        raise DError("D_PRINTA_PROTO", f"printa( ) prototype mismatch: {len(e.arguments)} args "
                     f"passed, {start} expected", e.place)
    infos: list[AggregationInfo] = []
    for number in range(start, len(e.arguments) + 1):
        info = _aggregation_argument(e, number, "PRINTA")
        if not infos and pieces is not None:
            _check_printa(pieces, info, e.place)
        elif infos:
            _same_keys(infos[0], info, e.place)
        if infos:
            code.next_action()
        infos.append(info)
        code.count_bytes(8, 8)
    code.noted("printa", [], pieces, infos)


def _check_printa(pieces: list[formats.Piece], info: AggregationInfo, place: SourcePlace
                  ) -> None:
    stand_ins: list[syntax.Expression] = []
    for kind in info.keys or ():
        stand_in = syntax.ContextUse(place, "", 0)
        stand_in.type = kind
        stand_ins.append(stand_in)
    assert info.function is not None
    value = UNSIGNED_LONG if info.function.name == "count" else LONG
    formats.check("printa", pieces, stand_ins, place, value)


def _same_keys(first: AggregationInfo, info: AggregationInfo, place: SourcePlace) -> None:
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


def _clear(code: RecordCode, e: syntax.FunctionCall) -> None:
    _count(e, "CLEAR", 1, 1)
    code.noted("clear", [], aggregations=[_aggregation_argument(e, 1, "CLEAR")])


def _normalize(code: RecordCode, e: syntax.FunctionCall) -> None:
    name = e.function.name
    wanted = 2 if name == "normalize" else 1
    _count(e, "NORMALIZE", wanted, wanted)
    info = _aggregation_argument(e, 1, "NORMALIZE")
    if wanted == 2:
        code.next_action()
    code.noted(name, _scalar_arguments(code, e, "NORMALIZE"), aggregations=[info])


def _trunc(code: RecordCode, e: syntax.FunctionCall) -> None:
    _count(e, "TRUNC", 1, 2)
    info = _aggregation_argument(e, 1, "TRUNC")
    code.next_action()
    code.noted("trunc", _scalar_arguments(code, e, "TRUNC"), aggregations=[info])


def _aggregation_argument(e: syntax.FunctionCall, number: int, tag: str
                          ) -> AggregationInfo:
    argument, name = e.arguments[number - 1], e.function.name
    if not isinstance(argument, syntax.AggregationUse):
        raise DError(
            f"D_{tag}_AGGARG", f"{name}( ) argument #{number} is incompatible with prototype:"
            f"\n\tprototype: aggregation\n\t argument: {_shown(argument)}",
            argument.place)
    if argument.info.function is None:
        raise DError(f"D_{tag}_AGGBAD", f"undefined aggregation: {argument.info.name}",
                     argument.place)
    return argument.info


def _count(e: syntax.FunctionCall, tag: str, least: int, most: int) -> None:
    name, given = e.function.name, len(e.arguments)
    if least <= given <= most:
        return
    wanted = str(least)
    if least != most:
        wanted = f"at least {least}" if given < least else f"no more than {most}"
    raise DError(f"D_{tag}_PROTO", f"{name}( ) prototype mismatch: {given} args passed, "
                 f"{wanted} expected", e.place)


def _scalar_arguments(code: RecordCode, e: syntax.FunctionCall, tag: str) -> list[Field]:
    """Emit code that records the arguments after the aggregation, and return their fields."""
    fields = []
    for argument in e.arguments[1:]:
        if not is_scalar(argument.kind):
            raise DError(f"D_{tag}_SCALAR",
                         f"{e.function.name}( ) argument #2 must be of scalar type",
                         argument.place)
        fields.append(code.recorded(argument))
    return fields


def _shown(e: syntax.Expression) -> str:
    if isinstance(e, syntax.AggregationUse):
        return "aggregation"
    return spelled(e.kind)


def _setopt(code: RecordCode, e: syntax.FunctionCall) -> None:
    fields = [code.recorded(_as_string(e.arguments[0]))]
    code.next_action()  # DTrace counts an omitted value as an action, too
    fields += [code.recorded(_as_string(a)) for a in e.arguments[1:]]
    code.noted("setopt", fields)


def _as_string(e: syntax.Expression) -> syntax.Expression:
    if is_string(e.kind):
        return e
    node = syntax.Unary(e.place, "stringof", e)
    node.type = STRING
    return node


def _exit(code: RecordCode, e: syntax.FunctionCall) -> None:
    code.noted("exit", [code.recorded(e.arguments[0])])
    code.out.address(1, Region.STATE, 0)
    code.out.constant(0, EXITED)
    code.out.store(1, 0, 0)


def _plain(code: RecordCode, e: syntax.FunctionCall) -> None:
    """Add an action without arguments to the clause; only the consumer performs the action."""
    code.noted(e.function.name, [])


def _stack(code: RecordCode, e: syntax.FunctionCall) -> None:
    frames, user = stack_frames(code, e)
    field = code.field(8 * frames, special(e.kind) or e.kind, "ustack" if user else "stack")
    code.record_address(1, field)
    walk_stack(code, frames, user)
    code.noted(e.function.name, [field])


def stack_frames(code: RecordCode, e: syntax.FunctionCall) -> tuple[int, bool]:
    """Return how many frames a stack action records, and whether the frames are user frames."""
    name, arguments = e.function.name, e.arguments
    if name == "stack":
        if len(arguments) > 1:
            raise DError("D_STACK_PROTO", "stack( ) prototype mismatch: too many arguments",
                         arguments[0].place)
        if arguments and (not isinstance(arguments[0], syntax.Number)
                          or arguments[0].value <= 0):
            raise DError("D_STACK_SIZE", "stack( ) size must be a non-zero positive integral "
                         "constant expression", arguments[0].place)
        count = code.options.number("stackframes")
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
        count = code.options.number("ustackframes" if name == "ustack" else "jstackframes")
    if arguments:
        assert isinstance(arguments[0], syntax.Number)
        count = arguments[0].value
    return max(1, min(count, MAX_FRAMES)), name != "stack"


def walk_stack(code: RecordCode, frames: int, user: bool) -> None:
    """Emit code that stores the frames of a stack at the address in r1."""
    code.out.constant(2, frames)
    code.out.constant(3, int(user))
    code.out.helper(Helper.STACK)


def symbol_address(code: RecordCode, e: syntax.FunctionCall) -> None:
    """Emit code that loads into r0 the value that ``sym()`` or a similar action records.

    For the actions on user addresses, that value also identifies the process.
    """
    code.value(e.arguments[0])
    if e.function.name in OF_PROGRAMS:
        code.out.move(2, 0)
        code.out.constant(1, IN_PROGRAM)
        code.out.helper(Helper.VARIABLE)


def _symbol(code: RecordCode, e: syntax.FunctionCall) -> None:
    symbol_address(code, e)
    field = code.field(8, e.kind, e.function.name)
    code.store_field(field)
    code.noted(e.function.name, [field])


def _speculate(code: RecordCode, e: syntax.FunctionCall) -> None:
    """Emit code for ``speculate()``; as in DTrace, it also needs room in the principal buffer."""
    code.value(e.arguments[0])
    code.out.move(1, 0)
    code.speculated = len(code.out.instructions)
    code.out.constant(2, 0)
    code.out.helper(Helper.SPECULATE)


def _commit(code: RecordCode, e: syntax.FunctionCall) -> None:
    code.call(Helper.COMMIT_SPECULATION, e.arguments, e.place)


def _discard(code: RecordCode, e: syntax.FunctionCall) -> None:
    code.call(Helper.DISCARD_SPECULATION, e.arguments, e.place)


def _on_host(code: RecordCode, e: syntax.FunctionCall) -> None:
    """Emit a destructive action, which the host performs if destructive actions are permitted."""
    code.call(Helper.DESTRUCTIVE + ON_HOST.index(e.function.name),
              e.arguments, e.place)


ACTIONS = {
    "breakpoint": Action(_on_host, data=False),
    "chill": Action(_on_host, data=False),
    "clear": Action(_clear, "changed"),
    "commit": Action(_commit, data=False),
    "denormalize": Action(_normalize, "changed"),
    "discard": Action(_discard, data=False),
    "exit": Action(_exit, "exit"),
    "freopen": Action(_printf, "reopen"),
    "ftruncate": Action(_plain, "truncate_output"),
    "func": Action(_symbol, "symbol"),
    "sym": Action(_symbol, "symbol"),
    "mod": Action(_symbol, "symbol"),
    "jstack": Action(_stack, "stack"),
    "normalize": Action(_normalize, "changed"),
    "panic": Action(_on_host, data=False),
    "print": Action(_trace, "typed"),
    "printa": Action(_printa, "aggregations"),
    "printf": Action(_printf, "formatted"),
    "printm": Action(_printm, "reference"),
    "raise": Action(_on_host, data=False),
    "setopt": Action(_setopt, "set_option"),
    "speculate": Action(_speculate, data=False),
    "stack": Action(_stack, "stack"),
    "stop": Action(_on_host, data=False),
    "system": Action(_printf, "system"),
    "trace": Action(_trace, "traced"),
    "tracemem": Action(_tracemem, "memory"),
    "trunc": Action(_trunc, "changed"),
    "uaddr": Action(_symbol, "symbol"),
    "ufunc": Action(_symbol, "symbol"),
    "umod": Action(_symbol, "symbol"),
    "usym": Action(_symbol, "symbol"),
    "ustack": Action(_stack, "stack"),
}


OF_PROGRAMS = frozenset(("uaddr", "ufunc", "umod", "usym"))


def _with(emit: Emit) -> tuple[str, ...]:
    return tuple(name for name, action in ACTIONS.items() if action.emit is emit)


STACKS, SYMBOLS = frozenset(_with(_stack)), frozenset(_with(_symbol))  # actions allowed in keys
# the helper ID of an action is its index in this tuple + Helper.DESTRUCTIVE
ON_HOST = _with(_on_host)
