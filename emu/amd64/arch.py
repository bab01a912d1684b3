"""amd64 as the rest of the project sees it."""

import functools
from typing import TYPE_CHECKING

import capstone

from emu.amd64 import registers
from emu.arch import Arch, Hole, TrapFrame, find_hole

if TYPE_CHECKING:
    from emu.board import Board
    from emu.machine import Machine
    from emu.unicorn_machine import UnicornMachine

# struct trapframe of FreeBSD's amd64 port.
TRAP_FRAME = TrapFrame(
    192,
    {name: (8 * i, 8) for i, name in enumerate(
        "rdi rsi rdx rcx r8 r9 rax rbx rbp r10 r11 r12 r13 r14 r15".split())}
    | {"trapno": (120, 4), "fs": (124, 2), "gs": (126, 2), "addr": (128, 8), "flags": (136, 4),
       "es": (140, 2), "ds": (142, 2), "err": (144, 8), "rip": (152, 8), "cs": (160, 8),
       "rflags": (168, 8), "rsp": (176, 8), "ss": (184, 8)},
)

PRESENT, LARGE = 1, 1 << 7
FRAME = 0xFFFFFFFFFF000


@functools.cache
def _decoder() -> capstone.Cs:
    return capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)


class Amd64(Arch):
    name = "amd64"
    elf_machine = "X86_64"
    registers = registers.GENERAL
    pc, sp = "rip", "rsp"
    arguments = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
    result = "rax"
    trap_frame = TRAP_FRAME

    def translate(self, machine: "Machine", address: int) -> int | None:
        """4-level paging (SDM volume 3, "4-Level Paging and 5-Level Paging")."""
        if not machine.read_register("cr0") >> 31:
            return address
        if address >> 47 not in (0, 0x1FFFF):
            return None
        table = machine.read_register("cr3") & FRAME
        for shift in (39, 30, 21, 12):
            index = address >> shift & 0x1FF
            entry = int.from_bytes(machine.read_physical(table + 8 * index, 8), "little")
            if not entry & PRESENT:
                return None
            if shift == 12 or (entry & LARGE and shift != 39):
                offset = (1 << shift) - 1
                return entry & FRAME & ~offset | address & offset
            table = entry & FRAME
        return None

    def executable_hole(self, machine: "Machine", near: int, table: int) -> Hole:
        """In the page directory of the kernel's GiB: all address spaces share it."""
        directory = machine.read_register("cr3") & FRAME
        entry = 0
        for shift in (39, 30):
            at = directory + 8 * (near >> shift & 0x1FF)
            entry = int.from_bytes(machine.read_physical(at, 8), "little")
            directory = entry & FRAME
        index, at = find_hole(machine, directory, 0, lambda e: bool(e & PRESENT))
        virtual = near & ~((1 << 30) - 1) | index << 21
        return Hole(virtual, at, table | 0x23, lambda page: page | 0x63)  # present, written, used

    def instruction_length(self, code: bytes) -> int:
        for _address, size, _mnemonic, _operands in _decoder().disasm_lite(code, 0, 1):
            return int(size)
        return 0

    def prepare_call(self, machine: "Machine", arguments: tuple[int, ...], back: int) -> None:
        sp = machine.sp & ~15
        stacked = arguments[6:]
        sp -= (8 * len(stacked) + 15) & ~15
        for i, value in enumerate(stacked):
            machine.write_u64(sp + 8 * i, value)
        machine.write_u64(sp - 8, back)
        machine.write_register("rsp", sp - 8)
        for name, value in zip(self.arguments, arguments, strict=False):
            machine.write_register(name, value)
        machine.write_register("rax", 0)  # no vector registers in a variadic call

    def stack_after_return(self, machine: "Machine") -> int:
        return machine.sp + 8

    def board(self, machine: "UnicornMachine") -> "Board":
        from emu.amd64.board import Amd64Board

        return Amd64Board(machine)
