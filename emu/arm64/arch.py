"""arm64 as the rest of the project sees it."""

from typing import TYPE_CHECKING

from emu.arch import Arch, TrapFrame
from emu.arm64 import registers

if TYPE_CHECKING:
    from emu.board import Board
    from emu.machine import Machine
    from emu.unicorn_machine import UnicornMachine

# struct trapframe of FreeBSD's arm64 port.
TRAP_FRAME = TrapFrame(
    288,
    {"sp": (0, 8), "lr": (8, 8), "elr": (16, 8), "spsr": (24, 8), "esr": (32, 8), "far": (40, 8)}
    | {f"x{i}": (48 + 8 * i, 8) for i in range(30)},
)


class Arm64(Arch):
    name = "arm64"
    elf_machine = "AARCH64"
    registers = registers.GENERAL
    pc, sp = "pc", "sp"
    arguments = ("x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7")
    result = "x0"
    trap_frame = TRAP_FRAME

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
        table = machine.read_register("ttbr1_el1" if upper else "ttbr0_el1") & 0xFFFFFFFFF000
        level = 3 - (size - 13) // 9
        while True:
            shift = 12 + 9 * (3 - level)
            index = (address & (1 << size) - 1) >> shift & 0x1FF
            entry = int.from_bytes(machine.read_physical(table + 8 * index, 8), "little")
            if not entry & 1 or (level == 3 and not entry & 2):
                return None
            if level == 3 or not entry & 2:
                offset = (1 << shift) - 1
                return entry & 0xFFFFFFFFF000 & ~offset | address & offset
            table = entry & 0xFFFFFFFFF000
            level += 1

    def instruction_length(self, code: bytes) -> int:
        return 4

    def prepare_call(self, machine: "Machine", arguments: tuple[int, ...], back: int) -> None:
        sp = machine.sp & ~15
        stacked = arguments[8:]
        sp -= (8 * len(stacked) + 15) & ~15
        for i, value in enumerate(stacked):
            machine.write_u64(sp + 8 * i, value)
        machine.write_register("sp", sp)
        for name, value in zip(self.arguments, arguments, strict=False):
            machine.write_register(name, value)
        machine.write_register("x30", back)

    def board(self, machine: "UnicornMachine") -> "Board":
        from emu.arm64.board import ArmBoard

        return ArmBoard(machine)
