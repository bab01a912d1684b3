"""Code generation for aggregations: parameters, and keys (including stacks and symbols)."""

from dtrace.bpf.encoding import FRAME
from dtrace.bpf.interpreter import signed
from dtrace.bpf.layout import QUANTIZE_BUCKETS, Aggregate, Helper, Region
from dtrace.d.compile.actions import STACKS, SYMBOLS, stack_frames, symbol_address, walk_stack
from dtrace.d.compile.records import RecordCode
from dtrace.d.compile.storage import Storage
from dtrace.d.language import syntax
from dtrace.d.language.errors import DError, SourcePlace
from dtrace.d.language.identifiers import KINDS, AggregationInfo, KeyShape, Part
from dtrace.d.language.options import Options
from dtrace.d.language.types import is_scalar, special

INT32 = range(-(1 << 31), 1 << 31)
INT16 = 1 << 16
MAX_VALUES = 1 << 20  # maximum number of values per key of an aggregation


class AggregationCode(RecordCode):
    """Code generator for aggregations.

    :param functions: the program's aggregations, each with the shape of its keys, by number.
    """

    def __init__(self, storage: Storage, options: Options, functions: list[KeyShape]) -> None:
        super().__init__(storage, options)
        self.functions = functions

    def part_size(self, e: syntax.Expression) -> int:
        if isinstance(e, syntax.FunctionCall) and e.function.name in STACKS:
            return 8 * stack_frames(self, e)[0]
        if isinstance(e, syntax.FunctionCall) and e.function.name in SYMBOLS:
            return 8
        return super().part_size(e)

    def _put_part(self, e: syntax.Expression, kept: int | None, region: Region | None, at: int,
                  storing: bool) -> None:
        if isinstance(e, syntax.FunctionCall) and e.function.name in STACKS:
            frames, user = stack_frames(self, e)
            self.place_part(region, at)
            walk_stack(self, frames, user)
        elif isinstance(e, syntax.FunctionCall) and e.function.name in SYMBOLS:
            symbol_address(self, e)
            self.place_part(region, at)
            self.out.store(1, 0, 0)
        else:
            super()._put_part(e, kept, region, at, storing)

    def _part(self, e: syntax.Expression) -> Part:
        how = "value"
        if isinstance(e, syntax.FunctionCall) and e.function.name in STACKS | SYMBOLS:
            how = e.function.name
            return special(e.kind) or e.kind, how, self.part_size(e)
        return e.kind, how, self.storage.size(e.kind)

    def aggregate(self, e: syntax.Assign) -> None:
        """Emit an aggregating statement, ``@name[keys] = function(...)``.

        :raises DError: if the function does not accept these arguments.
        """
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
        # As in DTrace, the aggregation's number, its keys, the increment and the function are
        # separate actions, in that order.
        key = self.key(use.keys, self.next_action)
        start, _size, end = key
        # Reserve the key's space while the increment and the argument are evaluated.
        self._work = start + sum(self.part_size(k) for k in use.keys)
        self._slot += end is not None
        if increment is not None:
            self.next_action()
            self.value(increment)
        else:
            self.out.constant(0, 1)
        step = self.keep(e.place)
        self.next_action()
        if arguments:
            self.value(arguments[0])
        else:
            self.out.constant(0, 0)
        value = self.keep(e.place)
        self.key_arguments(number, key)
        self.out.load(4, FRAME, value)
        self.out.load(5, FRAME, step)
        self.drop(2 + (end is not None))
        self._work = start
        self.out.helper(Helper.AGGREGATE)

    def _shape(self, info: AggregationInfo, parts: list[Part]) -> int:
        """Add the shape of a statement's keys, and return its number."""
        number = len(self.functions)
        if info.number < 0:
            info.number = number
        first = info.shapes.setdefault(tuple((how, size) for _kind, how, size in parts), number)
        self.functions.append(KeyShape(info, parts, first))
        return number

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

    def _parameters(self, info: AggregationInfo, given: tuple[int, ...],
                    place: SourcePlace) -> None:
        if not info.parameters:
            info.parameters = given

    def _lquantize(self, call: syntax.FunctionCall, info: AggregationInfo, place: SourcePlace
                   ) -> tuple[int, ...]:
        """Check the parameters of ``lquantize()`` and return its base, step and level count."""
        def fail(tag: str, text: str, at: SourcePlace) -> DError:
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
        parameters = (base, step, levels)
        if info.parameters and info.parameters != parameters:
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
        return parameters

    def _llquantize(self, call: syntax.FunctionCall, info: AggregationInfo, place: SourcePlace
                    ) -> tuple[int, ...]:
        """Check the parameters of ``llquantize()``.

        Return its factor, low magnitude, high magnitude and steps per magnitude.
        """
        def fail(tag: str, text: str, at: SourcePlace) -> DError:
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
        parameters = (factor, low, high, steps)
        if _logarithmic_values(parameters) > MAX_VALUES:
            raise fail("NSTEPVAL", f"has more than {MAX_VALUES} buckets", place)
        if info.parameters and info.parameters != parameters:
            for number, ((tag, text), old, new) in enumerate(
                    zip(names, info.parameters, parameters, strict=True), 1):
                if old != new:
                    raise fail(f"{tag}MATCH", f"{text} (argument #{number}) doesn't match previous "
                               f"declaration: expected {old}, found {new}", place)
        return parameters


def _logarithmic_values(parameters: tuple[int, ...]) -> int:
    """Return the number of values that ``llquantize()`` keeps for each key."""
    factor, low, high, steps = parameters
    return (high - low + 1) * (steps - steps // factor) + 2 + steps


def value_count(info: AggregationInfo) -> int:
    """Return the number of 64-bit values that an aggregation keeps for each key."""
    assert info.function is not None
    kind = KINDS[info.function.name]
    if kind is Aggregate.LQUANTIZE:
        return info.parameters[2] + 2
    if kind is Aggregate.LLQUANTIZE:
        return _logarithmic_values(info.parameters)
    return {Aggregate.AVG: 2, Aggregate.STDDEV: 4, Aggregate.QUANTIZE: QUANTIZE_BUCKETS}.get(
        kind, 1)
