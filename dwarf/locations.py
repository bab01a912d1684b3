"""Locations of the variables of functions and inline copies (DWARF 5, 2.5, 2.6, 3.3.8.2).

Location expressions are evaluated symbolically: the result is a term of registers, constants and
memory loads, which is either the value or its address.
"""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from elftools.dwarf.die import DIE
from elftools.dwarf.dwarf_expr import DWARFExprOp, DWARFExprParser
from elftools.dwarf.locationlists import BaseAddressEntry, LocationEntry, LocationLists

from dwarf.debug_file import DebugDataError, sections
from dwarf.eh_frames import EhFrames
from dwarf.entries import Entries
from dwarf.frames import Frames
from dwarf.index import DebugIndex, Function
from emu.elf.reader import ET_REL, SHT_NOBITS
from emu.host.errors import ImageError

MAX_LIST = 1 << 16  # maximum size of a location list in bytes
MAX_OPERATIONS = 64  # maximum number of operations in an expression
MAX_EXPRESSION = 512  # maximum size of an expression in bytes
MOST_KEPT = 1 << 16  # maximum number of parsed expressions that are kept
MOST_LISTS = 1 << 10  # maximum number of location lists that are kept, of MAX_LIST bytes each
MAX_TERMS = 256  # maximum number of terms in a value; DW_OP_dup can double their number
MAX_REGISTER = 1 << 16
MAX_DEPTH = 64  # maximum nesting depth of inline copies
MASK = (1 << 64) - 1
NO_CALL = 3  # DW_CC_nocall
FORMS_OF_BYTES = ("DW_FORM_exprloc", "DW_FORM_block", "DW_FORM_block1", "DW_FORM_block2",
                  "DW_FORM_block4")


@dataclass(frozen=True)
class Register:
    """Value of a general-purpose register; ``number`` is its DWARF number."""

    number: int


@dataclass(frozen=True)
class Constant:
    """Unsigned 64-bit constant."""

    value: int


@dataclass(frozen=True)
class Load:
    """Load of ``size`` bytes from an address, zero-extended."""

    address: "Term"
    size: int


@dataclass(frozen=True)
class Entered:
    """Value that a register had when the function was entered (DW_OP_entry_value)."""

    number: int


@dataclass(frozen=True)
class Operation:
    """Binary operation of C on 64-bit terms."""

    operator: str
    left: "Term"
    right: "Term"
    signed: bool = False


Term = Register | Constant | Load | Operation | Entered


@dataclass(frozen=True)
class Location:
    """Location of a value that is stored in one piece.

    :param term: the value, or its address.
    :param memory: whether ``term`` is the address.
    """

    term: Term
    memory: bool


@dataclass(frozen=True)
class Pieces:
    """Location of a value that is stored in several pieces.

    :param parts: pieces from the value's first byte on: a term, and how many of its low bytes
        belong to the value (1 to 8).
    """

    parts: tuple[tuple[Term, int], ...]


Place = Location | Pieces
Frame = tuple[int, int]  # DWARF register number, and the offset to add to the register


# DW_OP suffix -> C operator; SIGNED has the operations on signed operands.
OPERATORS = {"plus": "+", "minus": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "shl": "<<",
             "shr": ">>", "mod": "%"}
SIGNED = {"div": "/", "shra": ">>", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">",
          "ge": ">="}
CONSTANTS = ("const1u", "const1s", "const2u", "const2s", "const4u", "const4s", "const8u", "const8s",
             "constu", "consts", "addr")


OPTIMIZED_OUT = "optimized out"
OUTSIDE_FRAME = "not on the stack here, in the prologue or epilogue"


class Unkept(Exception):
    """Error raised if the debug data does not locate a value, or not in a supported way."""


def _size(term: Term) -> int:
    """Return the number of nodes in a term; MAX_TERMS bounds the recursion."""
    match term:
        case Load(address=address):
            return 1 + _size(address)
        case Operation(left=left, right=right):
            return 1 + _size(left) + _size(right)
    return 1


def _register_in(operations: list[DWARFExprOp]) -> int:
    """Return the register that the operand of DW_OP_entry_value names (DWARF 5, 2.5.1.7)."""
    if len(operations) == 1:
        name = operations[0].op_name.removeprefix("DW_OP_")
        if name == "regx" or (name.startswith("reg") and name[3:].isdigit()):
            return _register(operations[0].args[0] if name == "regx" else int(name[3:])).number
    raise Unkept("the entry value of an expression that is not a register is not supported")


