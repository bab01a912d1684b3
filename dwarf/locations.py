"""Where compilers keep the parameters of functions and inline copies (DWARF 5, 2.5, 2.6, 3.3.8.2).

An expression's stack is carried out on terms: what is left is the value, or the address of it, made
of registers, constants and memory.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass

from elftools.dwarf.die import DIE
from elftools.dwarf.dwarf_expr import DWARFExprOp, DWARFExprParser
from elftools.dwarf.locationlists import BaseAddressEntry, LocationEntry, LocationLists

from dwarf.debug_file import sections
from dwarf.entries import Entries
from dwarf.frames import Frames
from dwarf.index import DebugIndex, Function

MAX_LIST = 1 << 16  # bytes of a location list
MAX_OPERATIONS = 64  # of an expression
MAX_EXPRESSION = 512  # bytes
MAX_TERMS = 256  # of a value: DW_OP_dup doubles
MAX_REGISTER = 1 << 16
MAX_DEPTH = 64  # inline copies around one another
MASK = (1 << 64) - 1
NO_CALL = 3  # DW_CC_nocall
FORMS_OF_BYTES = ("DW_FORM_exprloc", "DW_FORM_block", "DW_FORM_block1", "DW_FORM_block2",
                  "DW_FORM_block4")


@dataclass(frozen=True)
class Register:
    """What a general register holds; ``number`` is DWARF's."""

    number: int


@dataclass(frozen=True)
class Constant:
    """A number, of 64 bits without sign."""

    value: int


@dataclass(frozen=True)
class Load:
    """The ``size`` bytes at an address, extended with zeros."""

    address: "Term"
    size: int


@dataclass(frozen=True)
class Operation:
    """Two terms and an operator of C, on 64 bits."""

    operator: str
    left: "Term"
    right: "Term"
    signed: bool = False


Term = Register | Constant | Load | Operation


@dataclass(frozen=True)
class Location:
    """:param term: gives the value, or its address.
    :param memory: whether it gives the address.
    """

    term: Term
    memory: bool


@dataclass(frozen=True)
class Pieces:
    """A value that lies in several places.

    :param parts: from the value's first byte on: a term and how many of its low bytes belong to
        the value (1 to 8).
    """

    parts: tuple[tuple[Term, int], ...]


Place = Location | Pieces
Frame = tuple[int, int]  # DWARF's number of a register, and what is added to its value


# DW_OP: operator; those whose operands have a sign.
OPERATORS = {"plus": "+", "minus": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "shl": "<<",
             "shr": ">>", "mod": "%"}
SIGNED = {"div": "/", "shra": ">>", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">",
          "ge": ">="}
CONSTANTS = ("const1u", "const1s", "const2u", "const2s", "const4u", "const4s", "const8u", "const8s",
             "constu", "consts", "addr")


class Unkept(Exception):
    """An expression that gives no whole value, or is not understood."""


def _size(term: Term) -> int:
    """How many terms it is made of; of what is pushed, each part is small already."""
    match term:
        case Load(address=address):
            return 1 + _size(address)
        case Operation(left=left, right=right):
            return 1 + _size(left) + _size(right)
    return 1


def _register(number: int) -> Register:
    if not 0 <= number < MAX_REGISTER:
        raise Unkept("no register")
    return Register(number)


def _add(term: Term, amount: int) -> Term:
    if isinstance(term, Constant):
        return Constant(term.value + amount & MASK)
    return Operation("+", term, Constant(amount & MASK)) if amount else term


def evaluate(operations: list[DWARFExprOp], base: Callable[[], Term]) -> Place:
    """Find the place that an expression describes (DWARF 5, 2.6).

    :param base: gives the frame base (DW_OP_fbreg).
    :raises Unkept: when a part is nowhere, when the expression needs the caller's registers, or
        when it is not understood.
    """
    if not any(operation.op_name == "DW_OP_piece" for operation in operations):
        return _evaluate(operations, base)
    parts: list[tuple[Term, int]] = []
    begin = 0
    for number, operation in enumerate(operations):
        if operation.op_name != "DW_OP_piece":
            continue
        place, size = _evaluate(operations[begin:number], base), operation.args[0]
        begin = number + 1
        if size not in (1, 2, 4, 8):
            raise Unkept("a part of an unusual size")
        parts.append((Load(place.term, size) if place.memory else place.term, size))
    if begin != len(operations) or len(parts) > MAX_OPERATIONS:
        raise Unkept("a part without a size")
    return Pieces(tuple(parts))


def _evaluate(operations: list[DWARFExprOp], base: Callable[[], Term]) -> Location:
    """Find the place that an expression without pieces describes."""
    if not 0 < len(operations) <= MAX_OPERATIONS:
        raise Unkept("nothing" if not operations else "too long")
    stack: list[Term] = []

    def pop() -> Term:
        if not stack:
            raise Unkept("an empty stack")
        return stack.pop()

    def push(term: Term) -> None:
        if _size(term) > MAX_TERMS:
            raise Unkept("too large")
        stack.append(term)

    for number, operation in enumerate(operations):
        name, arguments = operation.op_name.removeprefix("DW_OP_"), operation.args
        last = number == len(operations) - 1
        if (name.startswith("reg") and name[3:].isdigit()) or name == "regx":
            if len(operations) > 1:
                raise Unkept("a part in a register")
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
            push(Constant(arguments[0] & MASK))
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
        elif name != "nop":
            raise Unkept(f"DW_OP_{name}")
    return Location(pop(), True)


