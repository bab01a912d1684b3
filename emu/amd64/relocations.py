"""Relocations of amd64 (System V psABI, "Relocation Types")."""

from emu.relocation import Base, RelocationType

RELOCATIONS = {
    1: RelocationType(Base.SYMBOL, 8),  # R_X86_64_64
    2: RelocationType(Base.DISTANCE, 4),  # R_X86_64_PC32
    4: RelocationType(Base.DISTANCE, 4),  # R_X86_64_PLT32: in modules, straight to the function
    6: RelocationType(Base.SYMBOL, 8),  # R_X86_64_GLOB_DAT
    7: RelocationType(Base.SYMBOL, 8),  # R_X86_64_JUMP_SLOT
    8: RelocationType(Base.IMAGE, 8),  # R_X86_64_RELATIVE
    10: RelocationType(Base.SYMBOL, 4),  # R_X86_64_32
    11: RelocationType(Base.SYMBOL, 4),  # R_X86_64_32S
    24: RelocationType(Base.DISTANCE, 8),  # R_X86_64_PC64
}
