"""The amd64 architecture: paging, instructions, calling convention and relocations."""

import functools
import re
from typing import TYPE_CHECKING

from emu.amd64 import _layout, registers
from emu.arch.arch import ALL, Arch, Context
from emu.elf.relocations import Base, RelocationType

if TYPE_CHECKING:
    import capstone
    import keystone


PRESENT, LARGE = 1, 1 << 7
FRAME = 0xFFFFFFFFFF000
UD1, IMUL = "ud1", b"\xaf"  # Capstone's mnemonic for UD1; second opcode byte of IMUL


# Pattern of POP r/m64 (SDM volume 2) with its prefixes, up to the ModRM byte.
POP = re.compile(rb"[\x26\x2e\x36\x3e\x64-\x67\xf0\xf2\xf3]*[\x40-\x4f]?\x8f.", re.DOTALL)


@functools.cache
def _decoder() -> "capstone.Cs":
    import capstone  # imported late: the import takes 30 ms, and not every command needs Capstone

    return capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)


LOCK, REX, XCHG = 0xF0, 0x40, (b"\x86", b"\x87")
LEGACY_PREFIXES = frozenset((LOCK, 0xF2, 0xF3, 0x2E, 0x36, 0x3E, 0x26, 0x64, 0x65, 0x66, 0x67))


@functools.cache
def _detailed() -> "capstone.Cs":
    import capstone

    decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    decoder.detail = True
    return decoder


class Amd64(Arch):
    """The amd64 architecture."""

    name = "amd64"
    elf_machine = "X86_64"
    registers = registers.GENERAL
    pc, sp = "rip", "rsp"
    arguments = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
    result = "rax"
    macros = ("__amd64", "__amd64__", "__x86_64__")
    link = None
    # DWARF register numbers: System V ABI, AMD64 supplement, figure 3.36.
    dwarf_registers = ("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10",
                       "r11", "r12", "r13", "r14", "r15")
    saves_frame = ("push rbp",)
    frame_record = ("rbp", 0, 8)
    relocatable_modules = True  # in amd64 kernels, kern/link_elf_obj.c loads relocatable files
    watches_before = False  # SDM volume 3, 18.2.4: data breakpoints trap after the access

    def walk(self, cpu: Context, address: int) -> tuple[int, int] | None:
        """Walk 4-level page tables (SDM volume 3, "4-Level Paging and 5-Level Paging")."""
        if not cpu.read_register("cr0") >> 31:
            return address, ALL
        if address >> 47 not in (0, 0x1FFFF):
            return None
        table = cpu.read_register("cr3") & FRAME
        for shift in (39, 30, 21, 12):
            index = address >> shift & 0x1FF
            entry = int.from_bytes(cpu.read_physical(table + 8 * index, 8), "little")
            if not entry & PRESENT:
                return None
            if shift == 12 or (entry & LARGE and shift != 39):
                offset = (1 << shift) - 1
                return entry & FRAME & ~offset | address & offset, entry
            table = entry & FRAME
        return None

    def writable(self, entry: int) -> bool:
        """Return whether a page table entry has the R/W bit."""
        return bool(entry & 2)

    def assembler(self, text: str) -> "keystone.Ks":
        """Return Keystone for AT&T syntax if the text has ``%`` or ``$``, else for Intel syntax."""
        import keystone

        engine = keystone.Ks(keystone.KS_ARCH_X86, keystone.KS_MODE_64)
        if "%" in text or "$" in text:
            engine.syntax = keystone.KS_OPT_SYNTAX_ATT
        return engine

    def decoder(self) -> "capstone.Cs":
        """Return Capstone's decoder for 64-bit mode."""
        return _decoder()

    def instruction_length(self, code: bytes) -> int:
        """Return the size in bytes of the first instruction in ``code``, or 0 if it is invalid."""
        for _address, size, mnemonic, _operands in _decoder().disasm_lite(code, 0, 1):
            if mnemonic == UD1:  # Capstone omits UD1's operands, which are encoded like IMUL's
                return self.instruction_length(code[: size - 1] + IMUL + code[size:])
            return int(size)
        return 0

    def executed_length(self, code: bytes) -> int:
        """Return how many bytes of ``code`` the CPU models decode as the first instruction.

        :return: 0 if they do not execute the instruction.
        """
        length = self.instruction_length(code)
        pop = POP.match(code) if not length else None
        if pop is None:
            return length
        # The CPU models execute the opcode as POP for any reg field of ModRM, not only for /0.
        at = pop.end() - 1
        return self.instruction_length(code[:at] + bytes((code[at] & ~0x38,)) + code[at + 1 :])

    def placed_operands(self, code: bytes, pc: int) -> list[tuple[str, int]]:
        """Return memory operands that are absolute, or relative to RIP or the base of FS or GS."""
        from capstone import CS_OP_MEM, x86

        operands = []
        for insn in _detailed().disasm(code, pc, 1):
            for op in insn.operands:
                if op.type == CS_OP_MEM and op.mem.base in (x86.X86_REG_RIP, 0):
                    segment = {x86.X86_REG_GS: "gs_base", x86.X86_REG_FS: "fs_base"}.get(
                        op.mem.segment, "")
                    relative = pc + insn.size if op.mem.base else 0
                    operands.append((segment, op.mem.disp + relative & (1 << 64) - 1))
        return operands

    def is_atomic(self, code: bytes, before: bytes = b"", behind: bytes = b"") -> bool:
        """Return whether an instruction has LOCK or is XCHG with memory (SDM 3, "Bus Locking")."""
        at = 0
        while at < len(code) and code[at] in LEGACY_PREFIXES:
            if code[at] == LOCK:
                return True
            at += 1
        if at < len(code) and code[at] & 0xF0 == REX:
            at += 1
        return code[at : at + 1] in XCHG and len(code) > at + 1 and code[at + 1] >> 6 != 3

    def split(self, code: bytes) -> list[bytes]:
        """Split code into instructions; the last one may be incomplete."""
        instructions, at = list[bytes](), 0
        for size in _layout.lengths(code):  # one native call for all instructions
            instructions.append(code[at : at + size])
            at += size
        return instructions + super().split(code[at:])

    def prepare_call(self, cpu: Context, arguments: tuple[int, ...], back: int) -> None:
        """Set up registers and stack as if the function at the current pc had just been called."""
        super().prepare_call(cpu, arguments, back)
        cpu.write_register("rax", 0)  # number of vector registers used in a variadic call


ARCH = Amd64()

# Relocations of amd64 (System V psABI, "Relocation Types").
RELOCATIONS = {
    1: RelocationType(Base.SYMBOL, 8),  # R_X86_64_64
    2: RelocationType(Base.DISTANCE, 4),  # R_X86_64_PC32
    4: RelocationType(Base.DISTANCE, 4),  # R_X86_64_PLT32: modules call functions without a PLT
    6: RelocationType(Base.SYMBOL, 8),  # R_X86_64_GLOB_DAT
    7: RelocationType(Base.SYMBOL, 8),  # R_X86_64_JUMP_SLOT
    8: RelocationType(Base.IMAGE, 8),  # R_X86_64_RELATIVE
    10: RelocationType(Base.SYMBOL, 4),  # R_X86_64_32
    11: RelocationType(Base.SYMBOL, 4),  # R_X86_64_32S
    24: RelocationType(Base.DISTANCE, 8),  # R_X86_64_PC64
}
