"""Data flow of arm64 instructions (Arm ARM, chapter C6), derived from Capstone's reports."""

import functools

import capstone
from capstone import CS_AC_WRITE, CS_OP_REG

from kinst.code.dataflow import NOTHING, Effect

COPIES = frozenset("mov sxtw sxth sxtb uxtw uxth uxtb".split())
CHOICES = frozenset({"csel"})
# Mnemonic prefixes of instructions that load or store their first registers
LOADS = ("ldr", "ldur", "ldp", "ldnp", "ldar", "ldapr", "ldapur", "ldxr", "ldaxr", "ldtr", "ldxp",
         "ldaxp", "ldlar")
STORES = ("str", "stur", "stp", "stnp", "stlr", "stlur", "sttr", "stllr")
EXCLUSIVE = ("stxr", "stlxr", "stxp", "stlxp")  # operands: status register, then data registers
PAIRS = ("ldp", "ldnp", "ldxp", "ldaxp", "stp", "stnp", "stxp", "stlxp")
# Instructions that only read their first register; all other instructions write their first
# register, even where Capstone reports a read.
READS = frozenset("cmp cmn tst ccmp ccmn cbz cbnz tbz tbnz br blr ret braa brab blraa blrab msr "
                  "dc ic at tlbi sys prfm prfum".split())
SWAPS, COMPARES = "swp", "cas"  # mnemonic prefixes; other LSE atomics store a computed value
ATOMICS = tuple(f"ld{what}" for what in (
    "add", "clr", "eor", "set", "smax", "smin", "umax", "umin"))
ATOMIC_STORES = tuple(f"st{what[2:]}" for what in ATOMICS)


@functools.cache
def decoder() -> capstone.Cs:
    """Return a decoder that reports operands."""
    made = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_LITTLE_ENDIAN)
    made.detail = True
    return made


def full_name(text: str) -> str | None:
    """Return the 64-bit name of a general register or of SP, or None for all other registers."""
    if text in ("sp", "wsp"):
        return "sp"
    text = {"fp": "x29", "lr": "x30"}.get(text, text)
    return f"x{text[1:]}" if text[:1] in ("x", "w") and text[1:].isdecimal() else None


@functools.lru_cache(1 << 16)
def effect(code: bytes) -> Effect:
    """Return the data flow of one instruction."""
    for insn in decoder().disasm(code, 0, 1):
        return _effect(insn)
    return NOTHING


def _effect(insn: capstone.CsInsn) -> Effect:
    operands, mnemonic = insn.operands, insn.mnemonic
    registers = [full_name(insn.reg_name(op.reg) or "") if op.type == CS_OP_REG else None
                 for op in operands]
    writes = {name for number in insn.regs_access()[1]
              if (name := full_name(insn.reg_name(number) or "")) is not None}
    writes |= {name for op, name in zip(operands, registers, strict=True)
               if name is not None and op.access & CS_AC_WRITE}
    if mnemonic == "dc" and insn.op_str.startswith("zva"):
        return Effect(clears=True)
    if mnemonic in ("bl", "blr"):
        return Effect(frozenset(writes | {"x30"}))
    if mnemonic in COPIES and len(operands) == 2 and registers[0] and registers[1] \
            and not operands[1].shift.type:
        return Effect(frozenset(writes | {registers[0]}), {registers[0]: (registers[1],)})
    if mnemonic in CHOICES and registers[0]:
        chosen = tuple(name for name in registers[1:3] if name is not None)
        zero = len(chosen) < 2
        return Effect(frozenset(writes | {registers[0]}), {} if zero else {registers[0]: chosen})
    count = 2 if mnemonic.startswith(PAIRS) else 1
    if mnemonic.startswith(EXCLUSIVE):
        written = {registers[0]} if registers[0] else set()
        return Effect(frozenset(written), stores=tuple(registers[1 : 1 + count]))
    if mnemonic.startswith(SWAPS):
        result = registers[1]
        return Effect(frozenset({result} if result else ()), loads=(result,) if result else (),
                      stores=(registers[0],))
    if mnemonic.startswith(COMPARES):
        return Effect(frozenset(name for name in registers[:1] if name), stores=(None,))
    if mnemonic.startswith(ATOMICS):
        result = registers[1]
        return Effect(frozenset({result} if result else ()), loads=(result,) if result else (),
                      stores=(None,))
    if mnemonic.startswith(ATOMIC_STORES):
        return Effect(stores=(None,))
    if mnemonic.startswith(LOADS):
        loaded = tuple(name or "" for name in registers[:count])
        return Effect(frozenset(writes | {n for n in loaded if n}), loads=loaded)
    if mnemonic.startswith(STORES):
        return Effect(frozenset(writes - {n for n in registers[:count] if n}),
                      stores=tuple(registers[:count]))
    if registers and registers[0]:
        if mnemonic not in READS:
            writes.add(registers[0])
        else:
            writes.discard(registers[0])  # Capstone reports a write for CMP, CMN and TST
    return Effect(frozenset(writes))
