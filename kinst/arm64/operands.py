"""Operands of arm64 instructions (Arm ARM, chapter C6), derived from Capstone's reports."""

import functools

import capstone
from capstone import CS_GRP_CALL, CS_GRP_JUMP, CS_OP_IMM, CS_OP_MEM, CS_OP_REG, arm64

from kinst.arm64.dataflow import decoder, full_name
from kinst.code.operands import Operand, Operands

TESTS = frozenset("cbz cbnz tbz tbnz".split())
# Mnemonics, or their beginnings, of instructions whose effect depends on the condition flags
CONDITIONAL = ("b.", "csel", "cset", "csin", "cinc", "cinv", "cneg", "csneg", "ccm", "adc", "sbc",
               "ngc")
LOADS = ("mov", "movz", "movn")  # mnemonics that load a constant
WIDTHS = {"b": 1, "h": 2}


@functools.lru_cache(1 << 14)
def operands(code: bytes, address: int) -> Operands:
    """Return the operands of one instruction."""
    for insn in decoder().disasm(code, address, 1):
        rows = [_operand(insn, op) for op in insn.operands]
        if insn.mnemonic in TESTS:
            rows.pop()  # the target
        elif insn.group(CS_GRP_JUMP) or insn.group(CS_GRP_CALL):
            rows = [one for one in rows if one is None or one.constant is None]
        found = tuple(one for one in rows if one is not None)
        constant = insn.mnemonic in LOADS and len(found) == 2 and found[1].constant is not None
        return Operands(found, bool(insn.update_flags), insn.mnemonic.startswith(CONDITIONAL),
                        constant, insn.mnemonic in ("and", "ands"))
    return Operands()


def _size(insn: capstone.CsInsn) -> int:
    """Return the size of the memory that a load or store accesses, per register."""
    name = insn.mnemonic.removesuffix("r")
    for letter, size in WIDTHS.items():
        if insn.mnemonic.endswith(letter) or name.endswith(letter):
            return size
    first = insn.reg_name(insn.operands[0].reg) or ""
    return 4 if insn.mnemonic.endswith("sw") or first.startswith("w") else 8


def _operand(insn: capstone.CsInsn, op: arm64.Arm64Op) -> Operand | None:
    if op.type == CS_OP_REG:
        text = insn.reg_name(op.reg) or ""
        if text in ("wzr", "xzr"):
            return Operand(4 if text == "wzr" else 8, constant=0)
        name = full_name(text)
        return None if name is None else Operand(4 if text.startswith("w") else 8, name)
    if op.type == CS_OP_IMM:
        return Operand(0, constant=op.imm << op.shift.value if op.shift.type else op.imm)
    if op.type != CS_OP_MEM:
        return None
    base = full_name(insn.reg_name(op.mem.base) or "") or ""
    index = full_name(insn.reg_name(op.mem.index) or "") or "" if op.mem.index else ""
    scale = 1 << op.shift.value if op.shift.type else 1
    return Operand(_size(insn), base=base, index=index, scale=scale, offset=op.mem.disp)
