"""Relocations of arm64 (ELF for the Arm 64-bit Architecture, "Relocation")."""

from emu.relocation import Base, RelocationType

RELOCATIONS = {
    257: RelocationType(Base.SYMBOL, 8),  # R_AARCH64_ABS64
    258: RelocationType(Base.SYMBOL, 4),  # R_AARCH64_ABS32
    1025: RelocationType(Base.SYMBOL, 8),  # R_AARCH64_GLOB_DAT
    1026: RelocationType(Base.SYMBOL, 8),  # R_AARCH64_JUMP_SLOT
    1027: RelocationType(Base.IMAGE, 8),  # R_AARCH64_RELATIVE
}
