"""riscv64 as the rest of the project sees it."""

import functools
from typing import TYPE_CHECKING

from emu.arch import LARGE, NO_HOLE, Arch, Hole, TrapFrame, find_far_hole
from emu.errors import MachineError
from emu.riscv64 import registers

if TYPE_CHECKING:
    import capstone

    from emu.machine import Machine
    from emu.unicorn.board import Board
    from emu.unicorn.machine import UnicornMachine

# struct trapframe of FreeBSD's riscv port, 280 bytes in a slot of 288.
TRAP_FRAME = TrapFrame(
    280,
    {"ra": (0, 8), "sp": (8, 8), "gp": (16, 8), "tp": (24, 8)}
    | {f"t{i}": (32 + 8 * i, 8) for i in range(7)}
    | {f"s{i}": (88 + 8 * i, 8) for i in range(12)}
    | {f"a{i}": (184 + 8 * i, 8) for i in range(8)}
    | {"sepc": (248, 8), "sstatus": (256, 8), "stval": (264, 8), "scause": (272, 8)},
)

SATP_PPN = (1 << 44) - 1
LEVELS = {8: 3, 9: 4, 10: 5}  # satp.MODE: Sv39, Sv48, Sv57


@functools.cache
def _decoder() -> "capstone.Cs":
    import capstone  # takes 30 ms, and not every command decodes

    return capstone.Cs(
        capstone.CS_ARCH_RISCV, capstone.CS_MODE_RISCV64 | capstone.CS_MODE_RISCVC
    )


class Riscv64(Arch):
    name = "riscv64"
    elf_machine = "RISCV"
    registers = registers.GENERAL
    pc, sp = "pc", "sp"
    arguments = ("a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7")
    result = "a0"
    macros = ("__riscv",)
    per_cpu = "tp"
    link = "ra"
    trap_frame = TRAP_FRAME
    # RISC-V ABIs, "DWARF register numbers": those of the encoding; there is no register zero.
    dwarf_registers = ("", "ra", "sp", "gp", "tp", "t0", "t1", "t2", "s0", "s1",
                       *(f"a{i}" for i in range(8)), *(f"s{i}" for i in range(2, 12)),
                       "t3", "t4", "t5", "t6")
    frame_record = ("s0", -16, -8)
    trap_entries = frozenset({"cpu_exception_handler_supervisor", "cpu_exception_handler"})

    def translate(self, machine: "Machine", address: int) -> int | None:
        """Sv39, Sv48 or Sv57 (privileged manual, "Virtual Address Translation Process")."""
        satp = machine.read_register("satp")
        levels = LEVELS.get(satp >> 60)
        if levels is None:
            return address
        if address >> 8 + 9 * levels + 3 not in (0, (1 << 53 - 9 * levels) - 1):
            return None  # not a sign-extended address
        table = (satp & SATP_PPN) << 12
        for level in range(levels - 1, -1, -1):
            index = address >> 12 + 9 * level & 0x1FF
            entry = int.from_bytes(machine.read_physical(table + 8 * index, 8), "little")
            if not entry & 1:
                return None
            table = (entry >> 10 & SATP_PPN) << 12
            if entry & 0xE:
                offset = (1 << 12 + 9 * level) - 1
                return table & ~offset | address & offset
        return None

    def executable_hole(
        self, machine: "Machine", near: int, physical: int, pages: int, directory: int
    ) -> Hole | None:
        """In a level 1 table of the kernel's, which all address spaces share."""
        satp = machine.read_register("satp")
        levels = LEVELS.get(satp >> 60)
        if levels is None:
            return None

        def next_table(entry: int) -> int | None:
            return 0 if not entry & 1 else None if entry & 0xE else (entry >> 10 & SATP_PPN) << 12

        at = (satp & SATP_PPN) << 12
        for level in range(levels - 1, 2, -1):
            index = near >> 12 + 9 * level & 0x1FF
            at = next_table(int.from_bytes(machine.read_physical(at + 8 * index, 8), "little")) or 0
        hole = find_far_hole(machine, at, near, pages, next_table)
        if hole is None:
            raise MachineError(NO_HOLE)
        virtual, table, first = hole
        return Hole(virtual, tuple(
            (table + 8 * (first + i), physical + i * LARGE >> 12 << 10 | 0xEF) for i in range(pages)
        ))

    def decoder(self) -> "capstone.Cs":
        return _decoder()

    def instruction_length(self, code: bytes) -> int:
        return 4 if code[0] & 3 == 3 else 2

    def board(self, machine: "UnicornMachine") -> "Board":
        from emu.riscv64.board import RiscvBoard

        return RiscvBoard(machine)


ARCH = Riscv64()
