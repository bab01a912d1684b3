"""amd64 as the rest of the project sees it."""

import functools
from typing import TYPE_CHECKING

from emu.amd64 import registers
from emu.arch import NO_HOLE, Arch, Hole, TrapFrame, find_hole, large_pages
from emu.errors import MachineError

if TYPE_CHECKING:
    import capstone
    import keystone

    from emu.machine import Machine
    from emu.unicorn.board import Board
    from emu.unicorn.machine import UnicornMachine

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
def _decoder() -> "capstone.Cs":
    import capstone  # takes 30 ms, and not every command decodes

    return capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)


@functools.cache
def _detailed() -> "capstone.Cs":
    import capstone

    decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    decoder.detail = True
    return decoder


class Amd64(Arch):
    name = "amd64"
    elf_machine = "X86_64"
    registers = registers.GENERAL
    pc, sp = "rip", "rsp"
    arguments = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
    result = "rax"
    macros = ("__amd64", "__amd64__", "__x86_64__")
    per_cpu = "gs_base"
    link = None
    trap_frame = TRAP_FRAME
    # System V ABI, AMD64 supplement, figure 3.36.
    dwarf_registers = ("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10",
                       "r11", "r12", "r13", "r14", "r15")
    frame_record = ("rbp", 0, 8)
    trap_entries = frozenset({"calltrap", "nmi_calltrap"})

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

    def executable_hole(
        self, machine: "Machine", near: int, physical: int, pages: int, directory: int
    ) -> Hole:
        """In the page directory of the kernel's GiB, which all address spaces share, or in the
        GiB behind it: within reach of 32-bit displacements."""

        def next_table(entry: int) -> int | None:
            return 0 if not entry & PRESENT else None if entry & LARGE else entry & FRAME

        at = machine.read_register("cr3") & FRAME
        tables = [at]
        for shift in (39, 30):
            entry = machine.read_physical(tables[-1] + 8 * (near >> shift & 0x1FF), 8)
            tables.append(int.from_bytes(entry, "little") & FRAME)
        attributes = PRESENT | LARGE | 0x62  # writable, used
        found = find_hole(machine, tables[2], pages, next_table)
        if found is not None:
            return Hole((near & -1 << 30) + (found << 21),
                        large_pages(tables[2], found, physical, attributes, pages))
        last = tables[1] + 8 * 511
        if machine.read_physical(last, 1)[0] & PRESENT or pages > 512:
            raise MachineError(NO_HOLE)
        return Hole(-1 << 30 & (1 << 64) - 1,
                    (*large_pages(directory, 0, physical, attributes, pages),
                     (last, directory | 0x23)))

    def assembler(self, text: str) -> "keystone.Ks":
        """AT&T syntax where registers have a ``%`` or numbers a ``$``, else Intel's."""
        import keystone

        engine = keystone.Ks(keystone.KS_ARCH_X86, keystone.KS_MODE_64)
        if "%" in text or "$" in text:
            engine.syntax = keystone.KS_OPT_SYNTAX_ATT
        return engine

    def decoder(self) -> "capstone.Cs":
        return _decoder()

    def instruction_length(self, code: bytes) -> int:
        for _address, size, _mnemonic, _operands in _decoder().disasm_lite(code, 0, 1):
            return int(size)
        return 0

    def placed_operands(self, code: bytes, pc: int) -> list[tuple[str, int]]:
        """Relative to RIP, absolute, and relative to the segments' bases."""
        from capstone import CS_OP_MEM, x86

        found = []
        for insn in _detailed().disasm(code, pc, 1):
            for op in insn.operands:
                if op.type == CS_OP_MEM and op.mem.base in (x86.X86_REG_RIP, 0):
                    segment = {x86.X86_REG_GS: "gs_base", x86.X86_REG_FS: "fs_base"}.get(
                        op.mem.segment, "")
                    relative = pc + insn.size if op.mem.base else 0
                    found.append((segment, op.mem.disp + relative & (1 << 64) - 1))
        return found

    def split(self, code: bytes) -> list[bytes]:
        found, at = list[bytes](), 0
        for _address, size, _mnemonic, _operands in _decoder().disasm_lite(code, 0):
            found.append(code[at : at + size])  # asked once for all
            at += size
        return found + super().split(code[at:])

    def prepare_call(self, machine: "Machine", arguments: tuple[int, ...], back: int) -> None:
        super().prepare_call(machine, arguments, back)
        machine.write_register("rax", 0)  # no vector registers in a variadic call

    def board(self, machine: "UnicornMachine") -> "Board":
        from emu.amd64.board import Amd64Board

        return Amd64Board(machine)


ARCH = Amd64()
