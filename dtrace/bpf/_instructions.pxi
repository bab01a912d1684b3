"""Translation of BPF instructions to the executor's form (included by ``_runtime.pyx``)."""

# Operations of the executor. The tables below map BPF opcodes to these operations.
cdef enum:
    O_BAD, O_ADD, O_SUB, O_MUL, O_DIV, O_OR, O_AND, O_LSH, O_RSH, O_NEG, O_MOD, O_XOR, O_MOV, O_ARSH
    O_SDIV, O_SMOD, O_MOVS8, O_MOVS16, O_MOVS32
    O_ADD32, O_SUB32, O_MUL32, O_DIV32, O_OR32, O_AND32, O_LSH32, O_RSH32, O_NEG32, O_MOD32, O_XOR32
    O_MOV32, O_ARSH32, O_SDIV32, O_SMOD32, O_MOVS8_32, O_MOVS16_32
    O_SWAP16, O_SWAP32, O_SWAP64, O_LOW16, O_LOW32, O_LOW64
    O_JA, O_JEQ, O_JGT, O_JGE, O_JSET, O_JNE, O_JSGT, O_JSGE, O_JLT, O_JLE, O_JSLT, O_JSLE
    O_JEQ32, O_JGT32, O_JGE32, O_JSET32, O_JNE32, O_JSGT32, O_JSGE32, O_JLT32, O_JLE32, O_JSLT32
    O_JSLE32, O_CALL, O_LOCAL, O_EXIT, O_END
    O_LD1, O_LD2, O_LD4, O_LD8, O_LDS1, O_LDS2, O_LDS4, O_ST1, O_ST2, O_ST4, O_ST8
    O_WIDE


cdef int operation(i) except -1:
    """Return the executor's operation for an instruction."""
    kind, code = i.opcode & 7, i.opcode & 0xF0
    if kind in (Class.ALU, Class.ALU64):
        if code == Alu.END:
            swap = kind == Class.ALU64 or i.opcode & X
            return {(True, 16): O_SWAP16, (True, 32): O_SWAP32, (True, 64): O_SWAP64,
                    (False, 16): O_LOW16, (False, 32): O_LOW32, (False, 64): O_LOW64,
                    }[bool(swap), i.immediate]
        return (WIDE_ALU if kind == Class.ALU64 else NARROW_ALU).get((code, i.offset), O_BAD)
    if kind in (Class.JMP, Class.JMP32):
        if code == BpfJump.JA:
            return O_JA
        if code == BpfJump.EXIT:
            return O_EXIT
        if code == BpfJump.CALL:
            return O_LOCAL if i.source == LOCAL else O_CALL
        return (WIDE_JUMP if kind == Class.JMP else NARROW_JUMP).get(code, O_BAD)
    if i.wide is not None:
        return O_WIDE
    mode, size = i.opcode & 0xE0, i.opcode & 0x18
    if kind == Class.LDX:
        return (SIGNED_LOAD if mode == Mode.MEMSX else LOAD).get(size, O_BAD)
    return STORE.get(size, O_BAD)


