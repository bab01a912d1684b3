"""Registers of amd64, named as in Intel's SDM volume 1, chapter 3."""

import unicorn.x86_const as uc

from emu.arch.target_description import GdbRegister, TargetDescription

NAMES = "rax rbx rcx rdx rsi rdi rbp rsp r8 r9 r10 r11 r12 r13 r14 r15 rip rflags".split()
SEGMENTS = "cs ss ds es fs gs".split()
GENERAL = {name: 64 for name in NAMES}

_BASES = {"fs_base": uc.UC_X86_REG_FS_BASE, "gs_base": uc.UC_X86_REG_GS_BASE}
CONTROL = ("cr0", "cr2", "cr3", "cr4", "cr8")
DEBUG = tuple(f"dr{i}" for i in (0, 1, 2, 3, 6, 7))
UNICORN = {name: getattr(uc, f"UC_X86_REG_{name.upper()}")
           for name in [*NAMES, *SEGMENTS, *CONTROL, *DEBUG]} | _BASES
WIDE = {"gdtr": uc.UC_X86_REG_GDTR, "idtr": uc.UC_X86_REG_IDTR, "tr": uc.UC_X86_REG_TR,
        "ldtr": uc.UC_X86_REG_LDTR}
WIDE_SIZE = 24  # size in bytes of uc_x86_mmr: u16 selector, u64 base, u32 limit, u32 flags, aligned

# Control registers of x87 and SSE; the last five describe the last x87 instruction.
FLOATING_POINT = {name: getattr(uc, f"UC_X86_REG_{name.upper()}")
                  for name in ("fpcw", "fpsw", "fptag", "mxcsr", "fip", "fcs", "fdp", "fds", "fop")}

# Model-specific registers (SDM volume 4; AMD APM volume 2, appendix A).
MSRS = {
    "sysenter_cs": 0x174, "sysenter_esp": 0x175, "sysenter_eip": 0x176, "pat": 0x277,
    "efer": 0xC0000080, "star": 0xC0000081, "lstar": 0xC0000082, "cstar": 0xC0000083,
    "misc_enable": 0x1A0, "mtrr_def_type": 0x2FF,
    **{f"mtrr_phys{kind}{n}": 0x200 + 2 * n + i for n in range(8)
       for i, kind in enumerate(("base", "mask"))},
    **{f"mtrr_fix{n}": n for n in (0x250, 0x258, 0x259, *range(0x268, 0x270))},
    "sfmask": 0xC0000084, "kernel_gs_base": 0xC0000102, "tsc_aux": 0xC0000103,
}

RFLAGS_TF, RFLAGS_IF, RFLAGS_NT, RFLAGS_RF, RFLAGS_VM = 1 << 8, 1 << 9, 1 << 14, 1 << 16, 1 << 17
RFLAGS_IOPL = 12  # position of the lower bit of IOPL in RFLAGS

# Registers of amd64 in gdb (gdb manual, "i386 Features").
_GENERAL = "rax rbx rcx rdx rsi rdi rbp rsp r8 r9 r10 r11 r12 r13 r14 r15".split()
_POINTERS = {"rbp": "data_ptr", "rsp": "data_ptr"}
# The kernel does not use x87, but gdb requires descriptions of the x87 registers.
_X87 = tuple(GdbRegister(f"st{i}", None, 80, "i387_ext") for i in range(8)) + tuple(
    GdbRegister(name, None, 32, "int")
    for name in "fctrl fstat ftag fiseg fioff foseg fooff fop".split())

DESCRIPTION = TargetDescription("i386:x86-64", (
    ("org.gnu.gdb.i386.core", (
        *(GdbRegister(name, name, 64, _POINTERS.get(name, "int64")) for name in _GENERAL),
        GdbRegister("rip", "rip", 64, "code_ptr"), GdbRegister("eflags", "rflags", 32, "int"),
        *(GdbRegister(name, name, 32, "int") for name in "cs ss ds es fs gs".split()), *_X87)),
    ("org.gnu.gdb.i386.sse", (
        *(GdbRegister(f"xmm{i}", None, 128, "uint128") for i in range(16)),
        GdbRegister("mxcsr", None, 32, "int"))),
    ("org.gnu.gdb.i386.segments", (
        GdbRegister("fs_base", "fs_base"), GdbRegister("gs_base", "gs_base"))),
    ("org.kinst.amd64.control", tuple(
        GdbRegister(name, name) for name in ("cr0", "cr2", "cr3", "cr4"))),
    # A gdb without FreeBSD's ABI (Debian's gdb-multiarch) mistakes the kernel for a 32-bit program.
), advice=("set osabi none",))
