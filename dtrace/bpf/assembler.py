"""Assembler for BPF functions, with symbolic jump targets and 64-bit constants."""

from dataclasses import dataclass, field

from dtrace.bpf.encoding import (
    HELPER,
    LOCAL,
    REGION,
    SIZES,
    VALUE,
    WIDE,
    Alu,
    BpfInstruction,
    BpfJump,
    Class,
    K,
    Mode,
    X,
)
from emu.host.errors import KinstError

INT32 = range(-(1 << 31), 1 << 31)


class WrongSize(KinstError):
    """Error raised for a number of bytes that no instruction reads or writes."""


class ProgramTooLarge(Exception):
    """Error raised when a jump distance does not fit in 16 bits."""


@dataclass(frozen=True)
class Label:
    """Jump target in a function; labels with the same number are equal."""

    number: int


@dataclass
class Assembler:
    """Builder for one BPF function.

    :param line: the D source line of the next instructions.
    :param action: the number of the action that the next instructions belong to, counted from 1
        in its clause; 0 is the predicate.
    :param storing: the next instructions store the action's value in the record, which FreeBSD's
        DTrace does outside the action's own code.
    """

    line: int = 0
    action: int = 0
    storing: bool = False
    actions: list[tuple[int, bool]] = field(default_factory=list)
    instructions: list[BpfInstruction] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    calls: dict[int, str] = field(default_factory=dict)
    _count: int = 0
    _labels: dict[int, int] = field(default_factory=dict)
    _jumps: list[tuple[int, int, int]] = field(default_factory=list)
    _made: int = 0

    @property
    def at(self) -> int:
        """Length of the function so far, in 8-byte slots."""
        return self._count

    def add(self, i: BpfInstruction) -> None:
        """Append an instruction, and record its source line and action."""
        self.instructions.append(i)
        self.lines.append(self.line)
        self.actions.append((self.action, self.storing))
        self._count += 1 if i.wide is None else 2

    # -- arithmetic --------------------------------------------------------------------------------

    def alu(self, operation: Alu, to: int, source: int, *, offset: int = 0,
            word: bool = False) -> None:
        """Append an ALU operation with a source register; ``word`` selects the 32-bit form."""
        kind = Class.ALU if word else Class.ALU64
        self.add(BpfInstruction(kind | operation | X, to, source, offset))

    def alu_constant(self, operation: Alu, to: int, value: int, *, offset: int = 0,
                     word: bool = False) -> None:
        """Append an ALU operation with an immediate; ``word`` selects the 32-bit form."""
        kind = Class.ALU if word else Class.ALU64
        self.add(BpfInstruction(kind | operation | K, to, 0, offset, value))

    def move(self, to: int, source: int) -> None:
        """Append a move from register ``source`` to ``to``, unless both are the same register."""
        if to != source:
            self.alu(Alu.MOV, to, source)

    def constant(self, to: int, value: int) -> None:
        """Append a load of a 64-bit constant; use a 32-bit immediate if the constant fits."""
        signed = (value & (1 << 64) - 1) - ((value & 1 << 63) << 1)
        if signed in INT32:
            self.alu_constant(Alu.MOV, to, signed)
            return
        low, high = signed & 0xFFFFFFFF, signed >> 32
        self.add(BpfInstruction(
            WIDE, to, VALUE, 0, low - ((low & 1 << 31) << 1), high))

    def address(self, to: int, region: int, offset: int) -> None:
        """Append code that loads the address of the byte at ``offset`` in a memory region."""
        self.add(BpfInstruction(WIDE, to, REGION, 0, region, offset))

    def negate(self, to: int) -> None:
        """Append an instruction that negates a 64-bit register."""
        self.add(BpfInstruction(Class.ALU64 | Alu.NEG, to))

    def extend(self, to: int, size: int, signed: bool) -> None:
        """Append code that sign- or zero-extends a register's low ``size`` bytes to 64 bits."""
        if size >= 8:
            return
        if signed:
            self.add(BpfInstruction(Class.ALU64 | Alu.MOV | X, to, to, 8 * size))
        elif size == 4:
            self.add(BpfInstruction(Class.ALU | Alu.MOV | X, to, to))
        else:
            self.alu_constant(Alu.AND, to, (1 << 8 * size) - 1)

    # -- memory ------------------------------------------------------------------------------------

    def load(self, to: int, base: int, offset: int, size: int = 8, signed: bool = False) -> None:
        """Append a load of ``size`` bytes from ``base + offset``, extended to 64 bits."""
        mode = Mode.MEMSX if signed and size < 8 else Mode.MEM
        self.add(BpfInstruction(Class.LDX | mode | _size(size), to, base, offset))

    def store(self, base: int, offset: int, source: int, size: int = 8) -> None:
        """Append a store of a register's low ``size`` bytes at ``base + offset``."""
        self.add(BpfInstruction(Class.STX | Mode.MEM | _size(size), base, source, offset))

    def store_constant(self, base: int, offset: int, value: int, size: int = 8) -> None:
        """Append a store of a constant of ``size`` bytes at ``base + offset``."""
        self.add(BpfInstruction(Class.ST | Mode.MEM | _size(size), base, 0, offset, value))

    # -- flow --------------------------------------------------------------------------------------

    def label(self) -> Label:
        """Return a new label, which is not bound to a position yet."""
        self._made += 1
        return Label(self._made)

    def place(self, label: Label) -> None:
        """Bind a label to the current position."""
        self._labels[label.number] = self._count

    def jump(self, to: Label) -> None:
        """Append an unconditional jump to a label."""
        self._jump(BpfInstruction(Class.JMP | BpfJump.JA), to)

    def branch(self, condition: BpfJump, left: int, right: int, to: Label) -> None:
        """Append a jump to a label, taken if a comparison of two registers holds."""
        self._jump(BpfInstruction(Class.JMP | condition | X, left, right), to)

    def branch_constant(self, condition: BpfJump, left: int, value: int, to: Label) -> None:
        """Append a jump to a label, taken if a comparison of a register and a constant holds."""
        self._jump(BpfInstruction(Class.JMP | condition | K, left, 0, 0, value), to)

    def _jump(self, i: BpfInstruction, to: Label) -> None:
        self._jumps.append((len(self.instructions), self._count, to.number))
        self.add(i)

    def helper(self, number: int) -> None:
        """Append a call to a helper function of the runtime."""
        self.add(BpfInstruction(Class.JMP | BpfJump.CALL, 0, HELPER, 0, number))

    def call(self, function: str) -> None:
        """Append a call to another BPF function; the linker resolves the call by function name."""
        self.calls[len(self.instructions)] = function
        self.add(BpfInstruction(Class.JMP | BpfJump.CALL, 0, LOCAL))

    def leave(self) -> None:
        """Append the exit instruction."""
        self.add(BpfInstruction(Class.JMP | BpfJump.EXIT))

    def finish(self) -> list[BpfInstruction]:
        """Resolve all jumps and return the function's instructions.

        :raises ProgramTooLarge: if the distance of a jump does not fit in 16 bits.
        """
        for index, slot, number in self._jumps:
            distance = self._labels[number] - slot - 1
            if not -(1 << 15) <= distance < 1 << 15:
                raise ProgramTooLarge
            self.instructions[index] = self.instructions[index]._replace(offset=distance)
        self._jumps = []
        return self.instructions


def _size(size: int) -> int:
    """Return the bits of an instruction for a number of bytes.

    :raises WrongSize: if no instruction reads or writes this number of bytes.
    """
    if size not in SIZES:
        raise WrongSize(f"a value of {size} bytes cannot be read or written by a D program")
    return SIZES[size]