WIDE_ALU = {
    (Alu.ADD, 0): O_ADD, (Alu.SUB, 0): O_SUB, (Alu.MUL, 0): O_MUL, (Alu.DIV, 0): O_DIV,
    (Alu.OR, 0): O_OR, (Alu.AND, 0): O_AND, (Alu.LSH, 0): O_LSH, (Alu.RSH, 0): O_RSH,
    (Alu.NEG, 0): O_NEG, (Alu.MOD, 0): O_MOD, (Alu.XOR, 0): O_XOR, (Alu.MOV, 0): O_MOV,
    (Alu.ARSH, 0): O_ARSH, (Alu.DIV, 1): O_SDIV, (Alu.MOD, 1): O_SMOD, (Alu.MOV, 8): O_MOVS8,
    (Alu.MOV, 16): O_MOVS16, (Alu.MOV, 32): O_MOVS32,
}
NARROW_ALU = {
    (Alu.ADD, 0): O_ADD32, (Alu.SUB, 0): O_SUB32, (Alu.MUL, 0): O_MUL32, (Alu.DIV, 0): O_DIV32,
    (Alu.OR, 0): O_OR32, (Alu.AND, 0): O_AND32, (Alu.LSH, 0): O_LSH32, (Alu.RSH, 0): O_RSH32,
    (Alu.NEG, 0): O_NEG32, (Alu.MOD, 0): O_MOD32, (Alu.XOR, 0): O_XOR32, (Alu.MOV, 0): O_MOV32,
    (Alu.ARSH, 0): O_ARSH32, (Alu.DIV, 1): O_SDIV32, (Alu.MOD, 1): O_SMOD32,
    (Alu.MOV, 8): O_MOVS8_32, (Alu.MOV, 16): O_MOVS16_32,
}
WIDE_JUMP = {
    BpfJump.JEQ: O_JEQ, BpfJump.JGT: O_JGT, BpfJump.JGE: O_JGE, BpfJump.JSET: O_JSET,
    BpfJump.JNE: O_JNE, BpfJump.JSGT: O_JSGT, BpfJump.JSGE: O_JSGE, BpfJump.JLT: O_JLT,
    BpfJump.JLE: O_JLE, BpfJump.JSLT: O_JSLT, BpfJump.JSLE: O_JSLE,
}
NARROW_JUMP = {
    BpfJump.JEQ: O_JEQ32, BpfJump.JGT: O_JGT32, BpfJump.JGE: O_JGE32, BpfJump.JSET: O_JSET32,
    BpfJump.JNE: O_JNE32, BpfJump.JSGT: O_JSGT32, BpfJump.JSGE: O_JSGE32, BpfJump.JLT: O_JLT32,
    BpfJump.JLE: O_JLE32, BpfJump.JSLT: O_JSLT32, BpfJump.JSLE: O_JSLE32,
}
LOAD = {Size.B: O_LD1, Size.H: O_LD2, Size.W: O_LD4, Size.DW: O_LD8}
SIGNED_LOAD = {Size.B: O_LDS1, Size.H: O_LDS2, Size.W: O_LDS4}
STORE = {Size.B: O_ST1, Size.H: O_ST2, Size.W: O_ST4, Size.DW: O_ST8}


cdef int translate(Machine *m, first, instructions) except -1:
    """Translate a program for ``execute`` and store it in ``m.code``, starting at index ``first``.

    :param instructions: the result of ``decode``, with None for the second slot of a wide one.
    """
    cdef Code *c
    for n, i in enumerate(instructions):
        c = &m.code[first + n]
        memset(c, 0, sizeof(Code))
        if i is None:
            continue
        c.op = operation(i)
        if c.op == O_BAD:
            raise ValueError(f"instruction {n}: the opcode is not supported")
        c.to, c.source, c.offset = i.destination, i.source, i.offset
        if i.wide is not None:
            c.value = word(i.constant)
            if i.source == REGION:
                c.value = word((layout.BASE | i.immediate << layout.REGION_SHIFT) + i.wide)
            continue
        kind = i.opcode & 7
        c.immediate = kind == Class.ST or kind not in (Class.LDX, Class.STX) and (
            not i.opcode & X or c.op in (O_CALL, O_LOCAL))
        c.value = word(i.immediate)
        target = None
        if c.op == O_LOCAL:
            target = n + 1 + i.immediate
        elif c.op == O_JA and kind == Class.JMP32:
            target = n + 1 + i.immediate
        elif kind in (Class.JMP, Class.JMP32) and c.op not in (O_CALL, O_EXIT):
            target = n + 1 + i.offset
        elif c.op == O_CALL and not 0 <= i.immediate < MAX_HELPER:
            raise ValueError(f"helper {i.immediate} does not exist")
        if target is not None:
            if not 0 <= target < len(instructions) or instructions[target] is None:
                raise ValueError(f"instruction {n}: the jump target is outside the program")
            c.jump = first + target
    # A wide immediate takes two slots.  The second slot contains a jump to the next instruction.
    for n, i in enumerate(instructions):
        if i is None:
            c = &m.code[first + n]
            c.op, c.jump = O_JA, first + n + 1
    c = &m.code[first + len(instructions)]
    memset(c, 0, sizeof(Code))
    c.op = O_END
    return 0
