"""Data flow of amd64 instructions (SDM volume 2), derived from Capstone's operand reports."""

import functools

import capstone
from capstone import CS_AC_WRITE, CS_OP_MEM, CS_OP_REG

from kinst.amd64.classify import decoder
from kinst.code.dataflow import MEMORY, NOTHING, Effect

_LOW = {"a": "rax", "b": "rbx", "c": "rcx", "d": "rdx"}
_PARENTS = {
    **{f"{prefix}{letter}{suffix}": name for letter, name in _LOW.items()
       for prefix, suffix in (("", "l"), ("", "h"), ("", "x"), ("e", "x"), ("r", "x"))},
    **{f"{prefix}{name}{suffix}": f"r{name}" for name in ("si", "di", "bp", "sp")
       for prefix, suffix in (("", ""), ("e", ""), ("r", ""), ("", "l"))},
    **{f"r{n}{suffix}": f"r{n}" for n in range(8, 16) for suffix in ("", "d", "w", "b")},
}
MOVES = frozenset({"mov", "movabs", "movzx", "movsx", "movsxd"})
STRINGS = ("movsb", "movsw", "movsd", "movsq")
FULL = 4  # minimum size in bytes of a register write that replaces all 64 bits of the register


def parent(register: str) -> str | None:
    """Return the 64-bit register that contains a general register, or None for all others."""
    return _PARENTS.get(register)


@functools.lru_cache(1 << 16)
def effect(code: bytes) -> Effect:
    """Return the data flow of one instruction."""
    for insn in decoder().disasm(code, 0, 1):
        return _effect(insn)
    return NOTHING


def _effect(insn: capstone.CsInsn) -> Effect:
    def name(register: int) -> str | None:
        return parent(insn.reg_name(register) or "")

    writes = frozenset(n for n in map(name, insn.regs_access()[1]) if n is not None)
    mnemonic = insn.mnemonic.split(" ")[-1]
    operands = insn.operands
    if mnemonic in STRINGS and all(op.type == CS_OP_MEM for op in operands):
        return Effect(writes, stores=(MEMORY,))
    if mnemonic == "push":
        (op,) = operands
        source = name(op.reg) if op.type == CS_OP_REG else MEMORY if op.type == CS_OP_MEM else None
        return Effect(writes | {"rsp"}, stores=(source,))
    if mnemonic == "pop" and operands[0].type == CS_OP_REG:
        popped = name(operands[0].reg)
        return Effect(writes | {"rsp"}, loads=() if popped is None else (popped,))
    if mnemonic == "leave":
        return Effect(writes | {"rsp", "rbp"}, loads=("rbp",))
    if mnemonic == "call":
        return Effect(writes | {"rsp"}, stores=(None,))
    if mnemonic == "xchg" and all(op.type == CS_OP_REG and op.size >= FULL for op in operands):
        first, second = (name(op.reg) for op in operands)
        if first and second:
            return Effect(writes, {first: (second,), second: (first,)})
    if mnemonic == "xchg" and operands[0].type == CS_OP_MEM and operands[1].size >= FULL:
        register = name(operands[1].reg)
        if register:
            return Effect(writes, loads=(register,), stores=(register,))
    if mnemonic == "xadd" and operands[0].type == CS_OP_MEM and operands[1].size >= FULL:
        register = name(operands[1].reg)
        if register:
            return Effect(writes, loads=(register,), stores=(None,))
    moves = mnemonic in MOVES
    if len(operands) == 2 and (moves or mnemonic.startswith("cmov")):
        to, source = operands
        if to.type == CS_OP_REG and to.size >= FULL and (target := name(to.reg)):
            if source.type == CS_OP_REG and (value := name(source.reg)):
                high = (insn.reg_name(source.reg) or "").endswith("h")
                if not high:
                    return Effect(writes, {target: (value,) if moves else (value, target)})
            if source.type == CS_OP_MEM and moves:
                return Effect(writes, loads=(target,))
        if to.type == CS_OP_MEM and moves:
            value = name(source.reg) if source.type == CS_OP_REG else None
            return Effect(writes, stores=(value,))
    if mnemonic in ("pushfq", "pushf"):
        return Effect(writes | {"rsp"}, stores=(None,))
    stores = int(mnemonic.startswith("cmpxchg")) or sum(
        op.type == CS_OP_MEM and bool(op.access & CS_AC_WRITE) for op in operands)
    return Effect(writes, stores=(None,) * stores)
