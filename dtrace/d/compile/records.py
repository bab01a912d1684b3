"""Layout of the records that clauses write for the consumer, and code that writes records."""

from dataclasses import dataclass, field

from dtrace.bpf.encoding import Alu
from dtrace.bpf.layout import Helper
from dtrace.d.compile.code import RECORD, ExpressionCode
from dtrace.d.compile.storage import Storage
from dtrace.d.language import formats, syntax
from dtrace.d.language.identifiers import AggregationInfo
from dtrace.d.language.options import Options
from dtrace.d.language.types import is_scalar, is_string
from dwarf.types import Type

MAX_RECORD = 1 << 20
NEAR = (1 << 15) - 8  # maximum offset in bytes that one instruction can address
HEAD = 12  # number of bytes that DTrace places before the values of a record


@dataclass(frozen=True)
class Field:
    """A value in a record.

    :param offset: bytes from the beginning of the record.
    :param how: "value", "stack", "ustack", or the name of the action that shows a symbol.
    """

    offset: int
    size: int
    type: Type
    how: str = "value"


@dataclass
class Recorded:
    """The data that an action leaves in the record.

    :param name: name of the action.
    :param format: parsed format string of ``printf()`` and similar actions.
    """

    name: str
    fields: list[Field]
    format: list[formats.Piece] | None = None
    aggregations: list[AggregationInfo] = field(default_factory=list)


class RecordCode(ExpressionCode):
    """Code generator for values in a clause's record.

    :param options: options, which determine the default number of frames in a stack.
    """

    def __init__(self, storage: Storage, options: Options) -> None:
        super().__init__(storage)
        self.options = options
        self.actions: list[Recorded] = []
        self.size = 0
        self.counted = HEAD  # size of the record in DTrace's buffer
        self.speculated: int | None = None  # index of the instruction that loads ``counted``

    def field(self, size: int, kind: Type, how: str = "value") -> Field:
        """Reserve space in the record and return its field."""
        found = Field(self.size, size, kind, how)
        self.size += -(-size // 8) * 8
        self.count_bytes(size, size if size in (1, 2, 4, 8) else 1 if is_string(kind) else 8)
        return found

    def count_bytes(self, size: int, alignment: int) -> None:
        """Add the size of an aligned value to ``counted``, the record's size in DTrace's buffer."""
        self.counted = -(-self.counted // alignment) * alignment + size

    def recorded(self, e: syntax.Expression) -> Field:
        """Emit code that records a value, and return its field."""
        kind = e.kind
        size = self.storage.size(kind)
        self.value(e)
        target = self.field(size, kind)
        if is_scalar(kind):
            self.store_field(target, size)
            return target
        self.out.move(2, 0)
        self.record_address(1, target)
        self.out.constant(3, size)
        self.store_by_reference(Helper.COPY_TEXT if is_string(kind) else Helper.COPY)
        return target

    def next_action(self) -> None:
        """Begin the next action of the clause, numbered as in DTrace."""
        self.out.action += 1

    def store_by_reference(self, helper: int) -> None:
        """Emit a helper call that copies a value into the record.

        Its faults have no offset: in DTrace, the action's own code has ended by then.
        """
        self.out.storing = True
        self.out.helper(helper)
        self.out.storing = False

    def store_field(self, found: Field, size: int = 8) -> None:
        """Emit code that stores r0 in a field of the record."""
        if found.offset <= NEAR:
            self.out.store(RECORD, found.offset, 0, size)
        else:
            self.record_address(1, found)
            self.out.store(1, 0, 0, size)

    def record_address(self, to: int, found: Field) -> None:
        """Emit code that puts the address of a field into a register."""
        self.out.move(to, RECORD)
        if found.offset:
            self.out.alu_constant(Alu.ADD, to, found.offset)

    def noted(self, name: str, fields: list[Field], format_: list[formats.Piece] | None = None,
              aggregations: list[AggregationInfo] | None = None) -> None:
        """Add an action to the clause, with the data that the action leaves in the record."""
        self.actions.append(Recorded(name, fields, format_, aggregations or []))
