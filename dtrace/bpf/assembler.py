"""Writes BPF functions: instructions with labels, constants of any size."""

from dataclasses import dataclass, field, replace

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

INT32 = range(-(1 << 31), 1 << 31)


class ProgramTooLarge(Exception):
    """A jump is too far for its 16 bits."""


@dataclass(frozen=True)
class Label:
    """A place in a function; compared by identity."""

    number: int


@dataclass
class Assembler:
    """One function.

    :param line: of the source, that the next instructions are made from.
    :param action: the number of the clause's action, from 1, that the next instructions carry out;
        0: the predicate. ``storing``: they store its value, which DTrace's own code does when the
        action's has ended.
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
        """The number of 8-byte slots so far."""
        return self._count

    def add(self, i: BpfInstruction) -> None:
        self.instructions.append(i)
        self.lines.append(self.line)
        self.actions.append((self.action, self.storing))
        self._count += 1 if i.wide is None else 2

    # -- arithmetic --------------------------------------------------------------------------------

    def alu(self, operation: Alu, to: int, source: int, *, offset: int = 0,
            word: bool = False) -> None:
        kind = Class.ALU if word else Class.ALU64
        self.add(BpfInstruction(kind | operation | X, to, source, offset))

    def alu_constant(self, operation: Alu, to: int, value: int, *, offset: int = 0,
                     word: bool = False) -> None:
        kind = Class.ALU if word else Class.ALU64
        self.add(BpfInstruction(kind | operation | K, to, 0, offset, value))

    def move(self, to: int, source: int) -> None:
        if to != source:
            self.alu(Alu.MOV, to, source)

    def constant(self, to: int, value: int) -> None:
        signed = (value & (1 << 64) - 1) - ((value & 1 << 63) << 1)
        if signed in INT32:
            self.alu_constant(Alu.MOV, to, signed)
            return
        low, high = signed & 0xFFFFFFFF, signed >> 32
        self.add(BpfInstruction(
            WIDE, to, VALUE, 0, low - ((low & 1 << 31) << 1), high))

    def address(self, to: int, region: int, offset: int) -> None:
        """The address of a byte of a region."""
        self.add(BpfInstruction(WIDE, to, REGION, 0, region, offset))

    def negate(self, to: int) -> None:
        self.add(BpfInstruction(Class.ALU64 | Alu.NEG, to))

    def extend(self, to: int, size: int, signed: bool) -> None:
        """Make the low ``size`` bytes of a register its value."""
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
        mode = Mode.MEMSX if signed and size < 8 else Mode.MEM
        self.add(BpfInstruction(Class.LDX | mode | SIZES[size], to, base, offset))

    def store(self, base: int, offset: int, source: int, size: int = 8) -> None:
        self.add(BpfInstruction(Class.STX | Mode.MEM | SIZES[size], base, source, offset))

    def store_constant(self, base: int, offset: int, value: int, size: int = 8) -> None:
        self.add(BpfInstruction(Class.ST | Mode.MEM | SIZES[size], base, 0, offset, value))

    # -- flow --------------------------------------------------------------------------------------

    def label(self) -> Label:
        self._made += 1
        return Label(self._made)

    def place(self, label: Label) -> None:
        self._labels[label.number] = self._count

    def jump(self, to: Label) -> None:
        self._jump(BpfInstruction(Class.JMP | BpfJump.JA), to)

    def branch(self, condition: BpfJump, left: int, right: int, to: Label) -> None:
        self._jump(BpfInstruction(Class.JMP | condition | X, left, right), to)

    def branch_constant(self, condition: BpfJump, left: int, value: int, to: Label) -> None:
        self._jump(BpfInstruction(Class.JMP | condition | K, left, 0, 0, value), to)

    def _jump(self, i: BpfInstruction, to: Label) -> None:
        self._jumps.append((len(self.instructions), self._count, to.number))
        self.add(i)

    def helper(self, number: int) -> None:
        self.add(BpfInstruction(Class.JMP | BpfJump.CALL, 0, HELPER, 0, number))

    def call(self, function: str) -> None:
        """Call another function, which the linker finds."""
        self.calls[len(self.instructions)] = function
        self.add(BpfInstruction(Class.JMP | BpfJump.CALL, 0, LOCAL))

    def leave(self) -> None:
        self.add(BpfInstruction(Class.JMP | BpfJump.EXIT))

    def finish(self) -> list[BpfInstruction]:
        """The function, its jumps resolved.

        :raises ProgramTooLarge: when one is too far.
        """
        for index, slot, number in self._jumps:
            distance = self._labels[number] - slot - 1
            if not -(1 << 15) <= distance < 1 << 15:
                raise ProgramTooLarge
            self.instructions[index] = replace(self.instructions[index], offset=distance)
        self._jumps = []
        return self.instructions
