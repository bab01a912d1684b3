"""Operands of riscv64 instructions (unprivileged manual), derived from Capstone's reports."""

import functools

import capstone
from capstone import CS_MODE_RISCV64, CS_MODE_RISCVC, CS_OP_IMM, CS_OP_MEM, CS_OP_REG, riscv

from emu.riscv64.registers import NAMES
from kinst.code.operands import Operand, Operands

SIZES = {"b": 1, "h": 2, "w": 4, "d": 8}
BRANCHES = ("beq", "bne", "blt", "bge", "bgt", "ble")

COMPRESSED = {"c.lw": 4, "c.ld": 8, "c.sw": 4, "c.sd": 8,
              "c.lwsp": 4, "c.ldsp": 8, "c.swsp": 4, "c.sdsp": 8}


@functools.cache
def _decoder() -> capstone.Cs:
    decoder = capstone.Cs(capstone.CS_ARCH_RISCV, CS_MODE_RISCV64 | CS_MODE_RISCVC)
    decoder.detail = True
    return decoder


@functools.lru_cache(1 << 14)
def operands(code: bytes, address: int) -> Operands:
    """Return the operands of one instruction; the architecture has no condition flags."""
    for insn in _decoder().disasm(code, address, 1):
        name = insn.mnemonic.removeprefix("c.")
        rows = [_operand(insn, op, name) for op in insn.operands]
        if name.startswith(BRANCHES) or name in ("j", "jal"):
            rows.pop()  # the target
        if name.startswith(BRANCHES) and len(rows) == 1:
            rows.append(Operand(8, constant=0))  # a comparison with zero
        found = [one for one in rows if one is not None]
        if insn.mnemonic in COMPRESSED and len(found) == 3:  # reported as: data, offset, base
            data, offset, base = found
            found = [data, Operand(COMPRESSED[insn.mnemonic], base=base.register,
                                   offset=offset.constant or 0)]
        added = name == "addi" and len(found) == 3 and found[1].constant == 0  # ADDI from zero
        return Operands(tuple(found), loads_constant=added or name in ("li", "lui"),
                        ands=name in ("and", "andi"))
    return Operands()


def _operand(insn: capstone.CsInsn, op: riscv.RISCVOp, mnemonic: str) -> Operand | None:
    if op.type == CS_OP_REG:
        name = insn.reg_name(op.reg) or ""
        if name == "zero":
            return Operand(8, constant=0)
        return Operand(8, name) if name in NAMES else None
    if op.type == CS_OP_IMM:
        return Operand(0, constant=op.imm)
    if op.type != CS_OP_MEM:
        return None
    size = SIZES.get(mnemonic.removesuffix("sp").rstrip("u")[-1:], 0)
    return Operand(size, base=insn.reg_name(op.mem.base) or "", offset=op.mem.disp)