def _register(number: int) -> Register:
    if not 0 <= number < MAX_REGISTER:
        raise Unkept("invalid register number")
    return Register(number)


def _add(term: Term, amount: int) -> Term:
    if isinstance(term, Constant):
        return Constant(term.value + amount & MASK)
    return Operation("+", term, Constant(amount & MASK)) if amount else term


def _sum(term: Term) -> tuple[int, int] | None:
    """Return the register and the signed offset of a term that adds constants to a register."""
    if isinstance(term, Register):
        return term.number, 0
    if not (isinstance(term, Operation) and term.operator in ("+", "-")
            and isinstance(term.right, Constant)):
        return None
    inner, amount = _sum(term.left), term.right.value
    if inner is None:
        return None
    offset = inner[1] + (amount if term.operator == "+" else -amount)
    return inner[0], (offset + (1 << 63) & MASK) - (1 << 63)


def evaluate(operations: list[DWARFExprOp], base: Callable[[], Term], loaded: int = 0) -> Place:
    """Return the location that an expression describes (DWARF 5, 2.6).

    :param base: callback that returns the frame base (DW_OP_fbreg).
    :param loaded: amount to add to the addresses in the expression (DW_OP_addr).
    :raises Unkept: if a piece has no location, or if the expression needs the caller's registers
        or is not supported.
    """
    if not any(operation.op_name == "DW_OP_piece" for operation in operations):
        return _evaluate(operations, base, loaded)
    parts: list[tuple[Term, int]] = []
    begin = 0
    for number, operation in enumerate(operations):
        if operation.op_name != "DW_OP_piece":
            continue
        place, size = _evaluate(operations[begin:number], base, loaded), operation.args[0]
        begin = number + 1
        if size not in (1, 2, 4, 8):
            raise Unkept("the size of a piece is not 1, 2, 4 or 8 bytes")
        parts.append((Load(place.term, size) if place.memory else place.term, size))
    if begin != len(operations) or len(parts) > MAX_OPERATIONS:
        raise Unkept(f"the expression has more than {MAX_OPERATIONS} pieces, or operations after "
                     "the last DW_OP_piece")
    return Pieces(tuple(parts))


def _evaluate(operations: list[DWARFExprOp], base: Callable[[], Term],
              loaded: int = 0) -> Location:
    """Return the location that an expression without DW_OP_piece describes."""
    if not 0 < len(operations) <= MAX_OPERATIONS:
        raise Unkept("too many operations" if operations else OPTIMIZED_OUT)
    stack: list[Term] = []

    def pop() -> Term:
        if not stack:
            raise Unkept("stack underflow in the expression")
        return stack.pop()

    def push(term: Term) -> None:
        if _size(term) > MAX_TERMS:
            raise Unkept(f"the expression has more than {MAX_TERMS} terms")
        stack.append(term)

    for number, operation in enumerate(operations):
        name, arguments = operation.op_name.removeprefix("DW_OP_"), operation.args
        last = number == len(operations) - 1
        if (name.startswith("reg") and name[3:].isdigit()) or name == "regx":
            if len(operations) > 1:
                raise Unkept("a register location is combined with other operations")
            return Location(_register(arguments[0] if name == "regx" else int(name[3:])), False)
        if name.startswith("breg") and name[4:].isdigit():
            push(_add(Register(int(name[4:])), arguments[0]))
        elif name == "bregx":
            push(_add(_register(arguments[0]), arguments[1]))
        elif name == "fbreg":
            push(_add(base(), arguments[0]))
        elif name.startswith("lit") and name[3:].isdigit():
            push(Constant(int(name[3:])))
        elif name in CONSTANTS:
            push(Constant(arguments[0] + (loaded if name == "addr" else 0) & MASK))
        elif name == "plus_uconst":
            push(_add(pop(), arguments[0]))
        elif name in OPERATORS:
            right, left = pop(), pop()
            push(Operation(OPERATORS[name], left, right))
        elif name in SIGNED:
            right, left = pop(), pop()
            push(Operation(SIGNED[name], left, right, True))
        elif name == "not":
            push(Operation("^", pop(), Constant(MASK)))
        elif name == "neg":
            push(Operation("-", Constant(0), pop()))
        elif name == "deref":
            push(Load(pop(), 8))
        elif name == "deref_size" and arguments[0] in (1, 2, 4, 8):
            push(Load(pop(), arguments[0]))
        elif name == "dup":
            push(pop())
            push(stack[-1])
        elif name == "swap":
            right, left = pop(), pop()
            push(right)
            push(left)
        elif name == "stack_value" and last:
            return Location(pop(), False)
        elif name == "implicit_value" and last and len(arguments[0]) <= 8:
            return Location(Constant(int.from_bytes(bytes(arguments[0]), "little")), False)
        elif name in ("entry_value", "GNU_entry_value"):
            push(Entered(_register_in(arguments[0])))
        elif name != "nop":
            raise Unkept(f"unsupported operation DW_OP_{name}")
    return Location(pop(), True)


