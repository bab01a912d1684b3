"""Encoding, decoding and disassembly of BPF instructions (RFC 9669).

An instruction is 8 bytes: the opcode, two register numbers (destination in the low four bits), a
signed 16-bit offset and a signed 32-bit immediate. A 64-bit immediate takes a second slot of 8
bytes.
"""

import enum
import functools
import struct
from typing import NamedTuple

SIZE = 8
REGISTERS = 11  # number of registers: r0 to r10
FRAME = 10  # r10, the read-only frame pointer
STACK = 512  # size of a function's stack frame in bytes
LAYOUT = struct.Struct("<BBhi")


class Class(enum.IntEnum):
    """Instruction class: the low three bits of the opcode."""
    LD = 0
    LDX = 1
    ST = 2
    STX = 3
    ALU = 4
    JMP = 5
    JMP32 = 6
    ALU64 = 7


class Alu(enum.IntEnum):
    """Arithmetic or logical operation: the high four bits of an ALU opcode."""
    ADD = 0x00
    SUB = 0x10
    MUL = 0x20
    DIV = 0x30
    OR = 0x40
    AND = 0x50
    LSH = 0x60
    RSH = 0x70
    NEG = 0x80
    MOD = 0x90
    XOR = 0xA0
    MOV = 0xB0
    ARSH = 0xC0
    END = 0xD0


class BpfJump(enum.IntEnum):
    """Jump condition, call or exit: the high four bits of a jump opcode."""
    JA = 0x00
    JEQ = 0x10
    JGT = 0x20
    JGE = 0x30
    JSET = 0x40
    JNE = 0x50
    JSGT = 0x60
    JSGE = 0x70
    CALL = 0x80
    EXIT = 0x90
    JLT = 0xA0
    JLE = 0xB0
    JSLT = 0xC0
    JSLE = 0xD0


class Size(enum.IntEnum):
    """Operand size of a load or store: bits 3 and 4 of the opcode."""
    W = 0x00
    H = 0x08
    B = 0x10
    DW = 0x18


class Mode(enum.IntEnum):
    """Addressing mode of a load or store: the high three bits of the opcode."""
    IMM = 0x00
    MEM = 0x60
    MEMSX = 0x80


K, X = 0x00, 0x08  # kind of the source operand: immediate or register
BYTES = {Size.B: 1, Size.H: 2, Size.W: 4, Size.DW: 8}
SIZES = {count: size for size, count in BYTES.items()}
WIDE = Class.LD | Mode.IMM | Size.DW

# Values of the source register field.
# In a wide immediate: a constant, or an offset in the region that the first immediate selects.
VALUE, REGION = 0, 2
# In a call: a helper, given by its ID, or a function, given by its distance from the call.
HELPER, LOCAL = 0, 1


class BpfInstruction(NamedTuple):
    """A BPF instruction.

    :param wide: the upper half of a 64-bit immediate; None for any other instruction.
    """

    opcode: int
    destination: int = 0
    source: int = 0
    offset: int = 0
    immediate: int = 0
    wide: int | None = None

    def encode(self) -> bytes:
        """Return the instruction as 8 or 16 bytes of machine code."""
        first = LAYOUT.pack(
            self.opcode, self.destination | self.source << 4, self.offset, self.immediate)
        return first if self.wide is None else first + LAYOUT.pack(0, 0, 0, self.wide)

    @property
    def constant(self) -> int:
        """The 64-bit immediate, as an unsigned number."""
        assert self.wide is not None
        return self.immediate & 0xFFFFFFFF | (self.wide & 0xFFFFFFFF) << 32


class EncodingError(ValueError):
    """Error raised for bytes that are not a valid BPF instruction."""


ALU_SYMBOLS = {
    Alu.ADD: "+=", Alu.SUB: "-=", Alu.MUL: "*=", Alu.DIV: "/=", Alu.OR: "|=", Alu.AND: "&=",
    Alu.LSH: "<<=", Alu.RSH: ">>=", Alu.MOD: "%=", Alu.XOR: "^=", Alu.MOV: "=", Alu.ARSH: "s>>="}
JUMP_SYMBOLS = {
    BpfJump.JEQ: "==", BpfJump.JGT: ">", BpfJump.JGE: ">=", BpfJump.JSET: "&", BpfJump.JNE: "!=",
    BpfJump.JSGT: "s>", BpfJump.JSGE: "s>=", BpfJump.JLT: "<", BpfJump.JLE: "<=",
    BpfJump.JSLT: "s<",
    BpfJump.JSLE: "s<="}
SIGNED_OFFSETS = {Alu.DIV: (0, 1), Alu.MOD: (0, 1), Alu.MOV: (0, 8, 16, 32)}
SWAPS = (16, 32, 64)


def _legal(i: BpfInstruction) -> bool:
    """Return whether RFC 9669 defines an instruction and its unused fields are zero."""
    kind, operation = i.opcode & 7, i.opcode & 0xF0
    if i.destination >= REGISTERS or i.source >= REGISTERS:
        return False
    if kind in (Class.ALU, Class.ALU64):
        return _legal_alu(i, kind, operation)
    if kind in (Class.JMP, Class.JMP32):
        return _legal_jump(i, kind, operation)
    mode, size = i.opcode & 0xE0, i.opcode & 0x18
    if kind == Class.LD:
        return i.opcode == WIDE and i.wide is not None and i.offset == 0 and (
            i.source in (VALUE, REGION))
    if kind == Class.LDX:
        return i.immediate == 0 and (mode == Mode.MEM or (mode == Mode.MEMSX and size != Size.DW))
    if kind == Class.ST:
        return mode == Mode.MEM and i.source == 0
    return mode == Mode.MEM and i.immediate == 0


