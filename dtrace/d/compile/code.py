"""Code generation for expressions.

The value of an expression is left in r0: a number extended to 64 bits according to its type, or the
address of a string or structure.  r6 holds the context and r7 the record; intermediate values are
on the stack.
"""

from collections.abc import Callable

from dtrace.bpf.assembler import Label
from dtrace.bpf.encoding import FRAME, Alu, BpfInstruction, BpfJump, Class, X
from dtrace.bpf.layout import ContextOffset, Fault, Helper, Region
from dtrace.d.compile.values import IMMEDIATE, ValueCode
from dtrace.d.language import syntax
from dtrace.d.language.errors import DError, SourcePlace
from dtrace.d.language.identifiers import Scope, Variable
from dtrace.d.language.types import (
    LONG,
    arithmetic,
    is_integer,
    is_pointer,
    is_reference,
    is_scalar,
    is_signed,
    is_string,
    width,
)
from dwarf.types import Pointer, Type, strip

CONTEXT, RECORD = 6, 7  # registers that hold the addresses of the context and the record
ALU = {"+": Alu.ADD, "-": Alu.SUB, "*": Alu.MUL, "&": Alu.AND, "|": Alu.OR, "^": Alu.XOR,
       "<<": Alu.LSH}
UNSIGNED = {"==": BpfJump.JEQ, "!=": BpfJump.JNE, "<": BpfJump.JLT, ">": BpfJump.JGT,
            "<=": BpfJump.JLE,
            ">=": BpfJump.JGE}
OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
SIGNED = UNSIGNED | {"<": BpfJump.JSLT, ">": BpfJump.JSGT, "<=": BpfJump.JSLE, ">=": BpfJump.JSGE}
MAX_TABLE = 1 << 22  # maximum number of entries in a table that is indexed by probe ID
MAX_CASES = 1 << 16
ABSENT = -(1 << 63)
SWAPS = {"htons": 16, "ntohs": 16, "htonl": 32, "ntohl": 32, "htonll": 64, "ntohll": 64}


def window(offset: int, bits: int) -> tuple[int, int, int]:
    """Return how to read a bit-field: (first byte, byte count, lowest bit in these bytes).

    The bytes are the fewest aligned ones that hold the field; if even eight do not, they begin with
    the field's first byte, and there are eight or nine.

    :param offset: offset of the field in its structure, in bits.
    """
    for size in (1, 2, 4, 8):
        start = offset // 8 // size * size
        if offset - 8 * start + bits <= 8 * size:
            return start, size, offset - 8 * start
    low = offset % 8
    return offset // 8, 8 if low + bits <= 64 else 9, low



REGISTERS = 7  # number of registers that an expression may use in DTrace's virtual machine


def registers(e: syntax.Expression) -> int:
    """Return the number of registers that DTrace needs for an expression.

    DTrace refuses expressions that need too many, and so does this compiler.
    """
    match e:
        case syntax.Binary(left=left, right=right):
            return max(registers(left), 1 + registers(right))
        case syntax.Unary(operand=operand) | syntax.Cast(operand=operand):
            return registers(operand)
    return 1


