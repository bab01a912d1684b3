"""Effects of amd64 instructions on the stack (SDM volume 2)."""

import functools

from capstone import CS_OP_IMM, CS_OP_MEM, CS_OP_REG

from kinst.amd64.classify import decoder
from kinst.amd64.dataflow import effect
from kinst.code.stack_effect import StackEffect

WORD = 8


@functools.lru_cache(1 << 14)
def stack_effect(code: bytes) -> StackEffect:
    """Return the effect of one instruction on the stack."""
    lost = effect(code).writes - {"rsp"}
    for insn in decoder().disasm(code, 0, 1):
        mnemonic, operands = insn.mnemonic, insn.operands
        names = [insn.reg_name(op.reg) if op.type == CS_OP_REG else "" for op in operands]
        if mnemonic == "push":
            return StackEffect(change=-WORD, saves=((names[0], -WORD),) if names[0] else ())
        if mnemonic == "pop" and operands[0].type == CS_OP_REG:
            return StackEffect(change=WORD, loads=((names[0], "rsp", 0),),
                               lost=lost - {names[0]})
        if mnemonic == "leave":
            return StackEffect("rbp", WORD, (("rbp", "rbp", 0),))
        if mnemonic in ("sub", "add") and names[0] == "rsp" and operands[1].type == CS_OP_IMM:
            amount = operands[1].imm
            return StackEffect(change=-amount if mnemonic == "sub" else amount)
        if mnemonic in ("mov", "lea") and names[0] == "rsp":
            if operands[1].type == CS_OP_REG:
                return StackEffect(names[1])
            if mnemonic == "lea" and operands[1].type == CS_OP_MEM and not operands[1].mem.index:
                base = insn.reg_name(operands[1].mem.base) or ""
                return StackEffect("" if base == "rsp" else base, operands[1].mem.disp)
    return StackEffect(lost=effect(code).writes)