class Locations:
    """Locations of parameters and variables in the debug file of a kernel or module.

    :param loaded: address at which a module is loaded; 0 for a kernel.
    :raises DebugDataError: from every method, if the data is damaged.
    """

    def __init__(self, entries: Entries, index: DebugIndex, loaded: int = 0) -> None:
        self._entries, self._index, self._loaded = entries, index, loaded
        self._lists: dict[str, bytes] | None = None
        self._frames: Frames | None = None
        self._frame: Frame | None = None  # frame that the current call of ``parameters`` uses
        self._parameters: dict[int, dict[int, int]] = {}  # function -> (parameter -> its index)
        self._known: dict[tuple[int, int], list[Place | None]] = {}
        self._parsers: dict[tuple[int, int, int], DWARFExprParser] = {}
        self._operations: dict[tuple[int, int, int, bytes], list[DWARFExprOp]] = {}
        # (unit, offset of a location list) -> its first ranges, and what reads the others
        self._kept: dict[tuple[int, int], tuple[
            list[tuple[int, int | None, bytes]], Iterator[tuple[int, int | None, bytes]]]] = {}

    def changed(self, function: Function) -> bool:
        """Return whether the compiler has changed how a function takes its arguments.

        Such a function has DW_CC_nocall (DWARF 5, 3.3.1.1): the calling convention does not locate
        its arguments.
        """
        with self._entries.reading():
            entry = self._entries.entry(*self._index.entry(function.number))
            convention = entry.attributes.get("DW_AT_calling_convention")
            return convention is not None and convention.value == NO_CALL

    def parameters(self, copy: Function, address: int, frame: Frame | None = None
                   ) -> list[Place | None]:
        """Return the location of each parameter of a function or an inline copy, in order.

        A location is None if the parameter has none when the instruction at ``address`` begins.

        :param frame: canonical frame address in a prologue or epilogue, derived from the code.
        """
        subject = self._index.subject(copy.number)
        if subject is None:
            return []
        key = copy.number, address
        if key in self._known:
            return self._known[key]
        self._frame = frame
        with self._entries.reading():
            if subject[0] not in self._parameters:
                children = self._entries.children(
                    self._entries.entry(*subject), "DW_TAG_formal_parameter")
                self._parameters[subject[0]] = {
                    child.offset: number for number, child in enumerate(children)}
            order = self._parameters[subject[0]]
            locations: list[Place | None] = [None] * len(order)
            entry = self._entries.entry(*self._index.entry(copy.number))
            for child in self._entries.children(entry, "DW_TAG_formal_parameter"):
                # A function that is never inlined has no abstract entry for its parameters.
                origin = child.offset
                if "DW_AT_abstract_origin" in child.attributes:
                    origin = child.get_DIE_from_attribute("DW_AT_abstract_origin").offset
                if origin in order:
                    locations[order[origin]] = self._location(child, copy, address)
        self._known[key] = locations
        return locations

    def _location(self, entry: DIE, copy: Function, address: int) -> Place | None:
        try:
            return self._find(entry, copy, address)
        except Unkept:
            return None

    def find(self, entry: DIE, copy: Function, address: int, frame: Frame | None) -> Place:
        """Return the location of a variable or parameter when an instruction begins.

        :param entry: the variable's concrete entry, within that of ``copy``.
        :param frame: frame as in ``parameters``.
        :raises Unkept: with the reason, if the value has no location there.
        """
        self._frame = frame
        return self._find(entry, copy, address)

    def _find(self, entry: DIE, copy: Function, address: int) -> Place:
        value = entry.attributes.get("DW_AT_const_value")
        if value is not None:
            number = value.value
            if not isinstance(number, int):
                if len(number) > 8:
                    raise Unkept("constants of more than 8 bytes are not supported")
                number = int.from_bytes(bytes(number), "little")
            return Location(Constant(number & MASK), False)
        expression = self._expression(entry, "DW_AT_location", address)
        if expression is None:
            raise Unkept(OPTIMIZED_OUT)
        found = evaluate(self._parsed(entry, expression), lambda: self._frame_base(copy, address),
                         self._loaded)
        return found if self._frame is None else self._placed(found, address)

    def _placed(self, place: Place, address: int) -> Place:
        """Return a location for the current frame in a prologue or epilogue.

        Compilers describe locations in the stack frame by the frame register even where it does
        not hold the function's frame yet, or no longer.

        :raises Unkept: if the location is in a part of the stack that the function does not use
            yet, or no longer.
        """
        if isinstance(place, Pieces):
            return Pieces(tuple((self._in_frame(term, address), size)
                                for term, size in place.parts))
        term = self._in_frame(place.term, address)
        if place.memory and self._is_outside(term, address):
            raise Unkept(OUTSIDE_FRAME)
        return Location(term, place.memory)

    def _in_frame(self, term: Term, address: int) -> Term:
        """Return a term without the frame register, which the current frame replaces."""
        assert self._frame is not None
        summed = _sum(term)
        if summed is not None:
            number, offset = summed
            body = self._call_frames.body(address, number)
            if body is None or body.base != number or number in (
                    self._frame[0], self._call_frames.stack_pointer(address)):
                return term
            return _add(Register(self._frame[0]), self._frame[1] - body.offset + offset)
        match term:
            case Load(address=inner, size=size):
                at = self._in_frame(inner, address)
                if self._is_outside(at, address):
                    raise Unkept(OUTSIDE_FRAME)
                return Load(at, size)
            case Operation(operator=sign, left=left, right=right, signed=signed):
                return Operation(sign, self._in_frame(left, address),
                                 self._in_frame(right, address), signed)
        return term

    def _is_outside(self, term: Term, address: int) -> bool:
        """Return whether a stack address is below the stack pointer of the current frame."""
        summed = _sum(term)
        return (summed is not None and summed[1] < 0
                and summed[0] == self._call_frames.stack_pointer(address))

    def expression(self, entry: DIE, name: str, copy: Function, address: int) -> Place:
        """Return the location that an attribute of an entry describes at an instruction.

        :raises Unkept: if it describes none.
        """
        expression = self._expression(entry, name, address)
        if expression is None:
            raise Unkept(f"no {name}")
        self._frame = None
        return evaluate(self._parsed(entry, expression), lambda: self._frame_base(copy, address),
                        self._loaded)

    def _parsed(self, entry: DIE, expression: bytes) -> list[DWARFExprOp]:
        """Parse a location expression.

        :raises Unkept: if the expression is too long.
        """
        if len(expression) > MAX_EXPRESSION:
            raise Unkept(f"the expression is longer than {MAX_EXPRESSION} bytes")
        structs = entry.cu.structs
        key = structs.dwarf_format, structs.address_size, entry.cu["version"]
        operations = self._operations.get((*key, expression))
        if operations is None:
            parser = self._parsers.get(key)
            if parser is None:
                parser = self._parsers[key] = DWARFExprParser(structs)
            if len(self._operations) >= MOST_KEPT:
                self._operations.clear()
            operations = self._operations[*key, expression] = parser.parse_expr(expression)
        return operations

    def _expression(self, entry: DIE, name: str, address: int) -> bytes | None:
        """Return the attribute's location expression that is valid at an address, or None."""
        attribute = entry.attributes.get(name)
        if attribute is None:
            return None
        if attribute.form in FORMS_OF_BYTES:
            return bytes(attribute.value)
        default = None
        for low, high, found in self._ranges(entry, attribute.value):
            if high is None:
                default = found
            elif low <= address < high:
                return found
        return default

    def _ranges(self, entry: DIE, offset: int) -> Iterator[tuple[int, int | None, bytes]]:
        """Yield a location list as (low, high, expression); high is None for the default location.

        What was read is kept; damage is noticed when it is reached.
        """
        key = entry.cu.cu_offset, offset
        if key not in self._kept:
            if len(self._kept) >= MOST_LISTS:
                self._kept.clear()
            self._kept[key] = [], self._read_ranges(entry, offset)
        rows, more = self._kept[key]
        yield from rows
        while True:
            self._kept.pop(key, None)  # nothing is kept if an error follows
            row = next(more, None)
            self._kept[key] = rows, more
            if row is None:
                return
            rows.append(row)
            yield row

    def _read_ranges(self, entry: DIE, offset: int) -> Iterator[tuple[int, int | None, bytes]]:
        version = entry.cu["version"]
        base = entry.cu.get_top_DIE().attributes.get("DW_AT_low_pc")
        start = base.value if base is not None else 0
        content = self._section(".debug_loclists" if version >= 5 else ".debug_loc")
        # Read a limited part of the section, so that an unterminated list causes an error.
        lists = LocationLists(io.BytesIO(content[offset : offset + MAX_LIST]), entry.cu.structs,
                              version)
        for item in lists.get_location_list_at_offset(0, entry):
            if isinstance(item, BaseAddressEntry):
                start = item.base_address
            elif isinstance(item, LocationEntry):
                if item.begin_offset == -1:
                    yield 0, None, bytes(item.loc_expr)
                    continue
                low = 0 if item.is_absolute else start
                yield low + item.begin_offset, low + item.end_offset, bytes(item.loc_expr)

    def _section(self, name: str) -> bytes:
        if self._lists is None:
            self._lists = sections(
                self._entries.file, (".debug_loc", ".debug_loclists", ".debug_frame"))
        return self._lists.get(name, b"")

    def _frame_base(self, copy: Function, address: int) -> Term:
        """Return the frame base (for DW_OP_fbreg) of the function that contains a copy."""
        at = copy.parent if copy.inlined else copy.number
        for _ in range(MAX_DEPTH):
            if at is None:
                break
            around = self._index.function(at)
            entry = self._entries.entry(*self._index.entry(at))
            if entry.tag == "DW_TAG_subprogram":
                expression = self._expression(entry, "DW_AT_frame_base", address)
                if expression is None:
                    break
                operations = self._parsed(entry, expression)
                if [o.op_name for o in operations] == ["DW_OP_call_frame_cfa"]:
                    return self._frame_address(address)
                # The register's value is the frame base.
                return self._in_body(_evaluate(operations, self._no_base).term, address)
            at = around.parent
        raise Unkept("the function has no frame base")

    @staticmethod
    def _no_base() -> Term:
        raise Unkept("the frame base refers to itself")

    def _in_body(self, base: Term, address: int) -> Term:
        """Convert the frame base in the function body to the frame base at an instruction.

        Compilers describe only the body; in prologues and epilogues the register has another value.
        """
        number = base.number if isinstance(base, Register) else None
        rule, body = self._call_frames.rule(address), self._call_frames.body(address, number)
        if rule is None or body is None:
            raise Unkept("the address has no call frame information")
        if self._frame is None and (rule.base, rule.offset) == (body.base, body.offset):
            return base
        # Call frame information may be incomplete in prologues and epilogues, so use self._frame.
        if self._frame is None or base != Register(body.base):
            raise Unkept("the frame base is unknown in prologues and epilogues")
        return _add(Register(self._frame[0]), self._frame[1] - body.offset)

    def _frame_address(self, address: int) -> Term:
        """Return the canonical frame address (CFA) at an instruction."""
        if self._frame is not None:
            return _add(Register(self._frame[0]), self._frame[1])
        rule = self._call_frames.rule(address)
        if rule is None:
            raise Unkept("the address has no call frame information")
        return _add(Register(rule.base), rule.offset)

    @property
    def _call_frames(self) -> Frames:
        """Call frame information; that of most programs is in .eh_frame only."""
        if self._frames is None:
            content, elf = self._section(".debug_frame"), self._entries.file
            eh_frame = elf.section(".eh_frame")
            if content or eh_frame is None or eh_frame.kind == SHT_NOBITS or elf.kind == ET_REL:
                self._frames = Frames(content)
            else:
                try:
                    self._frames = EhFrames(bytes(elf.content(eh_frame)), eh_frame.address)
                except (ImageError, DebugDataError):  # what it locates is then unknown
                    self._frames = Frames(b"")
        return self._frames