def _legal_alu(i: BpfInstruction, kind: int, operation: int) -> bool:
    register = bool(i.opcode & X)
    if operation == Alu.END:
        swap = i.source == 0 and i.offset == 0 and i.immediate in SWAPS
        return swap and not (kind == Class.ALU64 and register)
    if operation == Alu.NEG:
        return not register and i.source == 0 and i.offset == 0 and i.immediate == 0
    if operation not in ALU_SYMBOLS:
        return False
    if i.offset not in SIGNED_OFFSETS.get(Alu(operation), (0,)):
        return False
    if operation == Alu.MOV and i.offset and (
            not register or (kind == Class.ALU and i.offset == 32)):
        return False
    return i.immediate == 0 if register else i.source == 0


def _legal_jump(i: BpfInstruction, kind: int, operation: int) -> bool:
    register = bool(i.opcode & X)
    if operation == BpfJump.JA:
        plain = not register and i.source == 0 and i.destination == 0
        return plain and (i.immediate == 0 if kind == Class.JMP else i.offset == 0)
    if operation == BpfJump.CALL:
        return kind == Class.JMP and not register and i.destination == 0 and i.offset == 0 and (
            i.source in (HELPER, LOCAL))
    if operation == BpfJump.EXIT:
        return i.opcode == Class.JMP | BpfJump.EXIT and not (
            i.destination or i.source or i.offset or i.immediate)
    if operation not in JUMP_SYMBOLS:
        return False
    return i.immediate == 0 if register else i.source == 0


@functools.lru_cache(maxsize=1)  # the verifier and the executor decode the same program
def decode(code: bytes) -> tuple[BpfInstruction | None, ...]:
    """Decode a program into instructions; the second slot of a wide instruction becomes None.

    :raises EncodingError: if RFC 9669 does not define an instruction, or if it is an atomic
        operation, which is not supported.
    """
    if len(code) % SIZE:
        raise EncodingError(f"the code has {len(code)} bytes, which is not a multiple of the "
                            "instruction size (8)")
    instructions: list[BpfInstruction | None] = []
    legal: set[BpfInstruction] = set()  # most instructions occur more than once
    at = 0
    while at < len(code):
        opcode, registers, offset, immediate = LAYOUT.unpack_from(code, at)
        wide = None
        if opcode == WIDE:
            if at + 2 * SIZE > len(code):
                raise EncodingError(f"instruction {at // SIZE}: the last 8 bytes of this 16-byte "
                                    "instruction are missing")
            second, other, distance, wide = LAYOUT.unpack_from(code, at + SIZE)
            if second or other or distance:
                raise EncodingError(f"instruction {at // SIZE}: in the last 8 bytes of this "
                                    "16-byte instruction, only the immediate may be nonzero")
        i = BpfInstruction(opcode, registers & 15, registers >> 4, offset, immediate, wide)
        if i not in legal and not _legal(i):
            raise EncodingError(
                f"instruction {at // SIZE}: {code[at : at + SIZE].hex()} is not a BPF instruction")
        legal.add(i)
        instructions.append(i)
        if wide is not None:
            instructions.append(None)
        at += SIZE if wide is None else 2 * SIZE
    return tuple(instructions)


def encode(instructions: list[BpfInstruction]) -> bytes:
    """Return instructions as machine code."""
    return b"".join(i.encode() for i in instructions)


def disassemble(i: BpfInstruction, at: int = 0, helpers: dict[int, str] | None = None) -> str:
    """Disassemble an instruction in the syntax of the Linux kernel and LLVM.

    Jump targets are shown as instruction numbers.

    :param at: the number of the instruction.
    :param helpers: names of helpers by number.
    """
    kind, operation = i.opcode & 7, i.opcode & 0xF0
    letter = "w" if kind in (Class.ALU, Class.JMP32) else "r"
    to = f"{letter}{i.destination}"
    source = f"{letter}{i.source}" if i.opcode & X else f"{i.immediate:#x}"
    if kind in (Class.ALU, Class.ALU64):
        if operation == Alu.NEG:
            return f"{to} = -{to}"
        if operation == Alu.END:
            word = "bswap" if kind == Class.ALU64 else "be" if i.opcode & X else "le"
            return f"r{i.destination} = {word}{i.immediate} r{i.destination}"
        if operation == Alu.MOV and i.offset:
            return f"{to} = (s{i.offset}){source}"
        return f"{to} {'s' if i.offset else ''}{ALU_SYMBOLS[Alu(operation)]} {source}"
    if kind in (Class.JMP, Class.JMP32):
        if operation == BpfJump.EXIT:
            return "exit"
        if operation == BpfJump.CALL:
            if i.source == LOCAL:
                return f"call pc{i.immediate:+d} <{at + 1 + i.immediate}>"
            return f"call {(helpers or {}).get(i.immediate, i.immediate)}"
        distance = i.immediate if operation == BpfJump.JA and kind == Class.JMP32 else i.offset
        goto = f"goto {distance:+#x} <{at + 1 + distance}>"
        if operation == BpfJump.JA:
            return goto
        return f"if {to} {JUMP_SYMBOLS[BpfJump(operation)]} {source} {goto}"
    if i.wide is not None:
        if i.source == REGION:
            return f"r{i.destination} = region {i.immediate} + {i.wide:#x} ll"
        return f"r{i.destination} = {i.constant:#x} ll"
    size = 8 * BYTES[Size(i.opcode & 0x18)]
    if kind == Class.LDX:
        sign = "s" if i.opcode & 0xE0 == Mode.MEMSX else "u"
        return f"r{i.destination} = *({sign}{size} *)(r{i.source} {i.offset:+#x})"
    value = f"r{i.source}" if kind == Class.STX else f"{i.immediate:#x}"
    return f"*(u{size} *)(r{i.destination} {i.offset:+#x}) = {value}"
