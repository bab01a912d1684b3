"""Effects of amd64 instructions on the stack (SDM volume 2)."""

import functools

from capstone import CS_OP_IMM, CS_OP_MEM, CS_OP_REG

from emu.amd64.arch import Amd64
from kinst.amd64.classify import decoder
from kinst.amd64.dataflow import effect
from kinst.code.stack_effect import StackEffect

WORD, SHORT = 8, 2
NARROW = 0x66  # prefix for 16-bit operands
GENERAL = frozenset(Amd64.dwarf_registers)


@functools.lru_cache(1 << 14)
def stack_effect(code: bytes) -> StackEffect:
    """Return the effect of one instruction on the stack."""
    lost = effect(code).writes - {"rsp"}
    for insn in decoder().disasm(code, 0, 1):
        mnemonic, operands = insn.mnemonic, insn.operands
        names = [insn.reg_name(op.reg) if op.type == CS_OP_REG else "" for op in operands]
        if mnemonic in ("push", "pop") and insn.prefix[2] == NARROW:
            return StackEffect(change=-SHORT if mnemonic == "push" else SHORT, lost=lost)
        if mnemonic == "push":
            saved = names[0] in GENERAL
            return StackEffect(change=-WORD, saves=((names[0], -WORD),) if saved else ())
        if mnemonic == "pop" and names[0] in GENERAL:
            return StackEffect(change=WORD, loads=((names[0], "rsp", 0),),
                               lost=lost - {names[0]})
        if mnemonic == "pop":
            return StackEffect(change=WORD, lost=lost)
        if mnemonic == "leave":
            return StackEffect("rbp", WORD, (("rbp", "rbp", 0),))
        if mnemonic in ("sub", "add") and names[0] == "rsp" and operands[1].type == CS_OP_IMM:
            amount = operands[1].imm
            return StackEffect(change=-amount if mnemonic == "sub" else amount)
        if mnemonic in ("mov", "lea") and names[0] == "rsp":
            if names[1] in GENERAL:
                return StackEffect(names[1])
            if mnemonic == "lea" and operands[1].type == CS_OP_MEM and not operands[1].mem.index:
                base = insn.reg_name(operands[1].mem.base) or ""
                if base in GENERAL:
                    return StackEffect("" if base == "rsp" else base, operands[1].mem.disp)
    return StackEffect(lost=effect(code).writes)