class Locations:
    """The places of parameters, from a kernel's debug file.

    :raises DebugDataError: from every question, when the data is damaged.
    """

    def __init__(self, entries: Entries, index: DebugIndex) -> None:
        self._entries, self._index = entries, index
        self._lists: dict[str, bytes] | None = None
        self._frames: Frames | None = None
        self._frame: Frame | None = None  # at the instruction in question
        self._parameters: dict[int, dict[int, int]] = {}  # of a function: entry -> its number
        self._known: dict[tuple[int, int], list[Place | None]] = {}

    def changed(self, function: Function) -> bool:
        """Whether the compiler has changed how a function takes its arguments (DW_CC_nocall:
        DWARF 5, 3.3.1.1), so that the calling convention says nothing about them."""
        with self._entries.reading():
            entry = self._entries.entry(*self._index.entry(function.number))
            convention = entry.attributes.get("DW_AT_calling_convention")
            return convention is not None and convention.value == NO_CALL

    def parameters(self, copy: Function, address: int, frame: Frame | None = None
                   ) -> list[Place | None]:
        """Where each parameter of a function or an inline copy is when an instruction begins, in
        their order; None for one that is nowhere.

        :param frame: where the canonical frame address is, by the code, in a prologue or epilogue.
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
            found: list[Place | None] = [None] * len(order)
            entry = self._entries.entry(*self._index.entry(copy.number))
            for child in self._entries.children(entry, "DW_TAG_formal_parameter"):
                # A function that is inlined nowhere has its parameters in its own entry.
                origin = child.offset
                if "DW_AT_abstract_origin" in child.attributes:
                    origin = child.get_DIE_from_attribute("DW_AT_abstract_origin").offset
                if origin in order:
                    found[order[origin]] = self._location(child, copy, address)
        self._known[key] = found
        return found

    def _location(self, entry: DIE, copy: Function, address: int) -> Place | None:
        value = entry.attributes.get("DW_AT_const_value")
        if value is not None:
            number = value.value
            if not isinstance(number, int):
                number = int.from_bytes(bytes(number[:9]), "little") if len(number) <= 8 else None
            return None if number is None else Location(Constant(number & MASK), False)
        expression = self._expression(entry, "DW_AT_location", address)
        if expression is None:
            return None
        try:
            return evaluate(self._parsed(entry, expression),
                            lambda: self._frame_base(copy, address))
        except Unkept:
            return None

    @staticmethod
    def _parsed(entry: DIE, expression: bytes) -> list[DWARFExprOp]:
        """:raises Unkept: when it is too long to be one."""
        if len(expression) > MAX_EXPRESSION:
            raise Unkept("too long")
        found: list[DWARFExprOp] = DWARFExprParser(entry.cu.structs).parse_expr(expression)
        return found

    def _expression(self, entry: DIE, name: str, address: int) -> bytes | None:
        """The expression that holds at an address."""
        attribute = entry.attributes.get(name)
        if attribute is None:
            return None
        if attribute.form in FORMS_OF_BYTES:
            return bytes(attribute.value)
        version = entry.cu["version"]
        base = entry.cu.get_top_DIE().attributes.get("DW_AT_low_pc")
        start = base.value if base is not None else 0
        content = self._section(".debug_loclists" if version >= 5 else ".debug_loc")
        offset = attribute.value
        # Of a part alone: a list without an end is found to be one.
        lists = LocationLists(io.BytesIO(content[offset : offset + MAX_LIST]), entry.cu.structs,
                              version)
        otherwise = None
        for one in lists.get_location_list_at_offset(0, entry):
            if isinstance(one, BaseAddressEntry):
                start = one.base_address
            elif isinstance(one, LocationEntry):
                if one.begin_offset == -1:
                    otherwise = bytes(one.loc_expr)
                    continue
                low = 0 if one.is_absolute else start
                if low + one.begin_offset <= address < low + one.end_offset:
                    return bytes(one.loc_expr)
        return otherwise

    def _section(self, name: str) -> bytes:
        if self._lists is None:
            self._lists = sections(
                self._entries.file, (".debug_loc", ".debug_loclists", ".debug_frame"))
        return self._lists.get(name, b"")

    def _frame_base(self, copy: Function, address: int) -> Term:
        """What DW_OP_fbreg counts from, in the function that a copy lies in."""
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
                # A register's value is the base.
                return self._in_body(_evaluate(operations, self._no_base).term, address)
            at = around.parent
        raise Unkept("no frame base")

    @staticmethod
    def _no_base() -> Term:
        raise Unkept("a frame base from itself")

    def _in_body(self, base: Term, address: int) -> Term:
        """What a frame base that compilers give for the body of a function is at any instruction:
        in prologues and epilogues its register has another value."""
        number = base.number if isinstance(base, Register) else None
        rule, body = self._call_frames.rule(address), self._call_frames.body(address, number)
        if rule is None or body is None:
            raise Unkept("no frame")
        if self._frame is None and (rule.base, rule.offset) == (body.base, body.offset):
            return base
        # Where debug data describes a prologue or an epilogue at all, it may leave half of it out.
        if self._frame is None or base != Register(body.base):
            raise Unkept("a frame base outside of the body")
        return _add(Register(self._frame[0]), self._frame[1] - body.offset)

    def _frame_address(self, address: int) -> Term:
        """The canonical frame address."""
        if self._frame is not None:
            return _add(Register(self._frame[0]), self._frame[1])
        rule = self._call_frames.rule(address)
        if rule is None:
            raise Unkept("no frame")
        return _add(Register(rule.base), rule.offset)

    @property
    def _call_frames(self) -> Frames:
        if self._frames is None:
            self._frames = Frames(self._section(".debug_frame"))
        return self._frames
