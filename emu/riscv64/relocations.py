"""Relocations of riscv64 (RISC-V psABI, "Relocations")."""

from emu.relocation import Base, RelocationType

RELOCATIONS = {
    1: RelocationType(Base.SYMBOL, 4),  # R_RISCV_32
    2: RelocationType(Base.SYMBOL, 8),  # R_RISCV_64
    3: RelocationType(Base.IMAGE, 8),  # R_RISCV_RELATIVE
    5: RelocationType(Base.SYMBOL, 8),  # R_RISCV_JUMP_SLOT
}
