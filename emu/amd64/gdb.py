"""amd64 as gdb knows it (gdb manual, "i386 Features")."""

from emu.gdb.description import Description, GdbRegister

_GENERAL = "rax rbx rcx rdx rsi rdi rbp rsp r8 r9 r10 r11 r12 r13 r14 r15".split()
_POINTERS = {"rbp": "data_ptr", "rsp": "data_ptr"}
# gdb wants them named; the kernel does not use them.
_X87 = tuple(GdbRegister(f"st{i}", None, 80, "i387_ext") for i in range(8)) + tuple(
    GdbRegister(name, None, 32, "int")
    for name in "fctrl fstat ftag fiseg fioff foseg fooff fop".split())

DESCRIPTION = Description("i386:x86-64", (
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
    # A gdb without FreeBSD's ABI (Debian's gdb-multiarch) takes the kernel for a 32-bit program.
), advice=("set osabi none",))
