"""Records: what a clause leaves for the consumer at a firing, and the code that fills them."""

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
NEAR = (1 << 15) - 8  # what an instruction's offset reaches
HEAD = 12  # bytes that DTrace has before the values of a record


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


class RecordCode(ExpressionCode):
    """Writes the code of values into a clause's record.

    :param options: how many frames a stack has that is given no number.
    """

    def __init__(self, storage: Storage, options: Options) -> None:
        super().__init__(storage)
        self.options = options
        self.actions: list[Recorded] = []
        self.size = 0
        self.counted = HEAD  # the record's size, as DTrace counts it
        self.speculated: int | None = None  # the instruction that says it to speculate()

    def field(self, size: int, kind: Type, how: str = "value") -> Field:
        """Room in the record."""
        found = Field(self.size, size, kind, how)
        self.size += -(-size // 8) * 8
        self.count_bytes(size, size if size in (1, 2, 4, 8) else 1 if is_string(kind) else 8)
        return found

    def count_bytes(self, size: int, alignment: int) -> None:
        """What DTrace would add to its record."""
        self.counted = -(-self.counted // alignment) * alignment + size

    def recorded(self, e: syntax.Expression) -> Field:
        """Put a value into the record."""
        kind = e.kind
        size = self.storage.size(kind)
        self.value(e)
        found = self.field(size, kind)
        if is_scalar(kind):
            self.store_field(found, size)
            return found
        self.out.move(2, 0)
        self.record_address(1, found)
        self.out.constant(3, size)
        self.store_by_reference(Helper.COPY_TEXT if is_string(kind) else Helper.COPY)
        return found

    def next_action(self) -> None:
        """What follows belongs to the next action of the clause, as DTrace counts them."""
        self.out.action += 1

    def store_by_reference(self, helper: int) -> None:
        """Copy a value into the record; its faults have no offset, as DTrace has ended the action's
        own code then."""
        self.out.storing = True
        self.out.helper(helper)
        self.out.storing = False

    def store_field(self, found: Field, size: int = 8) -> None:
        """Put r0 into the record."""
        if found.offset <= NEAR:
            self.out.store(RECORD, found.offset, 0, size)
        else:
            self.record_address(1, found)
            self.out.store(1, 0, 0, size)

    def record_address(self, to: int, found: Field) -> None:
        """Put the address of a field into a register."""
        self.out.move(to, RECORD)
        if found.offset:
            self.out.alu_constant(Alu.ADD, to, found.offset)

    def noted(self, name: str, fields: list[Field], format_: list[formats.Piece] | None = None,
              aggregations: list[AggregationInfo] | None = None) -> None:
        """Say what an action has left in the record, if only that it was there."""
        self.actions.append(Recorded(name, fields, format_, aggregations or []))
