"""Operands of amd64 instructions (SDM volume 2), derived from Capstone's reports."""

import functools

import capstone
from capstone import CS_GRP_CALL, CS_GRP_JUMP, CS_OP_IMM, CS_OP_MEM, CS_OP_REG, x86

from kinst.amd64.classify import decoder
from kinst.amd64.dataflow import parent
from kinst.code.operands import Operand, Operands

MASK = (1 << 64) - 1
FLAGS = x86.X86_REG_EFLAGS
SECOND_BYTES = ("ah", "bh", "ch", "dh")
# Instructions that write the flags although Capstone does not say so
SETS_FLAGS = ("cmpxchg", "xadd", "verr", "verw", "lar", "lsl")
EXCHANGE = "cmpxchg"  # compares memory or a register with RAX
LOADS, CLEARS = ("mov", "movabs"), "xor"  # mnemonics that load a constant


@functools.lru_cache(1 << 14)
def operands(code: bytes, address: int) -> Operands:
    """Return the operands of one instruction."""
    for insn in decoder().disasm(code, address, 1):
        read, written = insn.regs_access()
        jumps = insn.group(CS_GRP_JUMP) or insn.group(CS_GRP_CALL)
        found = tuple(one for op in insn.operands if (one := _operand(insn, op)) is not None
                      and not (jumps and one.constant is not None))
        constant = len(found) == 2 and bool(found[0].register) and (
            found[1].constant is not None if insn.mnemonic in LOADS
            else insn.mnemonic == CLEARS and found[0] == found[1])
        name = insn.mnemonic.rpartition(" ")[2]  # without LOCK and other prefixes
        if name == EXCHANGE:
            found = found[0], Operand(found[0].size, "rax")
        return Operands(found, FLAGS in written or name in SETS_FLAGS, FLAGS in read, constant,
                        name == "and")
    return Operands()


def _operand(insn: capstone.CsInsn, op: capstone.x86.X86Op) -> Operand | None:
    if op.type == CS_OP_REG:
        text = insn.reg_name(op.reg) or ""
        name = parent(text)
        return None if name is None else Operand(
            op.size, name, shift=8 if text in SECOND_BYTES else 0)
    if op.type == CS_OP_IMM:
        return Operand(op.size, constant=op.imm & (1 << 8 * op.size) - 1)
    if op.type != CS_OP_MEM:
        return None
    offset, base = op.mem.disp, ""
    if op.mem.base == x86.X86_REG_RIP:
        offset += insn.address + insn.size
    elif op.mem.base:
        base = parent(insn.reg_name(op.mem.base) or "") or ""
    index = parent(insn.reg_name(op.mem.index) or "") or "" if op.mem.index else ""
    segment = {x86.X86_REG_GS: "gs_base", x86.X86_REG_FS: "fs_base"}.get(op.mem.segment, "")
    if not base:
        base, segment = segment, ""
    return Operand(op.size, base=base, index=index, scale=op.mem.scale,
                   offset=offset if base else offset & MASK, segment=segment)
