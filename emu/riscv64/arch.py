"""The riscv64 architecture: paging, instructions, calling convention and relocations."""

import functools
from typing import TYPE_CHECKING

from emu.arch.arch import ALL, Arch, Context
from emu.elf.relocations import Base, RelocationType
from emu.riscv64 import registers

if TYPE_CHECKING:
    import capstone


SATP_PPN = (1 << 44) - 1
LEVELS = {8: 3, 9: 4, 10: 5}  # satp.MODE -> number of page table levels: Sv39, Sv48, Sv57


@functools.cache
def _decoder() -> "capstone.Cs":
    import capstone  # imported late: the import takes 30 ms, and not every command needs Capstone

    return capstone.Cs(
        capstone.CS_ARCH_RISCV, capstone.CS_MODE_RISCV64 | capstone.CS_MODE_RISCVC
    )


def _stores(code: bytes) -> bool | None:
    """Return True for a store, False for a load, otherwise None (tables 24.1 and 16.5)."""
    word = int.from_bytes(code, "little")
    if len(code) == 4:
        return {0x03: False, 0x07: False, 0x23: True, 0x27: True}.get(word & 0x7F)
    return {2: False, 3: False, 6: True, 7: True}.get(word >> 13) if word & 3 in (0, 2) else None


def _is_fence(code: bytes) -> bool:
    word = int.from_bytes(code[:4], "little")
    return len(code) >= 4 and word & 0xF00FFFFF == FENCE


FENCE = 0x0000000F  # FENCE without the bits that select the ordered accesses
AMO = 0x2F  # opcode of LR, SC and the other atomic operations


class Riscv64(Arch):
    """The riscv64 architecture."""

    name = "riscv64"
    elf_machine = "RISCV"
    registers = registers.GENERAL
    pc, sp = "pc", "sp"
    arguments = ("a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7")
    result = "a0"
    macros = ("__riscv",)
    link = "ra"
    # Numbered as in instructions (RISC-V ABIs, "DWARF register numbers"); x0 is omitted.
    dwarf_registers = ("", "ra", "sp", "gp", "tp", "t0", "t1", "t2", "s0", "s1",
                       *(f"a{i}" for i in range(8)), *(f"s{i}" for i in range(2, 12)),
                       "t3", "t4", "t5", "t6")
    saves_frame = ("sd ra,", "c.sd ra,", "c.sdsp ra,")
    frame_record = ("s0", -16, -8)
    relocatable_modules = False
    watches_before = True  # debug specification, 5.7.3: mcontrol6 with timing "before"

    def walk(self, cpu: Context, address: int) -> tuple[int, int] | None:
        """Walk Sv39, Sv48 or Sv57 page tables (manual, "Virtual Address Translation Process")."""
        satp = cpu.read_register("satp")
        levels = LEVELS.get(satp >> 60)
        if levels is None:
            return address, ALL
        if address >> 8 + 9 * levels + 3 not in (0, (1 << 53 - 9 * levels) - 1):
            return None  # the address is not sign-extended
        table = (satp & SATP_PPN) << 12
        for level in range(levels - 1, -1, -1):
            index = address >> 12 + 9 * level & 0x1FF
            entry = int.from_bytes(cpu.read_physical(table + 8 * index, 8), "little")
            if not entry & 1:
                return None
            table = (entry >> 10 & SATP_PPN) << 12
            if entry & 0xE:
                offset = (1 << 12 + 9 * level) - 1
                return table & ~offset | address & offset, entry
        return None

    def writable(self, entry: int) -> bool:
        """Return whether a page table entry has the W bit."""
        return bool(entry & 4)

    def decoder(self) -> "capstone.Cs":
        """Return Capstone's decoder for riscv64."""
        return _decoder()

    def is_atomic(self, code: bytes, before: bytes = b"", behind: bytes = b"") -> bool:
        """Return whether an instruction is atomic, an acquire load, or a release store.

        Atomic operations are LR, SC and the others of the A extension (unprivileged manual).  A
        load with a fence after it is acquire, and a store with a fence before it is release
        ("RVWMO", table of mappings).
        """
        if len(code) == 4 and code[0] & 0x7F == AMO:
            return True
        stores = _stores(code)
        return stores is not None and _is_fence(before if stores else behind)

    def instruction_length(self, code: bytes) -> int:
        """Return the size in bytes of the first instruction in ``code``."""
        return 4 if code[0] & 3 == 3 else 2


ARCH = Riscv64()

# Relocations of riscv64 (RISC-V psABI, "Relocations").
RELOCATIONS = {
    1: RelocationType(Base.SYMBOL, 4),  # R_RISCV_32
    2: RelocationType(Base.SYMBOL, 8),  # R_RISCV_64
    3: RelocationType(Base.IMAGE, 8),  # R_RISCV_RELATIVE
    5: RelocationType(Base.SYMBOL, 8),  # R_RISCV_JUMP_SLOT
}