class ExpressionCode(ValueCode):
    """Code generator for expressions in a function."""

    def _simple(self, e: syntax.Expression, to: int) -> bool:
        """Emit a load that uses only register ``to``; return False if it needs more registers."""
        match e:
            case syntax.Number(value=value):
                self.out.constant(to, value)
                return True
            case syntax.ContextUse(offset=offset) if not is_reference(e.kind) or is_string(e.kind):
                self.out.load(to, CONTEXT, offset)
                return True
            case syntax.VariableUse(variable=v) if v.offset >= 0 and is_scalar(v.type):
                self._variable_address(v, to)
                self.out.load(to, to, 0)
                return True
        return False

    def _variable_address(self, v: Variable, to: int) -> None:
        self.out.address(to, Region.LOCALS if v.scope is Scope.LOCAL else Region.GLOBALS, v.offset)

    def pair(self, left: syntax.Expression, right: syntax.Expression) -> None:
        """Emit code that leaves the value of ``left`` in r0 and that of ``right`` in r1."""
        if isinstance(right, syntax.Number | syntax.ContextUse | syntax.VariableUse):
            self.value(left)
            if self._simple(right, 1):
                return
            slot = self.keep(left.place)
        else:
            self.value(left)
            slot = self.keep(left.place)
        self.value(right)
        self.out.move(1, 0)
        self.out.load(0, FRAME, slot)
        self.drop()

    def call(self, helper: int, arguments: list[syntax.Expression], place: SourcePlace) -> None:
        """Emit a helper call whose arguments are the values of expressions."""
        if len(arguments) == 1:
            if not self._simple(arguments[0], 1):
                self.value(arguments[0])
                self.out.move(1, 0)
        else:
            slots = []
            for argument in arguments:
                self.value(argument)
                slots.append(self.keep(place))
            for number, slot in enumerate(slots, 1):
                self.out.load(number, FRAME, slot)
            self.drop(len(slots))
        self.out.helper(helper)

    # -- expressions -------------------------------------------------------------------------------

    def value(self, e: syntax.Expression) -> None:
        """Emit code that leaves the value of an expression in r0."""
        if self._simple(e, 0):
            return
        match e:
            case syntax.Text(content=content):
                self.out.address(0, Region.STRINGS, self.storage.text(content))
            case syntax.VariableUse():
                self._variable(e)
            case syntax.HostedUse():
                self._hosted(e)
            case syntax.ByProbe():
                self._by_probe(e)
            case syntax.Assembled():
                self._assembled(e)
            case syntax.SymbolUse() | syntax.MemberUse():
                self._memory(e)
            case syntax.Unary():
                self._unary(e)
            case syntax.Binary():
                if registers(e) > REGISTERS:
                    raise DError("D_NOREG", "Insufficient registers to generate code", e.place)
                self._binary(e)
            case syntax.Assign():
                self._assign(e)
            case syntax.Ternary():
                self._ternary(e)
            case syntax.Cast():
                self.value(e.operand)
                self.convert(e.operand.kind, e.to)
            case syntax.FunctionCall():
                self._call(e)
            case syntax.Translated(pointer=True):
                raise DError("D_CG_DYN", "expression cannot evaluate to result of a translated "
                             "pointer", e.place)
            case syntax.ContextUse(offset=offset):
                self.out.load(0, CONTEXT, offset)
            case _:
                raise DError("D_UNKNOWN", "expression has no value", e.place)

    def condition(self, e: syntax.Expression, false: Label) -> None:
        """Emit code that jumps to a label if an expression is zero."""
        if isinstance(e, syntax.Binary) and e.operator == "&&":
            self.condition(e.left, false)
            self.condition(e.right, false)
            return
        if isinstance(e, syntax.Binary) and e.operator in UNSIGNED and not self._textual(e):
            self._compare(e, false, negate=True)
            return
        self.value(e)
        self.out.branch_constant(BpfJump.JEQ, 0, 0, false)

    def unless(self, e: syntax.Expression, true: Label) -> None:
        """Emit code that jumps to a label if an expression is not zero.

        Predicates use it: most of them are false, so the jump is rarely taken.
        """
        if isinstance(e, syntax.Binary) and e.operator == "&&":
            false = self.out.label()
            self.condition(e, false)
            self.out.jump(true)
            self.out.place(false)
        elif isinstance(e, syntax.Binary) and e.operator in UNSIGNED and not self._textual(e):
            self._compare(e, true, negate=False)
        else:
            self.value(e)
            self.out.branch_constant(BpfJump.JNE, 0, 0, true)

    def _variable(self, e: syntax.VariableUse) -> None:
        """Emit code that loads a variable that has a key, or is a string or structure."""
        v = e.variable
        if v.number >= 0:
            key = self._find(e)
            if is_scalar(v.type):
                end = self.out.label()
                self.out.branch_constant(BpfJump.JEQ, 0, 0, end)
                self.out.load(0, 0, 0)
                self.out.place(end)
            elif e.keys:  # as in DTrace, other thread-local variables have no address before
                made = self.out.label()
                self.out.branch_constant(BpfJump.JNE, 0, 0, made)
                self._make(v, key)
                self.out.place(made)
            return
        self._variable_address(v, 0)
        if not is_scalar(v.type):
            end = self.out.label()
            self.out.load(1, 0, -8)
            self.out.branch_constant(BpfJump.JEQ, 1, 0, end)
            self.out.constant(0, 0)
            self.out.place(end)

    def _make(self, v: Variable, key: tuple[int, int, int | None]) -> None:
        """Emit code that creates the element of a key: a structure or string filled with zeros.

        :param key: as returned by ``_find``, which has just looked for the element.
        """
        self.out.address(4, Region.STRINGS, self.storage.zeros(self.storage.size(v.type)))
        self.key_arguments(v.number, key)
        self.out.helper(Helper.ASSIGN)
        self.key_arguments(v.number, key)
        self.out.helper(Helper.FIND)

    def _provide(self, e: syntax.VariableUse) -> None:
        """Emit code after which a structure has an address, even if it was NULL."""
        v = e.variable
        if v.number < 0:
            self._variable_address(v, 1)
            self.out.store_constant(1, -8, 0)
            return
        made = self.out.label()
        key = self._find(e)
        self.out.branch_constant(BpfJump.JNE, 0, 0, made)
        self._make(v, key)
        self.out.place(made)

    def _find(self, e: syntax.VariableUse) -> tuple[int, int, int | None]:
        """Emit code that looks for an element, and return its key, which stays in place."""
        key = self.key(e.keys)
        self.key_arguments(e.variable.number, key)
        self.out.helper(Helper.FIND)
        return key

    def key(self, keys: list[syntax.Expression], before_each: Callable[[], None] | None = None
            ) -> tuple[int, int, int | None]:
        """Emit code that builds a key in the work region.

        Return the key's offset, its size, and None or, if the size varies, the slot with its end.

        :param before_each: begins an action for each part; faults while the part is copied then
            have no offset, because in DTrace, the action's own code has ended by then.
        """
        if not keys:
            return 0, 0, None
        start = self._work
        sizes = [self.part_size(k) for k in keys]
        self._work += sum(sizes)
        self.storage.work_size = max(self.storage.work_size, self._work)
        at, slot = start, None
        # DTrace copies the parts of a variable's key when all of them have been evaluated.
        kept = [] if before_each is not None or all(map(is_scalar, (k.kind for k in keys[:-1]))) \
            else [self._kept(e) for e in keys]
        for number, e in enumerate(keys):
            if before_each is not None:
                before_each()
            before = kept[number] if kept else None
            if slot is None and not is_string(e.kind):
                self._put_part(e, before, Region.WORK, at, before_each is not None)
                at += self.part_size(e)
                continue
            if slot is None:
                self.out.address(0, Region.WORK, at)
                slot = self.keep(e.place)
            if is_string(e.kind):
                self._value_of(e, before)
                self.out.move(2, 0)
                self.out.load(1, FRAME, slot)
                self.out.storing = before_each is not None
                self.out.helper(Helper.KEY_TEXT)
                self.out.storing = False
            else:
                self._put_part(e, before, None, slot, before_each is not None)
                self.out.load(0, FRAME, slot)
                self.out.alu_constant(Alu.ADD, 0, self.part_size(e))
            self.out.store(FRAME, slot, 0)
        self._work = start
        self.drop(len(kept) + (slot is not None))
        return start, at - start, slot

    def _kept(self, e: syntax.Expression) -> int:
        """Emit code that evaluates an expression, and return the slot with its value."""
        self.value(e)
        return self.keep(e.place)

    def part_size(self, e: syntax.Expression) -> int:
        """Return the maximum size in bytes that a value has in a key."""
        return self.storage.key_size(e.kind)

    def _value_of(self, e: syntax.Expression, kept: int | None) -> None:
        """Emit code that evaluates an expression, or loads the value from the slot with it."""
        if kept is None:
            self.value(e)
        else:
            self.out.load(0, FRAME, kept)

    def _put_part(self, e: syntax.Expression, kept: int | None, region: Region | None, at: int,
                  storing: bool) -> None:
        """Emit code that puts a value into a key, at the location that ``place_part`` computes.

        :param storing: faults of the copying have no offset.
        """
        self._value_of(e, kept)
        self.place_part(region, at)
        if is_scalar(e.kind):
            self.out.extend(0, width(e.kind), False)
            self.out.store(1, 0, 0)
        else:
            self.out.move(2, 0)
            size = self.storage.size(e.kind)
            if size % 8:  # the key's last word may hold bytes of another key
                self.out.move(3, 1)
                self.out.alu_constant(Alu.ADD, 3, size // 8 * 8)
                self.out.store_constant(3, 0, 0)
            self.out.constant(3, size)
            self.out.storing = storing
            self.out.helper(Helper.COPY)
            self.out.storing = False

    def place_part(self, region: Region | None, at: int) -> None:
        """Emit code that sets r1 to an address in a region or, without a region, a slot's value."""
        if region is None:
            self.out.load(1, FRAME, at)
        else:
            self.out.address(1, region, at)

    def key_arguments(self, number: int, key: tuple[int, int, int | None]) -> None:
        """Emit code that sets registers r1, r2 and r3 for a helper that takes a key."""
        start, size, slot = key
        self.out.constant(1, number)
        if not size and slot is None:
            self.out.constant(2, 0)
            self.out.constant(3, 0)
            return
        self.out.address(2, Region.WORK, start)
        if slot is None:
            self.out.constant(3, size)
        else:
            self.out.load(3, FRAME, slot)
            self.out.alu(Alu.SUB, 3, 2)

    def _hosted(self, e: syntax.HostedUse) -> None:
        self.storage.hosted.add(e.name)
        if e.index is None:
            self.out.constant(2, 0)
        elif not self._simple(e.index, 2):
            self.value(e.index)
            self.out.move(2, 0)
        self.out.constant(1, e.number)
        self.out.helper(Helper.VARIABLE)
        if is_scalar(e.kind) and is_signed(e.kind):
            self.out.extend(0, width(e.kind), True)  # the host returns the value zero-extended

    def _by_probe(self, e: syntax.ByProbe) -> None:
        """Emit code that evaluates the expression that a table selects by the probe's ID."""
        if e.refusal:
            raise DError("D_ARGS_IDX", e.refusal, e.place)
        values: list[syntax.Expression | None] = [e.otherwise, None]
        case_of: dict[int, int] = {}
        for numbers, value in e.cases:
            if value is not None:
                values.append(value)
            case_of |= dict.fromkeys(numbers, 1 if value is None else len(values) - 1)
        low, high = min(case_of), max(case_of)
        if high - low >= MAX_TABLE or len(values) > MAX_CASES:
            raise DError("D_UNKNOWN", "the location of this argument cannot be looked up: there "
                         "are too many probes, or their IDs are too far apart", e.place)
        table = b"".join(case_of.get(n, 0).to_bytes(2, "little") for n in range(low, high + 1))
        labels, end = [self.out.label() for _ in values], self.out.label()
        self.out.load(1, CONTEXT, ContextOffset.PROBE)
        self.out.branch_constant(BpfJump.JLT, 1, low, labels[0])
        self.out.branch_constant(BpfJump.JGT, 1, high, labels[0])
        self.out.alu_constant(Alu.LSH, 1, 1)
        self.out.address(0, Region.STRINGS, self.storage.content(table))
        self.out.alu(Alu.ADD, 0, 1)
        self.out.alu_constant(Alu.SUB, 0, 2 * low)
        self.out.load(1, 0, 0, 2)
        self._search(0, labels)
        for label, value in zip(labels, values, strict=True):
            self.out.place(label)
            if value is None:
                self.out.constant(1, Fault.NOT_KEPT)
                self.out.constant(2, 0)
                self.out.helper(Helper.FAULT)
                self.out.constant(0, 0)
            else:
                self.value(value)
            self.out.jump(end)
        self.out.place(end)

    def _assembled(self, e: syntax.Assembled) -> None:
        """Emit code that assembles a structure in scratch memory and sets r0 to its address."""
        self.out.constant(1, sum(size for _part, size in e.parts))
        self.out.helper(Helper.ALLOCATE)
        slot, at = self.keep(e.place), 0
        for part, size in e.parts:
            self.value(part)
            for piece in (8, 4, 2, 1):  # split the 1 to 8 bytes of a part into powers of two
                if size & piece:
                    self.out.load(1, FRAME, slot)
                    self.out.store(1, at, 0, piece)
                    at, size = at + piece, size - piece
                    if size:
                        self.out.alu_constant(Alu.RSH, 0, 8 * piece)
        self.out.load(0, FRAME, slot)
        self.drop()

    def _search(self, first: int, labels: list[Label]) -> None:
        """Emit a binary search that jumps to the label whose number is in r1."""
        if len(labels) == 1:
            self.out.jump(labels[0])
            return
        middle = len(labels) // 2
        upper = self.out.label()
        self.out.branch_constant(BpfJump.JGE, 1, first + middle, upper)
        self._search(first, labels[:middle])
        self.out.place(upper)
        self._search(first + middle, labels[middle:])

    # -- memory ------------------------------------------------------------------------------------

    def address(self, e: syntax.Expression) -> None:
        """Emit code that loads into r0 the address of the object that an expression denotes."""
        match e:
            case syntax.SymbolUse(address=address):
                self.out.constant(0, address)
            case syntax.MemberUse(base=base, offset=offset, width=bits) if bits is not None:
                self._base(base)
                if start := window(offset, bits)[0]:
                    self._add(start)
            case syntax.MemberUse(base=base, offset=offset):
                self._base(base)
                if offset // 8:
                    self._add(offset // 8)
            case syntax.Unary(operator="*", operand=operand):
                self.value(operand)
            case syntax.Cast(operand=operand):
                self.address(operand)
            case syntax.VariableUse(variable=v) if v.number < 0 and is_scalar(v.type):
                self._variable_address(v, 0)
            case _:
                self.value(e)

    def _base(self, base: syntax.Expression) -> None:
        """Emit code that leaves the address of a member's structure in r0."""
        if isinstance(strip(base.kind), Pointer):
            self.value(base)
        else:
            self.address(base)

    def _memory(self, e: syntax.Expression) -> None:
        """Emit code that loads an object from memory."""
        self.address(e)
        if is_reference(e.kind):
            return
        if isinstance(e, syntax.MemberUse) and e.width is not None:
            self._load_bits(e, e.width)
        else:
            self._load(e.kind)

    def _load_bits(self, e: syntax.MemberUse, bits: int) -> None:
        _start, size, low = window(e.offset, bits)
        if size > 8:
            self._load_nine(low, e.place)
            low = 0
        else:
            self._load_word(size)
        if bits < 64:
            if low + bits < 64:
                self.out.alu_constant(Alu.LSH, 0, 64 - bits - low)
            self.out.alu_constant(Alu.ARSH if is_signed(e.kind) else Alu.RSH, 0, 64 - bits)

    # -- operators ---------------------------------------------------------------------------------

    def _unary(self, e: syntax.Unary) -> None:
        operator, operand = e.operator, e.operand
        if operator in ("++", "--", "x++", "x--"):
            self._increment(e)
        elif operator == "*":
            self.value(operand)
            if not is_reference(e.kind):
                self._load(e.kind)
        elif operator == "&":
            self.address(operand)
        elif operator == "!":
            self.value(operand)
            self._truth(BpfJump.JEQ)
        else:
            self.value(operand)
            if operator == "-":
                self.out.negate(0)
            elif operator == "~":
                self.out.alu_constant(Alu.XOR, 0, -1)

    def _binary(self, e: syntax.Binary) -> None:
        operator, left, right = e.operator, e.left, e.right
        if operator == ",":
            self.value(left)
            self.value(right)
        elif operator in ("&&", "||"):
            self._logical(e)
        elif operator == "^^":
            self.value(left)
            self._truth(BpfJump.JNE)
            slot = self.keep(e.place)
            self.value(right)
            self._truth(BpfJump.JNE)
            self.out.load(1, FRAME, slot)
            self.drop()
            self.out.alu(Alu.XOR, 0, 1)
        elif operator in UNSIGNED:
            self._comparison(e)
        else:
            self.pair(left, right)
            self._operate(operator, left.kind, right.kind, e.kind, e.place)

    def _operate(self, operator: str, left: Type, right: Type, result: Type,
                 place: SourcePlace) -> None:
        """Emit an operation on r0 and r1 that leaves its result in r0."""
        if operator in ("+", "-") and not (is_integer(left) and is_integer(right)):
            first, second = is_integer(left), is_integer(right)
            if second:
                self._scale(1, left)
            elif first:
                self._scale(0, right)
            self.out.alu(ALU[operator], 0, 1)
            if not first and not second:
                size = self._step(left)
                if size > 1:
                    self.out.constant(1, size)
                    self.out.alu(Alu.DIV, 0, 1)
            return
        if operator in ("/", "%"):
            fine = self.out.label()
            self.out.branch_constant(BpfJump.JNE, 1, 0, fine)
            self.out.constant(1, Fault.DIVIDE_BY_ZERO)
            self.out.constant(2, 0)
            self.out.helper(Helper.FAULT)
            self.out.constant(1, 1)
            self.out.place(fine)
            self.out.alu(Alu.DIV if operator == "/" else Alu.MOD, 0, 1,
                         offset=int(is_signed(result)))
        elif operator == ">>":
            self.out.alu(Alu.ARSH if is_signed(left) else Alu.RSH, 0, 1)
        else:
            self.out.alu(ALU[operator], 0, 1)

    def _logical(self, e: syntax.Binary) -> None:
        end, other = self.out.label(), self.out.label()
        if e.operator == "&&":
            self.condition(e.left, other)
            self.condition(e.right, other)
            self.out.constant(0, 1)
            self.out.jump(end)
            self.out.place(other)
            self.out.constant(0, 0)
        else:
            second = self.out.label()
            self.condition(e.left, second)
            self.out.constant(0, 1)
            self.out.jump(end)
            self.out.place(second)
            self.condition(e.right, other)
            self.out.constant(0, 1)
            self.out.jump(end)
            self.out.place(other)
            self.out.constant(0, 0)
        self.out.place(end)

    @staticmethod
    def _textual(e: syntax.Binary) -> bool:
        return is_string(e.left.kind) or is_string(e.right.kind)

    def _comparison(self, e: syntax.Binary) -> None:
        end, no = self.out.label(), self.out.label()
        self._compare(e, no, negate=True)
        self.out.constant(0, 1)
        self.out.jump(end)
        self.out.place(no)
        self.out.constant(0, 0)
        self.out.place(end)

    def _compare(self, e: syntax.Binary, to: Label, *, negate: bool) -> None:
        """Emit code that jumps to a label if a comparison holds or, with ``negate``, fails."""
        operator = e.operator
        if negate:
            operator = OPPOSITE[operator]
        left, right = e.left, e.right
        if self._textual(e):
            self.call(Helper.COMPARE_TEXT, [left, right], e.place)
            self.out.branch_constant(SIGNED[operator], 0, 0, to)
            return
        signed = is_integer(left.kind) and is_integer(right.kind) and is_signed(
            arithmetic(left.kind, right.kind))
        table = SIGNED if signed else UNSIGNED
        if isinstance(right, syntax.Number) and right.value in IMMEDIATE:
            self.value(left)
            self.out.branch_constant(table[operator], 0, right.value, to)
            return
        self.pair(left, right)
        self.out.branch(table[operator], 0, 1, to)

    def _ternary(self, e: syntax.Ternary) -> None:
        """Emit code for a conditional expression; as in DTrace, the result is not converted."""
        end, otherwise = self.out.label(), self.out.label()
        self.condition(e.condition, otherwise)
        self.value(e.then)
        self.out.jump(end)
        self.out.place(otherwise)
        self.value(e.otherwise)
        self.out.place(end)

    # -- assignment --------------------------------------------------------------------------------

    def _assign(self, e: syntax.Assign) -> None:
        left, right = e.left, e.right
        if isinstance(right, syntax.Translated):
            self._assign_translated(left, right)
            return
        if e.operator:
            self.pair(left, right)
            self._operate(e.operator, left.kind, right.kind, left.kind, e.place)
        else:
            self.value(right)
        self.store(left, right)

    def store(self, left: syntax.Expression, right: syntax.Expression) -> None:
        """Emit code that stores r0 in the object that ``left`` denotes; r0 keeps its value."""
        slot = self.keep(left.place)
        while isinstance(left, syntax.Alias):  # as in DTrace, the variable is not converted
            left = left.operand
        if isinstance(left, syntax.VariableUse):
            self._store_variable(left, slot)
        elif is_reference(left.kind):
            self.address(left)
            self._copy(left.kind, slot)
        else:
            self._store_memory(left, slot)
        self.out.load(0, FRAME, slot)
        self.drop()

    def _store_variable(self, left: syntax.VariableUse, slot: int) -> None:
        v = left.variable
        if v.number >= 0:
            key = self.key(left.keys)
            self.out.load(4, FRAME, slot)
            self.key_arguments(v.number, key)
            self.out.helper(Helper.ASSIGN)
            return
        if is_scalar(v.type):
            self._variable_address(v, 1)
            self.out.load(0, FRAME, slot)
            self.out.store(1, 0, 0)
            return
        end, filled = self.out.label(), self.out.label()
        self._variable_address(v, 1)
        self.out.load(0, FRAME, slot)
        self.out.store_constant(1, -8, 0)
        self.out.branch_constant(BpfJump.JNE, 0, 0, filled)
        self.out.store_constant(1, -8, 1)
        self.out.jump(end)
        self.out.place(filled)
        self._variable_address(v, 0)
        self._copy(v.type, slot)
        self.out.place(end)

    def _store_memory(self, left: syntax.Expression, slot: int) -> None:
        self.address(left)
        size = width(left.kind)
        if isinstance(left, syntax.MemberUse) and left.width is not None:
            _start, size, low = window(left.offset, left.width)
            if size > 8:
                raise DError("D_UNKNOWN", f"a bit-field of {left.width} bits at bit {left.offset} "
                             "spans nine bytes: it can be read but not assigned", left.place)
            at = self.keep(left.place)
            self._load_word(size)
            mask = (1 << left.width) - 1
            self.out.constant(1, ~(mask << low))
            self.out.alu(Alu.AND, 0, 1)
            self.out.constant(1, mask)
            self.out.load(3, FRAME, slot)
            self.out.alu(Alu.AND, 3, 1)
            if low:
                self.out.alu_constant(Alu.LSH, 3, low)
            self.out.alu(Alu.OR, 3, 0)
            self.out.load(1, FRAME, at)
            self.drop()
        else:
            self.out.move(1, 0)
            self.out.load(3, FRAME, slot)
        self.out.constant(2, size)
        self.out.helper(Helper.STORE)

    def _assign_translated(self, left: syntax.Expression, right: syntax.Translated) -> None:
        size = self.storage.size(left.kind)
        if isinstance(left, syntax.VariableUse):
            self._provide(left)
        self.address(left)
        self.out.move(1, 0)
        self.out.address(2, Region.STRINGS, self.storage.zeros(size))
        self.out.constant(3, size)
        self.out.helper(Helper.COPY)
        for member, value in right.values:
            place = syntax.MemberUse(right.place, left, member.offset, member.width, member.name)
            place.type = member.type
            self.value(value)
            self.store(place, value)
        self.address(left)

    def _increment(self, e: syntax.Unary) -> None:
        operand = e.operand
        amount = self._step(operand.kind) if is_pointer(operand.kind) else 1
        if e.operator.endswith("--"):
            amount = -amount
        self.value(operand)
        if e.operator.startswith("x"):
            slot = self.keep(e.place)
            self._add(amount)
            self.store(operand, operand)
            self.out.load(0, FRAME, slot)
            self.drop()
        else:
            self._add(amount)
            self.store(operand, operand)

    # -- calls -------------------------------------------------------------------------------------

    def _call(self, e: syntax.FunctionCall) -> None:
        function, arguments = e.function, e.arguments
        name = function.name
        if not function.number:
            raise DError("D_CG_EXPR", f"{function.role.value} {name}( ) may not be called from a D "
                         "expression (D program context required)", e.place)
        if name in SWAPS:
            self.value(arguments[0])
            self.out.add(BpfInstruction(Class.ALU | Alu.END | X, 0, 0, 0, SWAPS[name]))
        elif name == "alloca":
            self.call(Helper.ALLOCATE, arguments, e.place)
        elif name == "bcopy":
            slots = []
            for argument in arguments:  # evaluate the arguments from left to right
                self.value(argument)
                slots.append(self.keep(e.place))
            for register, slot in zip((2, 1, 3), slots, strict=True):
                self.out.load(register, FRAME, slot)
            self.drop(len(slots))
            self.out.helper(Helper.BCOPY)
        elif name == "speculation":
            self.out.helper(Helper.SPECULATION)
        else:
            missing = len(function.parameters) - len(arguments)
            absent = [self._absent(e.place)] * missing
            self.call(function.number, [*arguments, *absent], e.place)

    @staticmethod
    def _absent(place: SourcePlace) -> syntax.Number:
        """Return the value that a subroutine receives for an omitted argument."""
        node = syntax.Number(place, ABSENT)
        node.type = LONG
        return node
