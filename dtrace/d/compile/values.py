"""Code generation for single values: saving to the stack, conversion, and loads from memory.

The current value is in r0: a number extended to 64 bits according to its type, or the address of a
string or structure.
"""

from dtrace.bpf.assembler import Assembler
from dtrace.bpf.encoding import FRAME, STACK, Alu, BpfJump
from dtrace.bpf.layout import Helper
from dtrace.d.compile.storage import Storage
from dtrace.d.language.errors import DError, SourcePlace
from dtrace.d.language.types import (
    is_scalar,
    is_signed,
    is_string,
    pointed,
    width,
)
from dwarf.types import Type

SLOTS = STACK // 8
IMMEDIATE = range(-(1 << 31), 1 << 31)


class ValueCode:
    """Code generator for single values in a function."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.out = Assembler()
        self._slot = 0
        self._work = 0

    def keep(self, place: SourcePlace) -> int:
        """Emit code that saves r0 in a stack slot, and return the slot's offset.

        :raises DError: if no slot is free.
        """
        self._slot += 1
        if self._slot >= SLOTS:
            raise DError("D_NOREG", "Insufficient registers to generate code", place)
        self.out.store(FRAME, -8 * self._slot, 0)
        return -8 * self._slot

    def drop(self, count: int = 1) -> None:
        """Release the most recently used stack slots."""
        self._slot -= count

    def convert(self, given: Type, to: Type) -> None:
        """Emit code that converts r0 from one type to another."""
        if not is_scalar(to) or not is_scalar(given):
            return
        size, wanted = width(given), width(to)
        if size == wanted and is_signed(given) != is_signed(to):
            return
        if wanted > size:
            if not is_signed(given):
                return
            self.out.extend(0, size, True)
            if not is_signed(to) and wanted < 8:
                self.out.extend(0, wanted, False)
            return
        self.out.extend(0, wanted, is_signed(to))

    def _add(self, amount: int) -> None:
        if amount in IMMEDIATE:
            self.out.alu_constant(Alu.ADD, 0, amount)
        else:
            self.out.constant(1, amount)
            self.out.alu(Alu.ADD, 0, 1)

    def _load_nine(self, low: int, place: SourcePlace) -> None:
        """Emit code that loads a bit-field that spans 9 bytes, from bit ``low`` of the first."""
        address = self.keep(place)
        self._load_word(8)
        self.out.alu_constant(Alu.RSH, 0, low)
        rest = self.keep(place)
        self.out.load(0, FRAME, address)
        self.out.alu_constant(Alu.ADD, 0, 8)
        self._load_word(1)
        self.out.alu_constant(Alu.LSH, 0, 64 - low)
        self.out.load(1, FRAME, rest)
        self.out.alu(Alu.OR, 0, 1)
        self.drop(2)

    def _load(self, kind: Type) -> None:
        size = width(kind) or 8
        self._load_word(size)
        if is_signed(kind):
            self.out.extend(0, size, True)

    def _load_word(self, size: int) -> None:
        """Emit code that loads an unsigned number from the address in r0."""
        self.out.move(1, 0)
        self.out.constant(2, size)
        self.out.helper(Helper.LOAD)

    def _truth(self, condition: BpfJump) -> None:
        """Emit code that compares r0 with 0 and sets r0 to 1 if the comparison holds, else 0."""
        yes = self.out.label()
        self.out.move(1, 0)
        self.out.constant(0, 1)
        self.out.branch_constant(condition, 1, 0, yes)
        self.out.constant(0, 0)
        self.out.place(yes)

    def _step(self, kind: Type) -> int:
        return 1 if is_string(kind) else max(width(pointed(kind)), 1)

    def _scale(self, register: int, kind: Type) -> None:
        size = self._step(kind)
        if size > 1:
            self.out.alu_constant(Alu.MUL, register, size)

    def _copy(self, kind: Type, slot: int) -> None:
        """Emit code that copies a string or structure to the address in r0."""
        self.out.move(1, 0)
        self.out.load(2, FRAME, slot)
        self.out.constant(3, self.storage.size(kind))
        self.out.helper(Helper.COPY_TEXT if is_string(kind) else Helper.COPY)
