"""The arm64 architecture: paging, instructions, calling convention and relocations."""

import functools
from typing import TYPE_CHECKING

from emu.arch.arch import ALL, Arch, Context
from emu.arm64 import registers
from emu.elf.relocations import Base, RelocationType
from emu.host.errors import KinstError

if TYPE_CHECKING:
    import capstone
    import keystone


ADDRESS = 0xFFFFFFFFF000
READ_ONLY = 1 << 7  # AP[2] of a page table entry
CONTIGUOUS = 1 << 52


# (mask, value) of the encodings of atomic, exclusive, acquire and release accesses.
ATOMIC = ((0x3F000000, 0x08000000), (0x3B200C00, 0x38200000), (0x3F200C00, 0x19000000))


@functools.cache
def _decoder() -> "capstone.Cs":
    import capstone  # imported late: the import takes 30 ms, and not every command needs Capstone

    return capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)


class Arm64(Arch):
    """The arm64 architecture."""

    name = "arm64"
    elf_machine = "AARCH64"
    registers = registers.GENERAL
    pc, sp = "pc", "sp"
    arguments = ("x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7")
    result = "x0"
    macros = ("__aarch64__",)
    link = "x30"
    # DWARF register numbers: DWARF for the Arm 64-bit Architecture, 4.1.
    dwarf_registers = (*(f"x{i}" for i in range(31)), "sp")
    zero_alias = "sp"  # as in the encoding of instructions, 31 is sp or xzr
    saves_frame = ("stp x29, x30,",)
    frame_record = ("x29", 0, 8)
    relocatable_modules = False
    # Assemble at address 0: elsewhere, Keystone subtracts the address from the immediates of ADR
    # and ADRP, but not from the immediates of branches.
    assembly_address = 0
    watches_before = True  # Arm ARM, D2.10: watchpoint exceptions are taken before the access

    def walk(self, cpu: Context, address: int) -> tuple[int, int] | None:
        """Walk the EL1&0 page tables, 4 KiB granule (Arm ARM, "AArch64 Virtual Memory System").

        :raises KinstError: for another granule.
        """
        if not cpu.read_register("sctlr_el1") & 1:
            return address, ALL
        tcr = cpu.read_register("tcr_el1")
        upper = address >> 63
        if tcr >> 30 & 1 if upper else tcr >> 14 & 3:  # TCR_EL1.TG1 and TG0
            raise KinstError("this kernel uses pages of 16 or 64 KiB; only pages of 4 KiB are "
                             "supported")
        size = 64 - (tcr >> 16 & 63 if upper else tcr & 63)
        top = address >> size
        if top != ((1 << 64 - size) - 1 if upper else 0):
            return None
        table = cpu.read_register("ttbr1_el1" if upper else "ttbr0_el1") & ADDRESS
        level = 3 - (size - 13) // 9
        while True:
            shift = 12 + 9 * (3 - level)
            index = (address & (1 << size) - 1) >> shift & 0x1FF
            entry = int.from_bytes(cpu.read_physical(table + 8 * index, 8), "little")
            if not entry & 1 or (level == 3 and not entry & 2):
                return None
            if level == 3 or not entry & 2:
                offset = (1 << shift) - 1
                return entry & ADDRESS & ~offset | address & offset, entry
            table = entry & ADDRESS
            level += 1

    def writable(self, entry: int) -> bool:
        """Return whether a page table entry allows writes, that is, has a clear read-only bit."""
        return entry == ALL or not entry & READ_ONLY

    def assembler(self, text: str) -> "keystone.Ks":
        """Return Keystone's assembler for arm64."""
        import keystone

        return keystone.Ks(keystone.KS_ARCH_ARM64, keystone.KS_MODE_LITTLE_ENDIAN)

    def decoder(self) -> "capstone.Cs":
        """Return Capstone's decoder for arm64."""
        return _decoder()

    def is_atomic(self, code: bytes, before: bytes = b"", behind: bytes = b"") -> bool:
        """Return whether an instruction is an atomic, exclusive, acquire or release access.

        Arm ARM C4.1, "Load/store exclusive", "Atomic memory operations" and "LDAPR/STLR (unscaled
        immediate)".
        """
        word = int.from_bytes(code, "little")
        return any(word & mask == value for mask, value in ATOMIC)

    def instruction_length(self, code: bytes) -> int:
        """Return 4, the size of every instruction in bytes."""
        return 4


ARCH = Arm64()

# Relocations of arm64 (ELF for the Arm 64-bit Architecture, "Relocation").
RELOCATIONS = {
    257: RelocationType(Base.SYMBOL, 8),  # R_AARCH64_ABS64
    258: RelocationType(Base.SYMBOL, 4),  # R_AARCH64_ABS32
    1025: RelocationType(Base.SYMBOL, 8),  # R_AARCH64_GLOB_DAT
    1026: RelocationType(Base.SYMBOL, 8),  # R_AARCH64_JUMP_SLOT
    1027: RelocationType(Base.IMAGE, 8),  # R_AARCH64_RELATIVE
}
