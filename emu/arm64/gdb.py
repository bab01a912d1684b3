"""arm64 as gdb knows it (gdb manual, "AArch64 Features")."""

from emu.gdb.description import Description, GdbRegister

DESCRIPTION = Description("aarch64", (
    ("org.gnu.gdb.aarch64.core", (
        *(GdbRegister(f"x{i}", f"x{i}") for i in range(31)),
        GdbRegister("sp", "sp", 64, "data_ptr"), GdbRegister("pc", "pc", 64, "code_ptr"),
        GdbRegister("cpsr", "pstate", 32, "int"))),
    ("org.gnu.gdb.aarch64.fpu", (
        *(GdbRegister(f"v{i}", f"q{i}", 128, "uint128") for i in range(32)),
        GdbRegister("fpsr", None, 32, "int"), GdbRegister("fpcr", None, 32, "int"))),
    ("org.kinst.arm64.system", tuple(GdbRegister(name, name) for name in (
        "esr_el1", "elr_el1", "spsr_el1", "far_el1", "vbar_el1", "sctlr_el1", "ttbr0_el1",
        "ttbr1_el1", "tpidr_el1"))),
))
