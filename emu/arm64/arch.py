"""arm64 as the rest of the project sees it."""

import functools
from typing import TYPE_CHECKING

from emu.arch import NO_HOLE, Arch, Hole, TrapFrame, find_far_hole, large_pages
from emu.arm64 import registers
from emu.errors import MachineError

if TYPE_CHECKING:
    import capstone
    import keystone

    from emu.machine import Machine
    from emu.unicorn.board import Board
    from emu.unicorn.machine import UnicornMachine

# struct trapframe of FreeBSD's arm64 port.
TRAP_FRAME = TrapFrame(
    288,
    {"sp": (0, 8), "lr": (8, 8), "elr": (16, 8), "spsr": (24, 8), "esr": (32, 8), "far": (40, 8)}
    | {f"x{i}": (48 + 8 * i, 8) for i in range(30)},
)


ADDRESS = 0xFFFFFFFFF000
CONTIGUOUS = 1 << 52


@functools.cache
def _decoder() -> "capstone.Cs":
    import capstone  # takes 30 ms, and not every command decodes

    return capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)


class Arm64(Arch):
    name = "arm64"
    elf_machine = "AARCH64"
    registers = registers.GENERAL
    pc, sp = "pc", "sp"
    arguments = ("x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7")
    result = "x0"
    macros = ("__aarch64__",)
    per_cpu = "x18"
    link = "x30"
    trap_frame = TRAP_FRAME
    # DWARF for the Arm 64-bit Architecture, 4.1.
    dwarf_registers = (*(f"x{i}" for i in range(31)), "sp")
    frame_record = ("x29", 0, 8)
    trap_entries = frozenset({"handle_el1h_sync", "handle_el1h_irq", "handle_el1h_fiq",
                              "handle_el1h_serror"})

    def translate(self, machine: "Machine", address: int) -> int | None:
        """Stage 1, EL1&0, 4 KiB granule (Arm ARM, "The AArch64 Virtual Memory System")."""
        if not machine.read_register("sctlr_el1") & 1:
            return address
        tcr = machine.read_register("tcr_el1")
        upper = address >> 63
        size = 64 - (tcr >> 16 & 63 if upper else tcr & 63)
        top = address >> size
        if top != ((1 << 64 - size) - 1 if upper else 0):
            return None
        table = machine.read_register("ttbr1_el1" if upper else "ttbr0_el1") & ADDRESS
        level = 3 - (size - 13) // 9
        while True:
            shift = 12 + 9 * (3 - level)
            index = (address & (1 << size) - 1) >> shift & 0x1FF
            entry = int.from_bytes(machine.read_physical(table + 8 * index, 8), "little")
            if not entry & 1 or (level == 3 and not entry & 2):
                return None
            if level == 3 or not entry & 2:
                offset = (1 << shift) - 1
                return entry & ADDRESS & ~offset | address & offset
            table = entry & ADDRESS
            level += 1

    def executable_hole(
        self, machine: "Machine", near: int, physical: int, pages: int, directory: int
    ) -> Hole | None:
        """In a level 2 table of the kernel's, with the attributes of its code."""
        if not machine.read_register("sctlr_el1") & 1:
            return None

        def next_table(entry: int) -> int | None:
            return 0 if not entry & 1 else entry & ADDRESS if entry & 2 else None

        def entry_at(table: int, shift: int) -> int:
            index = (near & (1 << size) - 1) >> shift & 0x1FF
            return int.from_bytes(machine.read_physical(table + 8 * index, 8), "little")

        size = 64 - (machine.read_register("tcr_el1") >> 16 & 63)
        at = machine.read_register("ttbr1_el1") & ADDRESS
        if size > 39:
            at = entry_at(at, 39) & ADDRESS
        entry = entry_at(entry_at(at, 30) & ADDRESS, 21)
        if entry & 2:  # a table of pages: take the page's attributes
            entry = entry_at(entry & ADDRESS, 12)
        attributes = entry & ~ADDRESS & ~CONTIGUOUS & ~3 | 1
        hole = find_far_hole(machine, at, near, pages, next_table)
        if hole is None:
            raise MachineError(NO_HOLE)
        virtual, table, first = hole
        return Hole(virtual, large_pages(table, first, physical, attributes, pages))

    def assembler(self, text: str) -> "keystone.Ks":
        import keystone

        return keystone.Ks(keystone.KS_ARCH_ARM64, keystone.KS_MODE_LITTLE_ENDIAN)

    def decoder(self) -> "capstone.Cs":
        return _decoder()

    def instruction_length(self, code: bytes) -> int:
        return 4

    def board(self, machine: "UnicornMachine") -> "Board":
        from emu.arm64.board import ArmBoard

        return ArmBoard(machine)


ARCH = Arm64()
