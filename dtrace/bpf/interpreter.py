"""Reference interpreter for BPF code, written in Python; can call back at each instruction.

It works on the memory of a native ``Runtime`` and calls its helpers, so that tests can compare both
executors instruction by instruction.
"""

from collections.abc import Callable, Sequence

from dtrace.bpf._runtime import Runtime, RuntimeFault
from dtrace.bpf.encoding import (
    BYTES,
    FRAME,
    LOCAL,
    REGION,
    STACK,
    Alu,
    BpfInstruction,
    BpfJump,
    Class,
    Mode,
    Size,
    X,
    decode,
)
from dtrace.bpf.layout import BASE, REGION_SHIFT, Fault, Region

U32, U64 = (1 << 32) - 1, (1 << 64) - 1
FAILED = U64  # value of r0 after a fault has ended a function
MAX_DEPTH = 8

Narrate = Callable[[int, BpfInstruction, Sequence[int]], None]


def signed(value: int, bits: int = 64) -> int:
    """Return the low ``bits`` bits of a number as a signed number."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def divide(left: int, right: int) -> int:
    """Divide two signed integers and round toward zero, as RFC 9669 requires."""
    quotient = abs(left) // abs(right)
    return -quotient if (left < 0) != (right < 0) else quotient


def arithmetic(operation: int, left: int, right: int, bits: int, offset: int) -> int:
    """Compute a 32-bit or 64-bit ALU operation; the caller must truncate the result."""
    mask = (1 << bits) - 1
    x, y = left & mask, right & mask
    shift = y & bits - 1
    match operation:
        case Alu.ADD:
            return x + y
        case Alu.SUB:
            return x - y
        case Alu.MUL:
            return x * y
        case Alu.DIV if offset:
            return divide(signed(x, bits), signed(y, bits)) if y else 0
        case Alu.DIV:
            return x // y if y else 0
        case Alu.MOD if offset:
            if not y:
                return x
            first, second = signed(x, bits), signed(y, bits)
            return first - divide(first, second) * second
        case Alu.MOD:
            return x % y if y else x
        case Alu.OR:
            return x | y
        case Alu.AND:
            return x & y
        case Alu.XOR:
            return x ^ y
        case Alu.LSH:
            return x << shift
        case Alu.RSH:
            return x >> shift
        case Alu.ARSH:
            return signed(x, bits) >> shift
        case Alu.NEG:
            return -x
        case Alu.MOV:
            return signed(y, offset) if offset else y
    raise AssertionError(operation)


def holds(condition: int, left: int, right: int, bits: int) -> bool:
    """Return whether the condition of a conditional jump holds for two operands."""
    mask = (1 << bits) - 1
    x, y = left & mask, right & mask
    a, b = signed(x, bits), signed(y, bits)
    return {
        BpfJump.JEQ: x == y, BpfJump.JNE: x != y, BpfJump.JGT: x > y, BpfJump.JGE: x >= y,
        BpfJump.JLT: x < y,
        BpfJump.JLE: x <= y, BpfJump.JSET: bool(x & y), BpfJump.JSGT: a > b, BpfJump.JSGE: a >= b,
        BpfJump.JSLT: a < b, BpfJump.JSLE: a <= b,
    }[BpfJump(condition)]


class Interpreter:
    """Interpreter for one linked BPF program.

    :param code: the machine code of the program.
    :param narrate: called before each instruction with its number, the instruction and the
        registers.
    """

    def __init__(self, runtime: Runtime, code: bytes, narrate: Narrate | None = None) -> None:
        self.runtime, self.narrate = runtime, narrate
        self.instructions = decode(code)

    def run(self, entry: int, argument: int = 0) -> int:
        """Execute a program from ``entry`` and return the final value of r0.

        A fault ends the function that the program called, and is reported to ``runtime.faults``.
        """
        registers = [0] * 11
        registers[1] = argument
        registers[FRAME] = Region.STACK.address + STACK
        callers: list[tuple[int, list[int]]] = []
        pc = entry
        while True:
            i = self.instructions[pc]
            assert i is not None
            if self.narrate is not None:
                self.narrate(pc, i, registers)
            kind, operation = i.opcode & 7, i.opcode & 0xF0
            pc += 1 if i.wide is None else 2
            try:
                if kind == Class.JMP and operation == BpfJump.EXIT:
                    if not callers:
                        return registers[0]
                    pc, saved = callers.pop()
                    registers[6:] = saved
                elif kind == Class.JMP and operation == BpfJump.CALL and i.source == LOCAL:
                    if len(callers) + 1 >= MAX_DEPTH:
                        raise RuntimeFault(Fault.ILLEGAL_OPERATION)
                    if not callers:
                        self.runtime.begin_clause()
                    callers.append((pc, registers[6:]))
                    registers[FRAME] += STACK
                    pc += i.immediate
                else:
                    pc = self._step(i, pc, registers)
            except RuntimeFault as fault:
                if self.runtime.faults is not None:
                    self.runtime.faults(0, fault.fault, fault.value, pc - 1)
                registers[0] = FAILED
                if not callers:
                    return FAILED
                pc, saved = callers[0]
                registers[6:] = saved
                callers = []

    def _step(self, i: BpfInstruction, at: int, r: list[int]) -> int:
        """Execute one instruction and return the number of the next one."""
        kind, operation = i.opcode & 7, i.opcode & 0xF0
        right = r[i.source] if i.opcode & X else i.immediate
        if kind in (Class.ALU, Class.ALU64):
            if operation == Alu.END:
                r[i.destination] = self._swapped(i, kind, r[i.destination])
                return at
            bits = 32 if kind == Class.ALU else 64
            value = arithmetic(operation, r[i.destination], right, bits, i.offset)
            r[i.destination] = value & (U32 if bits == 32 else U64)
        elif kind in (Class.JMP, Class.JMP32):
            if operation == BpfJump.CALL:
                r[0] = self.runtime.call(i.immediate, *r[1:6])
            elif operation == BpfJump.JA:
                return at + (i.immediate if kind == Class.JMP32 else i.offset)
            elif holds(operation, r[i.destination], right, 32 if kind == Class.JMP32 else 64):
                return at + i.offset
        elif i.wide is not None:
            r[i.destination] = i.constant
            if i.source == REGION:
                r[i.destination] = (BASE | i.immediate << REGION_SHIFT) + i.wide
        else:
            self._memory(i, kind, r)
        return at

    @staticmethod
    def _swapped(i: BpfInstruction, kind: int, value: int) -> int:
        content = (value & U64).to_bytes(8, "little")[: i.immediate // 8]
        swap = kind == Class.ALU64 or i.opcode & X
        return int.from_bytes(content, "big" if swap else "little")

    def _memory(self, i: BpfInstruction, kind: int, r: list[int]) -> None:
        size = BYTES[Size(i.opcode & 0x18)]
        if kind == Class.LDX:
            address = r[i.source] + i.offset & U64
            self._own(address)
            value = int.from_bytes(self.runtime.read(address, size), "little")
            if i.opcode & 0xE0 == Mode.MEMSX:
                value = signed(value, 8 * size) & U64
            r[i.destination] = value
            return
        value = r[i.source] if kind == Class.STX else i.immediate
        self.runtime.write(r[i.destination] + i.offset & U64,
                           (value & (1 << 8 * size) - 1).to_bytes(size, "little"))

    @staticmethod
    def _own(address: int) -> None:
        """Check that a load reads the executor's own memory; only helpers may read guest memory."""
        if not BASE <= address < BASE + (16 << REGION_SHIFT):
            raise RuntimeFault(Fault.BAD_ADDRESS, address)
